"""From what the nodes counted to one row of figures, the same on every runtime."""

import time
from collections import deque

import numpy as np

WINDOW = 100  # episodes behind the median and quartiles shown
RATES = 10  # rows over which speeds and shares of time are taken


class Metrics:
    """Adds up reports. Rows are made at fixed counts of environment steps, so equal runs give equal rows."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.before = 0.0  # seconds of earlier sessions of this run
        self.window: deque[float] = deque(maxlen=WINDOW)
        self.episodes = 0
        self.step, self.updates = 0, 0
        self.seconds: dict[str, float] = {}  # by role, of all nodes together
        self.rates: deque[tuple[float, int, int, dict]] = deque([(0.0, 0, 0, {})], maxlen=RATES)

    @property
    def elapsed(self) -> float:
        return self.before + time.perf_counter() - self.began

    def row(self, reports: dict[str, dict]) -> dict:
        now = self.elapsed
        since, step_then, updates_then, seconds_then = self.rates[0]
        span = max(now - since, 1e-9)
        actors = [r for name, r in reports.items() if name.startswith("actor")]
        learners = [r for name, r in reports.items() if name.startswith("learner")]
        finished = [episode for report in actors for episode in report["episodes"]]
        step, updates = sum(r["steps"] for r in actors), sum(r["updates"] for r in learners)
        row: dict = {
            "step": step,
            "time": now,
            "frames_per_second": (step - step_then) / span,
            "updates": updates,
            "updates_per_second": (updates - updates_then) / span,
        }
        for report in reports.values():
            for role, amount in report.get("seconds", {}).items():
                self.seconds[role] = self.seconds.get(role, 0.0) + amount
        self.rates.append((now, step, updates, dict(self.seconds)))
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
        for report in learners:
            row |= report["metrics"]
            row |= {"policy_lag": report["policy_lag"]} if "policy_lag" in report else {}
        for report in reports.values():
            row |= {name: report[name] for name in ("table_size", "table_capacity") if name in report}
            if evaluation := report.get("evaluation"):
                row |= {"evaluation": evaluation["mean"], "evaluation_step": evaluation["step"]}
        left_out = sum(r.get("steps_left_out", 0) for r in actors)
        row |= {"steps_left_out": left_out} if left_out else {}
        # shares of all processes' time; in one process, what nobody booked is waiting or bookkeeping
        spent = {role: total - seconds_then.get(role, 0.0) for role, total in self.seconds.items()}
        spent["waiting"] = max(spent.get("waiting", 0.0), span - sum(spent.values()))
        together = max(span, sum(spent.values()))
        return row | {f"time_{role}": amount / together for role, amount in spent.items()}

    def state(self) -> dict:
        return {
            "before": self.elapsed,
            "window": list(self.window),
            "episodes": self.episodes,
            "step": self.step,
            "updates": self.updates,
        }

    def restore(self, state: dict) -> None:
        self.before, self.began = state["before"], time.perf_counter()
        self.window.extend(state["window"])
        self.episodes, self.step, self.updates = state["episodes"], state["step"], state["updates"]
        self.rates = deque([(self.before, self.step, self.updates, {})], maxlen=RATES)
