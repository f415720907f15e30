"""Judging a policy: whole episodes, greedy, on fixed seeds that training never uses."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cavalcade import envs
from cavalcade.policy import Policy, check_same_spaces
from cavalcade.stopwatch import Stopwatch

STREAM = 1_000_000  # actor number of the evaluation seeds, far from any training actor's
AT_ONCE = 32  # environments stepped together


def play_episodes(policy: Policy, environment: Any, episodes: int, seed: int, options: dict) -> list[tuple[float, int]]:
    """Return and length of each episode. Every environment plays a fixed share, so short episodes are not favoured."""
    count = min(episodes, AT_ONCE)
    shares = [episodes // count + (i < episodes % count) for i in range(count)]
    pool = envs.make(environment, count, seed, STREAM, **options)
    try:
        check_same_spaces(policy.model.spec, pool.spec)
        obs, first = pool.reset(), np.ones(count, np.bool_)
        carry = policy.model.carry(count)
        ended: list[list[tuple[float, int]]] = [[] for _ in range(count)]
        while any(len(got) < share for got, share in zip(ended, shares)):
            action, _, carry = policy.act(obs, carry, first, None)
            step = pool.step(action)
            obs, first = step.observation, step.first
            for episode in step.episodes:
                ended[episode.environment].append((episode.total, episode.length))
        return [episode for got, share in zip(ended, shares) for episode in got[:share]]
    finally:
        pool.close()


def summary(returns: list[float], seed: int = 0) -> dict[str, float]:
    """Mean, median, spread and a 95 % bootstrap interval of the mean."""
    values = np.asarray(returns, np.float64)
    rng = np.random.default_rng(seed)
    means = rng.choice(values, (2_000, len(values))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "std": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
        "ci_low": float(low),
        "ci_high": float(high),
        "episodes": len(values),
    }


class Evaluator:
    """Worker: judges the newest parameters each time the actors have done another share of the budget."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        learner: Any,
        actors: list,
        environment: Any,
        options: dict,
        every: float,
        episodes: int,
        seed: int,
        incarnation: int = 0,
    ):
        """`incarnation`: how often it was built before; the episodes it judges by stay the same."""
        self.policy, self.learner, self.actors = policy(), learner, actors
        self.environment, self.options, self.every = environment, options, every
        self.episodes, self.seed = episodes, seed
        self.done = 0
        self.result: dict | None = None
        self.watch = Stopwatch()

    def step(self) -> bool:
        steps = sum(actor.steps for actor in self.actors)
        if steps < self.every * (self.done + 1):
            return False
        self.watch.start()
        self.done = int(steps / self.every)
        newer = self.learner.latest(self.policy.version)
        if newer:
            self.policy.load(newer[1], newer[2], newer[0])
        self.watch.lap("pulling")
        played = play_episodes(self.policy, self.environment, self.episodes, self.seed, self.options)
        returns, lengths = map(list, zip(*played))
        self.result = {"step": steps, "mean": float(np.mean(returns)), "returns": returns, "lengths": lengths}
        self.watch.lap("evaluating")
        return True

    def judged(self) -> tuple[int, np.ndarray, dict]:
        """Version, parameters and statistics of the last policy that was judged."""
        return self.policy.version, self.policy.vector, self.policy.statistics

    def report(self) -> dict:
        result, self.result = self.result, None
        return {"evaluation": result, "seconds": self.watch.drain()}

    def state(self) -> dict:
        return {"done": self.done}

    def restore(self, state: dict) -> None:
        self.done = state["done"]
