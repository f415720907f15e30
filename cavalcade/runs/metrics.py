"""From the reports of nodes to one row of metrics, the same on every runtime."""

import time
from collections import deque
from itertools import pairwise

import numpy as np

from cavalcade.records import ALARMS
from cavalcade.runs.budget import Budget, Ledger, together

WINDOW = 100  # episodes behind the median and the quartiles
# Speeds and shares of time are means over at least RATES rows and SPAN seconds. Where batches are large, acting fills
# many rows and then stops while a batch is learned: so that time has to hold PAUSES such pauses at least, or one if it
# is longer than LONG seconds.
RATES, SPAN, PAUSES, LONG = 10, 1.0, 5, 60.0


class Metrics:
    """Adds up reports. Sessions ask for rows at fixed counts of environment steps, so equal runs give equal rows."""

    def __init__(self, places: dict[str, str] | None = None, frame_skip: int = 1, replay_share: float = 0.0) -> None:
        """`places`: node -> process; None if one process holds all nodes. `frame_skip`: frames that the environment
        plays in each step. `replay_share`: share of what is drawn that is replayed."""
        self.frame_skip, self.replay_share = frame_skip, replay_share
        self.began = time.perf_counter()
        self.before = 0.0  # seconds of earlier sittings of this run
        self.window: deque[float] = deque(maxlen=WINDOW)  # returns of the last episodes
        self.episodes = 0
        self.step, self.updates = 0, 0
        self.lag, self.lagged = 0.0, 0  # sum of the lags of updates, and number of these updates
        self.adjustments: list[dict] = []  # decisions of the adjuster in the whole run
        self.remarks: dict[str, str] = {}  # field of the observation, or metric -> sentence
        self.ledger = Ledger(places)
        self.start: dict | None = None  # seconds booked until the first row, while processes waited for others to start
        self.recent: Budget = {}  # the budget of the rows that speeds are taken from
        self.learned = 0  # rows of this sitting in which there were new updates
        # seconds, steps, updates and booked seconds at each row, from the row on from which speeds are taken
        self.rates: deque[tuple[float, int, int, dict]] = deque([(0.0, 0, 0, {})])

    @property
    def elapsed(self) -> float:
        """Seconds of all sittings of this run."""
        return self.before + time.perf_counter() - self.began

    def row(self, reports: dict[str, dict]) -> dict:
        """The next row, from what each node has reported since the last one."""
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
        made = max(0, updates - self.updates)  # negative after the program went back to a checkpoint
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
            for name, amount in report.get("counted", {}).items():  # what nodes have dropped: summed over them
                row[name] = row.get(name, 0.0) + amount
            if evaluation := report.get("evaluation"):
                row |= {"evaluation": evaluation["mean"], "evaluation_step": evaluation["step"]}
        row |= {f"time_{role}": share for role, share in together(self.recent).items()}
        if self.ledger.places:
            row |= {f"time_{kind}_{role}": x for kind, spent in self.recent.items() for role, x in spent.shares.items()}
        alarmed = {name: alarm.sentence for name, alarm in ALARMS.items() if row.get(name, 0.0) > alarm.above}
        self.remarks = {**alarmed, **self.remarks}
        return row

    def _forget_rates(self, now: float, updates: int) -> None:
        """Called before a new row is added: drop the oldest entries of `rates` that are not needed for speeds. The time
        that is left begins right after a pause for learning, so that it holds acting and learning in proportion."""
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
        """Means over all environments of the numbers that they put into their infos; takes up remarks too."""
        sums: dict[str, tuple[float, int]] = {}
        for report in actors:
            self.remarks = {**report.get("remarks", {}), **self.remarks}  # the first on each field stays
            for name, (total, count) in report.get("environment_metrics", {}).items():
                before = sums.get(name, (0.0, 0))
                sums[name] = (before[0] + total, before[1] + count)
        return {f"env/{name}": total / count for name, (total, count) in sums.items()}

    def budget(self) -> Budget:
        """The time budget of this sitting, without the time before its first row if there is more."""
        return self.ledger.since(self.start or {}) or self.ledger.since({})

    @property
    def policy_lag(self) -> float | None:
        """Updates between the params that acted and those that learn, as the mean over the updates of this sitting.
        None if experience is replayed, which is old on purpose: that is `replay_age`."""
        return self.lag / self.lagged if self.lagged and not self.replay_share else None

    @property
    def replay_age(self) -> float | None:
        """Updates since what was drawn was acted, in the same mean; None if nothing is replayed."""
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
