"""What is wrong with an environment, before a run is wasted on it: `cavalcade check ENV`, or `cavalcade.check(...)`.

A check is a short run without learning: random legal actions under the same checks as in training. It looks at whether
a seed repeats an episode, how episodes end, what is rewarded, how large numbers are and how fast the environment steps.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from cavalcade import envs, tree
from cavalcade.envs import Environments, random_actions
from cavalcade.errors import BadEnvironment, UserError
from cavalcade.failures import Failure
from cavalcade.networks import image_of
from cavalcade.records import number
from cavalcade.specs import MASK, EnvSpec, Leaf

TRACE = 100  # steps that are compared between two environments with one seed
LARGE = 100.0  # size of values in observations that is far from what networks begin with
FAR = 10.0  # the same for bounds of actions
FAINT = 16.0  # share of the highest declared value below which an image is nearly black


@dataclass(frozen=True)
class Finding:
    """One sentence about an environment."""

    level: str  # ok, warning, error
    about: str  # its topic, in one word
    sentence: str


@dataclass
class Journey:
    """What was seen while random legal actions were taken."""

    observations: list[list[np.ndarray]] = field(default_factory=list)  # arrays of the first TRACE observations
    rewards: list[np.ndarray] = field(default_factory=list)
    lowest: list[float] = field(default_factory=list)  # value of each array
    highest: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # of episodes
    terminated: int = 0  # episodes
    truncated: int = 0
    both: int = 0
    steps: int = 0  # of all environments
    seconds: float = 0.0  # inside the environments
    changes: bool = False  # whether observations differ from the first

    def see(self, observation: tree.Tree) -> None:
        """Take in the observations [N, ...] of one step."""
        leaves = [leaf for name, leaf in tree.named(observation) if name != MASK]
        if not self.observations:
            self.lowest, self.highest = ([np.inf] * len(leaves), [-np.inf] * len(leaves))
        else:
            first = self.observations[0]
            self.changes = self.changes or any(not np.array_equal(a, b) for a, b in zip(first, leaves))
        floats = [leaf.astype(np.float64) for leaf in leaves]  # whole numbers have no infinity to begin with
        self.lowest = [min(low, float(leaf.min(initial=np.inf))) for low, leaf in zip(self.lowest, floats)]
        self.highest = [max(high, float(leaf.max(initial=-np.inf))) for high, leaf in zip(self.highest, floats)]
        if len(self.observations) < TRACE:
            self.observations.append([leaf.copy() for leaf in leaves])

    def same(self, other: "Journey") -> bool:
        """Whether observations and rewards are the same, as far as both journeys have them."""
        seen = zip(self.observations, other.observations)
        return all(np.array_equal(a, b) for ours, theirs in seen for a, b in zip(ours, theirs)) and all(
            np.array_equal(a, b) for a, b in zip(self.rewards, other.rewards)
        )


def check(environment: Any, *, options: dict | None = None, steps: int = 1_000, seed: int = 0) -> list[Finding]:
    """What is found in about `steps` steps of `environment`: an id, a function or an object, as `train` takes."""
    if steps < 1:
        raise UserError(f"steps is {steps}; it has to be at least 1.")
    return Check(environment, options or {}, steps, seed).findings


class Check:
    """Makes an environment, steps it, and collects findings; each method looks at one topic."""

    def __init__(self, environment: Any, options: dict, steps: int, seed: int) -> None:
        self.environment, self.options, self.steps, self.seed = environment, options, steps, seed
        self.count = envs.held(environment) or 1
        self.findings: list[Finding] = []
        pool = self._tried("start", lambda: self._make(seed))
        if pool is None:
            return
        try:
            self._spaces(pool.spec)
            journey = self._tried("steps", lambda: travel(pool, steps, seed))
            for remark in pool.remarks.values():
                self._say("warning", "observations", remark)
            if journey is not None:
                self._observations(pool.spec, journey)
                self._rewards(journey)
                self._endings(journey)
                self._masks(pool)
                self._metrics(pool)
                self._speed(journey)
        finally:
            self._tried("end", pool.close)
        if journey is not None:
            self._seeds()
            self._resume()

    def _make(self, seed: int) -> Environments:
        return envs.make(self.environment, self.count, seed, **self.options)

    def _say(self, level: str, about: str, sentence: str) -> None:
        """Add a finding, unless there is the same already."""
        finding = Finding(level, about, sentence)
        if finding not in self.findings:
            self.findings.append(finding)

    def _tried(self, about: str, attempt: Callable[[], Any]) -> Any:
        """The result of `attempt`; None, and a finding, if the environment fails in it."""
        try:
            return attempt()
        except BadEnvironment as error:
            self._say("error", about, str(error))
        except UserError:
            raise
        except Exception as error:
            self._say("error", about, f"{Failure.of(error).short}.")
        return None

    def _spaces(self, spec: EnvSpec) -> None:
        leaves = [(name, leaf) for name, leaf in tree.named(spec.observation) if name != MASK]
        seen = ", ".join(f"{name} {_described(leaf)}".strip() for name, leaf in leaves)
        self._say("ok", "spaces", f"Observations: {seen}; actions: {_described(spec.action)}.")
        if spec.action.kind != "box":
            return
        low, high = spec.action.bounds
        advice = "policies begin with actions around 0 with a deviation of 1"
        if not (np.isfinite(low) & np.isfinite(high)).all():
            self._say("warning", "actions", f"Some actions have no bounds; {advice}, so give bounds that fit.")
        elif (np.abs([low, high]) > FAR).any() or (low > 0).any() or (high < 0).any() or (high - low < 1 / FAR).any():
            self._say(
                "warning",
                "actions",
                f"Actions go from {number(low.min())} to {number(high.max())}, but {advice}; rescale them to -1 .. 1 "
                "(gymnasium.wrappers.RescaleAction).",
            )

    def _observations(self, spec: EnvSpec, journey: Journey) -> None:
        if not journey.changes:
            self._say("warning", "observations", f"No observation differed from the first in {journey.steps:,} steps.")
        leaves = [(name, leaf) for name, leaf in tree.named(spec.observation) if name != MASK]
        for (name, leaf), low, high in zip(leaves, journey.lowest, journey.highest):
            part = f" of '{name}'" if name else ""
            image = image_of(leaf, spec.frames)
            if image and leaf.dtype == "uint8" and high < max(leaf.high) / FAINT:
                self._say(
                    "warning",
                    "observations",
                    f"Values{part} went from {number(low)} to {number(high)}, but bytes of images are divided by the "
                    f"highest value of their Box, {number(max(leaf.high))}; declare bounds that fit.",
                )
            elif leaf.kind == "box" and not image and max(-low, high) > LARGE:
                self._say(
                    "warning",
                    "observations",
                    f"Values{part} went from {number(low)} to {number(high)}; networks learn best around 1, so use "
                    "--normalise-observations.",
                )
            else:
                self._say("ok", "observations", f"Values{part} went from {number(low)} to {number(high)}.")

    def _rewards(self, journey: Journey) -> None:
        rewards = np.concatenate(journey.rewards)
        low, high, mean = (float(f(rewards)) for f in (np.min, np.max, np.mean))
        if low == high == 0.0:
            self._say(
                "warning", "rewards", f"Every reward was 0 in {journey.steps:,} random steps: hard to learn from."
            )
        else:
            self._say("ok", "rewards", f"From {number(low)} to {number(high)}, {number(mean)} in the mean.")

    def _endings(self, journey: Journey) -> None:
        lengths = journey.lengths
        if not lengths and (limit := self._limit()):
            self._say("ok", "endings", f"No episode ended in {journey.steps:,} steps; its limit is {limit:,}.")
            return
        if not lengths:
            self._say(
                "warning",
                "endings",
                f"No episode ended in {journey.steps:,} steps; if none ever does, no return is ever seen: give it a "
                "limit (--option max_episode_steps=N for an id, gymnasium.wrappers.TimeLimit else).",
            )
            return
        shown = f"{len(lengths)} episodes of {min(lengths):,} to {max(lengths):,} steps"
        counts = f"{journey.terminated} terminated, {journey.truncated} truncated"
        if journey.both:
            self._say(
                "warning",
                "endings",
                f"{journey.both} of {shown} were terminated and truncated at once, which counts as terminated: "
                "truncate only where the task itself would go on.",
            )
        elif len(set(lengths)) == 1 and len(lengths) > 2 and lengths[0] > 2 and not journey.truncated:
            self._say(
                "warning",
                "endings",
                f"All {len(lengths)} episodes were terminated after {lengths[0]:,} steps; if that is a limit of time, "
                "give truncated, or the agent learns that nothing comes after it.",
            )
        else:
            self._say("ok", "endings", f"{shown}: {counts}.")

    def _limit(self) -> int | None:
        """The limit of an episode that Gymnasium knows, in steps (in Atari: frames); None if there is none."""
        found = envs.named(self.environment) if isinstance(self.environment, str) else self.environment
        spec = gym.registry.get(found) if isinstance(found, str) else getattr(found, "spec", None)
        known = {} if spec is None else {"max_episode_steps": spec.max_episode_steps, **spec.kwargs, **self.options}
        return known.get("max_episode_steps") or known.get("max_num_frames_per_episode")

    def _masks(self, pool: Environments) -> None:
        if pool.spec.masked:
            self._say("ok", "masks", f"The '{MASK}' allowed an action in every state.")

    def _metrics(self, pool: Environments) -> None:
        if names := sorted(pool.metrics.drain()):
            self._say("ok", "metrics", f"Numbers in its infos are recorded: {', '.join(f'env/{n}' for n in names)}.")

    def _speed(self, journey: Journey) -> None:
        each = journey.seconds / journey.steps
        self._say("ok", "speed", f"{number(1 / each)} steps/s of one process, {number(each * 1e3)} ms for each.")

    def _seeds(self) -> None:
        """Whether a seed repeats its episodes. Each time in new environments, which remember nothing."""
        seeds = (self.seed, self.seed, self.seed + 1)
        journeys = [self._tried("seeds", partial(self._fresh, seed)) for seed in seeds]
        if any(journey is None for journey in journeys):
            return
        first, again, other = journeys
        if not first.same(again):
            self._say(
                "warning",
                "seeds",
                "The same seed and actions gave another episode, so runs cannot be repeated; draw all that is random "
                "from self.np_random after super().reset(seed=seed).",
            )
        elif first.same(other):
            self._say("ok", "seeds", "All seeds give the same episodes: nothing is random, or the seed is not used.")
        else:
            self._say("ok", "seeds", "A seed repeats its episodes, and another gives others.")

    def _fresh(self, seed: int) -> Journey:
        """A journey in new environments with this seed; its actions are always the same."""
        pool = self._make(seed)
        try:
            return travel(pool, min(self.steps, TRACE), self.seed)
        finally:
            pool.close()

    def _resume(self) -> None:
        """How environments go on after a resume: save some, restore them into new ones."""

        def again() -> str:
            pool = self._make(self.seed)
            travel(pool, min(self.steps, TRACE // 2), self.seed)
            state = pool.state()
            pool.close()
            restored = self._make(self.seed)
            restored.restore(state)
            restored.close()
            return restored.resume

        how = self._tried("resume", again)
        if how == "replayed":
            self._say("ok", "resume", "A resumed run replays its episodes exactly.")
        elif how == "restored":
            self._say("ok", "resume", "A resumed run goes on with its episodes exactly.")
        elif how is not None:
            self._say("ok", "resume", "A resumed run begins new episodes: these cannot be replayed.")


def travel(pool: Environments, steps: int, seed: int) -> Journey:
    """About `steps` steps of all environments together, with random legal actions."""
    journey, random = Journey(), np.random.default_rng(seed)
    observation = pool.reset()
    journey.see(observation)
    while journey.steps < steps:
        action = random_actions(pool.spec, observation, pool.count, random)
        began = time.perf_counter()
        step = pool.step(action)
        journey.seconds += time.perf_counter() - began
        observation = step.observation
        journey.see(observation)
        journey.rewards.append(step.reward)
        journey.lengths += [episode.length for episode in step.episodes]
        both = int((step.terminated & step.truncated).sum())
        journey.both += both
        journey.terminated += int(step.terminated.sum()) - both
        journey.truncated += int(step.truncated.sum()) - both
        journey.steps += pool.count
    return journey


def _described(leaf: Leaf) -> str:
    if leaf.kind == "box":
        return f"{leaf.dtype} {leaf.shape}"
    return f"{leaf.kind.replace('_', ' ')} of {', '.join(str(n) for n in leaf.counts[:4])}"
