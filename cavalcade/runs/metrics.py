"""From what the nodes counted to one row of figures, the same on every runtime."""

import time
from collections import deque
from itertools import pairwise

import numpy as np

from cavalcade.runs.budget import Budget, Ledger, together

WINDOW = 100  # episodes behind the median and quartiles shown
# Speeds and shares of time are taken over so many rows and seconds, at least. A large batch is acted over many rows and
# learned in a pause between two of them, so there are also some pauses in that time, or one of them in a long time.
RATES, SPAN, PAUSES, LONG = 10, 1.0, 5, 60.0


class Metrics:
    """Adds up reports. Rows are made at fixed counts of environment steps, so equal runs give equal rows."""

    def __init__(self, places: dict[str, str] | None = None, frame_skip: int = 1, replay_share: float = 0.0) -> None:
        """`places`: the process of each node; none where one process holds them all. `frame_skip`: frames that the
        emulator plays in each step. `replay_share`: of what is drawn, how much is from replay."""
        self.frame_skip, self.replay_share = frame_skip, replay_share
        self.began = time.perf_counter()
        self.before = 0.0  # seconds of earlier sessions of this run
        self.window: deque[float] = deque(maxlen=WINDOW)
        self.episodes = 0
        self.step, self.updates = 0, 0
        self.lag, self.lagged = 0.0, 0  # sum over so many updates of how many updates ago their data was made
        self.adjustments: list[dict] = []  # decisions on how many of each kind of node are active, of the whole run
        self.remarks: dict[str, str] = {}  # on environments, by the field of the observation
        self.ledger = Ledger(places)
        self.start: dict | None = None  # what was booked until the first row, while processes waited for each other
        self.recent: Budget = {}  # of the last rows
        self.learned = 0  # rows of this sitting in which there were new updates
        # of each row: seconds, steps, updates, what was booked; back to the row from which speeds are taken
        self.rates: deque[tuple[float, int, int, dict]] = deque([(0.0, 0, 0, {})])

    @property
    def elapsed(self) -> float:
        return self.before + time.perf_counter() - self.began

    def row(self, reports: dict[str, dict]) -> dict:
        now = self.elapsed
        actors = [report for report in reports.values() if "episodes" in report]
        learners = [report for report in reports.values() if "updates" in report]
        finished = [episode for report in actors for episode in report["episodes"]]
        step, updates = sum(r["steps"] for r in actors), max((r["updates"] for r in learners), default=0)
        self._forget_rates(now, updates)
        since, step_then, updates_then, booked_then = self.rates[0]
        span = max(now - since, 1e-9)
        row: dict = {
            "step": step,
            "time": now,
            "steps_per_second": (step - step_then) / span,
            "frames_per_second": (step - step_then) * self.frame_skip / span,
            "updates": updates,
            "updates_per_second": (updates - updates_then) / span,
        }
        self.ledger.book(reports)
        self.recent = self.ledger.since(booked_then)
        self.rates.append((now, step, updates, self.ledger.copy()))
        self.start = self.start or self.ledger.copy()
        made = max(0, updates - self.updates)  # less than none after a checkpoint was gone back to
        self.step, self.updates = step, updates
        if finished:
            self.episodes += len(finished)
            self.window.extend(total for total, _ in finished)
            row["return"] = float(np.mean([total for total, _ in finished]))
            row["episode_length"] = float(np.mean([length for _, length in finished]))
        if self.window:
            low, median, high = np.percentile(self.window, [25, 50, 75])
            row |= {"return_median": float(median), "return_low": float(low), "return_high": float(high)}
        row["episodes"] = self.episodes
        row |= self._of_environments(actors)
        if exploring := [r["exploration_rate"] for r in actors if r.get("exploration_rate") is not None]:
            row["exploration_rate"] = float(np.mean(exploring))
        for report in learners:
            row |= report["metrics"]
            if "policy_lag" in report:
                row["replay_age" if self.replay_share else "policy_lag"] = report["policy_lag"]
                self.lag, self.lagged = self.lag + made * report["policy_lag"], self.lagged + made
            if "seconds_in_table" in report:
                row["time_in_table_seconds"] = report["seconds_in_table"]
        for report in reports.values():
            if "adjusted" in report:
                row |= {f"active_{name}": number for name, number in report["active"].items()}
                self.adjustments += [{"step": step, **made} for made in report["adjusted"]]
                if report["adjusted"]:
                    row["adjusted"] = [made["sentence"] for made in report["adjusted"]]
            row |= {name: report[name] for name in ("table_size", "table_capacity") if name in report}
            for name, amount in report.get("counted", {}).items():  # what was dropped, by whom it may be
                row[name] = row.get(name, 0.0) + amount
            if evaluation := report.get("evaluation"):
                row |= {"evaluation": evaluation["mean"], "evaluation_step": evaluation["step"]}
        row |= {f"time_{role}": share for role, share in together(self.recent).items()}
        if self.ledger.places:
            row |= {f"time_{kind}_{role}": x for kind, spent in self.recent.items() for role, x in spent.shares.items()}
        return row

    def _forget_rates(self, now: float, updates: int) -> None:
        """Before another row: drop the oldest, as long as those that stay are enough to take speeds from. The time that
        they span begins after a pause for learning, so that it holds as much acting as learning."""
        self.learned += updates > self.rates[-1][2]
        pauses = 0
        for rows, (entry, older) in enumerate(pairwise(reversed(self.rates)), 1):
            pauses, updates = pauses + (updates > entry[2]), entry[2]
            span = now - entry[0]
            enough = min(self.learned, PAUSES if span < LONG else 1)
            after_a_pause = entry[2] > older[2] or not enough or span >= LONG
            if rows >= RATES and span >= SPAN and pauses >= enough and after_a_pause:
                while len(self.rates) > rows:
                    self.rates.popleft()
                return

    def _of_environments(self, actors: list[dict]) -> dict[str, float]:
        """Means of the numbers that environments put into their infos, over all of them."""
        sums: dict[str, tuple[float, int]] = {}
        for report in actors:
            self.remarks = {**report.get("remarks", {}), **self.remarks}  # each is said once
            for name, (total, count) in report.get("environment_metrics", {}).items():
                before = sums.get(name, (0.0, 0))
                sums[name] = (before[0] + total, before[1] + count)
        return {f"env/{name}": total / count for name, (total, count) in sums.items()}

    def budget(self) -> Budget:
        """Of this sitting, without its start if more has come since."""
        return self.ledger.since(self.start or {}) or self.ledger.since({})

    @property
    def policy_lag(self) -> float | None:
        """Updates between the policy that acted and the one that learns: the mean over the updates of this sitting.
        None where experience is replayed, which is old on purpose: that has an age."""
        return self.lag / self.lagged if self.lagged and not self.replay_share else None

    @property
    def replay_age(self) -> float | None:
        """How many updates ago the data was made that was drawn, in the same mean; None where nothing is replayed."""
        return self.lag / self.lagged if self.lagged and self.replay_share else None

    def state(self) -> dict:
        return {
            "before": self.elapsed,
            "window": list(self.window),
            "episodes": self.episodes,
            "step": self.step,
            "updates": self.updates,
            "adjustments": self.adjustments,
        }

    def restore(self, state: dict) -> None:
        self.before, self.began = state["before"], time.perf_counter()
        self.window = deque(state["window"], maxlen=WINDOW)
        self.episodes, self.step, self.updates = state["episodes"], state["step"], state["updates"]
        self.adjustments = state["adjustments"]
        self.rates, self.learned = deque([(self.before, self.step, self.updates, {})]), 0
