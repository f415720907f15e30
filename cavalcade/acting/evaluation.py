"""Judging a policy: whole episodes on fixed seeds that training never uses, greedy or with the noise of training."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cavalcade import envs
from cavalcade.acting.noise import NoiseStream
from cavalcade.acting.policy import Policy, check_same_spaces
from cavalcade.algorithms import Clock
from cavalcade.envs import Environments
from cavalcade.programs import Stopwatch
from cavalcade.tree import Tree

STREAM = 1_000_000  # actor number of the evaluation seeds, far from any training actor's
AT_ONCE = 32  # environments stepped together
END = Clock(steps=1 << 62)  # later than the end of any schedule of exploration

Progress = Callable[[int, int], None]  # called with the episodes that have ended and the environment steps so far


def noise_of(policy: Policy, count: int, seed: int, sampled: bool) -> Callable[[np.ndarray], Tree | None]:
    """A function that gives the noise for one step of `count` environments, of which `first` [count] begin an episode.
    `sampled`: as in training, at the end of its schedules: actor-critics draw from their policy, DQN acts at random as
    often as its last epsilon says (on a ladder, each environment as often as its own epsilon). Otherwise the function
    gives None: acting is greedy."""
    noise = NoiseStream(policy.algorithm, policy.model.spec, np.random.default_rng((seed, 5)), count)
    return lambda first: noise.draw(END, first) if sampled else None


def environments(environment: Any, episodes: int, seed: int, options: dict) -> Environments:
    """Environments for an evaluation: one for each episode, at most `AT_ONCE`."""
    return envs.make(environment, min(episodes, AT_ONCE), seed, STREAM, **options)


def play_episodes(
    policy: Policy,
    pool: Environments,
    episodes: int,
    seed: int,
    sampled: bool = False,
    progress: Progress | None = None,
) -> list[tuple[float, int]]:
    """Play whole episodes and close the environments; gives return and length (steps) of each episode. Every
    environment plays a fixed share: to take whichever episodes end first would favour short ones."""
    count = pool.count
    shares = [episodes // count + (i < episodes % count) for i in range(count)]
    try:
        check_same_spaces(policy.model.spec, pool.spec)
        obs, first = pool.reset(), np.ones(count, np.bool_)
        carry, noise = policy.model.carry(count), noise_of(policy, count, seed, sampled)
        ended: list[list[tuple[float, int]]] = [[] for _ in range(count)]
        steps = 0
        while any(len(got) < share for got, share in zip(ended, shares)):
            action, _, carry = policy.act(obs, carry, first, noise(first))
            step = pool.step(action)
            obs, first, steps = step.observation, step.first, steps + count
            for episode in step.episodes:
                ended[episode.environment].append((episode.total, episode.length))
            if progress:
                progress(sum(min(len(got), share) for got, share in zip(ended, shares)), steps)
        return [episode for got, share in zip(ended, shares) for episode in got[:share]]
    finally:
        pool.close()


def summary(returns: list[float], seed: int = 0) -> dict[str, float]:
    """Mean, median, standard deviation, range and a 95 % bootstrap interval of the mean."""
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
    """Worker: judges the newest params each time all actors together have done another `every` environment steps."""

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
        sampled: bool = False,
        incarnation: int = 0,
    ):
        """`every`: environment steps between two evaluations. `episodes`: of each evaluation. `incarnation` (how often
        this evaluator was built before) is ignored: every evaluation plays the same episodes."""
        self.policy, self.learner, self.actors = policy(), learner, actors
        self.environment, self.options, self.every = environment, options, every
        self.episodes, self.seed, self.sampled = episodes, seed, sampled
        self.at = 0  # environment steps of all actors at the last evaluation
        self.result: dict | None = None  # the last evaluation, until it is reported
        self.watch = Stopwatch()

    def step(self) -> bool:
        steps = sum(actor.steps for actor in self.actors)
        if steps < self.every * (int(self.at / self.every) + 1):
            return False
        self.watch.start()
        self.at = steps
        newer = self.learner.latest(self.policy.version)
        if newer:
            self.policy.load(newer[1], newer[2], newer[0])
        self.watch.lap("pulling")
        pool = environments(self.environment, self.episodes, self.seed, self.options)
        played = play_episodes(self.policy, pool, self.episodes, self.seed, self.sampled)
        returns, lengths = map(list, zip(*played))
        self.result = {"step": steps, "mean": float(np.mean(returns)), "returns": returns, "lengths": lengths}
        self.watch.lap("evaluating")
        return True

    def judged(self) -> tuple[int, np.ndarray, dict]:
        """Version, params [size] and statistics of the policy that was judged last."""
        return self.policy.version, self.policy.vector, self.policy.statistics

    def report(self) -> dict:
        result, self.result = self.result, None
        return {"evaluation": result, "seconds": self.watch.drain()}

    def state(self) -> dict:
        return {"at": self.at}

    def restore(self, state: dict) -> None:
        self.at = state["at"]
