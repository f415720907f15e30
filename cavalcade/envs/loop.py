"""Single environments stepped in a plain loop, whose running episodes can be replayed exactly.

The loop owns the resets: where an episode ends the next one begins in the same step, and both the final and the first
observation are kept. Every episode begins from a seed of its own, so the number of its episode and the actions taken in
it describe an environment completely: saving needs no access to its insides, and works for every environment that is
deterministic given its seed. Whether it is, is seen by comparing observations after a replay.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from cavalcade import tree
from cavalcade.envs.encoding import ActionDecoder, Encoder
from cavalcade.envs.fitting import MISTAKES
from cavalcade.envs.inspector import Inspector
from cavalcade.envs.protocol import explain
from cavalcade.envs.reading import readable, unread
from cavalcade.envs.sentinel import Sentinel
from cavalcade.envs.tally import Tally
from cavalcade.envs.vector import stream_seed, time_limit
from cavalcade.errors import BadEnvironment, UserError
from cavalcade.failures import EnvironmentFailed
from cavalcade.specs import MASK, Leaf
from cavalcade.step import FinishedEpisode, Step


class EnvironmentLoop:
    """Single Gymnasium environments as `Environments`."""

    def __init__(self, envs: Sequence[gym.Env], name: str, seed: int, actor: int = 0, borrowed: bool = False) -> None:
        """`borrowed`: the user made the environments and closes them."""
        self._envs, self._name, self._borrowed = list(envs), name, borrowed
        self._steppers = [env.step for env in envs]  # bound once, because the loop in `step` is the hot path
        self._seed = (seed, actor)
        self.count = len(envs)
        self.resume = "replayed"
        self.restarted = np.zeros(self.count, bool)
        self.metrics = Tally()

        head = envs[0]
        for env in envs[1:]:
            if env.observation_space != head.observation_space or env.action_space != head.action_space:
                raise BadEnvironment(f"The copies of '{name}' have different spaces; make them all the same.")
        self._decoder = ActionDecoder(head.action_space)
        space = readable(head)
        self._inspector = Inspector(name, space, self._place)
        self._inspector.remarks |= unread(head.observation_space)
        self._episode = [-1] * self.count  # the number of the running episode of each environment
        self._taken: list[list] = [[] for _ in envs]  # the actions of the running episode
        self._total = np.zeros(self.count, np.float64)
        self._all_false, self._all_true = np.zeros(self.count, bool), np.ones(self.count, bool)

        # Whether infos hold a mask is known only after a reset, so the first episodes begin here; the first
        # call of `reset` hands them out.
        started = [self._begin(index) for index in range(self.count)]
        rows, infos = zip(*started)
        self._encoder = Encoder(name, space, head.action_space, MASK in infos[0], self._place)
        self.spec = replace(self._encoder.spec, time_limit=time_limit(head))
        if isinstance(head, gym.wrappers.FrameStackObservation) and isinstance(self.spec.observation, Leaf):
            self.spec = replace(self.spec, frames=head.stack_size)
        self._sentinel = Sentinel(self.spec, self.count, self._place)
        self._observation = self._encode(rows, infos)
        self._check_first(self._observation)
        self._unused_reset = True

    @property
    def remarks(self) -> dict[str, str]:
        return self._inspector.remarks

    def reset(self) -> tree.Tree:
        if not self._unused_reset:
            rows, infos = zip(*[self._begin(index) for index in range(self.count)])
            self._observation = self._encode(rows, infos)
            self._check_first(self._observation)
        self._unused_reset = False
        return self._observation

    def step(self, action: np.ndarray) -> Step:
        actions = self._decoder.rows(action)
        if len(actions) != self.count:
            raise ValueError(f"{len(actions)} actions for {self.count} environments")
        # An environment may change an array action in place, so the history keeps a copy.
        kept = actions if self._decoder.kind == "discrete" else [one.copy() for one in actions]
        results: list[tuple] = []
        try:
            for step, one, taken, keep in zip(self._steppers, actions, self._taken, kept):
                taken.append(keep)
                results.append(step(one))
        except UserError:
            raise
        except Exception as error:
            index = len(results)
            explain(error, self._name, self._place(index))
            lengths = [len(taken) for taken in self._taken]
            raise self._failed(error, index, f"in step {lengths[index]} of an episode", lengths) from error
        try:
            rows, rewards, terminated, truncated, infos = zip(*results)
            next_observation = self._encoder.stack(rows, infos)
            reward = np.array(rewards, np.float64).reshape(self.count)
            any_ended = any(terminated) or any(truncated)
        except MISTAKES:
            self._inspector.check_steps(results)  # raises a sentence on what is wrong with them
            raise
        if self._inspector.due():
            self._inspector.check_steps(results)
            self._inspector.wait(min(self._episode))
        record = Step(
            next_observation=next_observation,
            reward=reward.astype(np.float32),
            terminated=np.array(terminated, np.bool_) if any_ended else self._all_false.copy(),
            truncated=np.array(truncated, np.bool_) if any_ended else self._all_false.copy(),
            valid=self._all_true.copy(),
            observation=next_observation,
            first=self._all_false.copy(),
            episodes=[],
        )
        self._sentinel.check_observation(next_observation)
        self._sentinel.check_reward(record.reward)
        self._sentinel.check_mask(next_observation, record.terminated)
        self._total += reward
        self._unused_reset = False
        if any(infos):
            self.metrics.add_steps(infos)
        if any_ended:
            record = self._begin_ended(record, list(rows), list(infos))
        self._observation = record.observation
        return record

    def _begin_ended(self, record: Step, rows: list, infos: list) -> Step:
        """The same step, with the next episode begun wherever one ended."""
        ended = np.flatnonzero(record.terminated | record.truncated).tolist()
        for index in ended:
            record.episodes.append(FinishedEpisode(index, float(self._total[index]), len(self._taken[index])))
            self.metrics.add_end(infos[index])
            rows[index], infos[index] = self._begin(index)
        record.first[ended] = True
        observation = self._encode(rows, infos)
        self._check_first(observation)
        return record._replace(observation=observation)

    def _encode(self, rows: Sequence[Any], infos: Sequence[dict]) -> tree.Tree:
        """Observations of all environments as [N, ...]; if they do not fit their space, a sentence is raised."""
        try:
            return self._encoder.stack(rows, infos)
        except MISTAKES:
            self._inspector.check_rows(rows, range(len(rows)))
            raise

    def _begin(self, index: int, episode: int | None = None) -> tuple[Any, dict]:
        """Begin an episode, the next one or the one with this number, in one environment; its observation and info."""
        episode = self._episode[index] + 1 if episode is None else episode
        self._episode[index] = episode
        self._taken[index] = []
        self._total[index] = 0.0
        try:
            result = self._envs[index].reset(seed=stream_seed(*self._seed, index, episode))
        except UserError:
            raise
        except Exception as error:
            explain(error, self._name, self._place(index))
            moment = "in reset() after an episode" if episode else "in its first reset()"
            raise self._failed(error, index, moment, self._episode) from error
        self._inspector.check_reset(result, index, episode)
        return result

    def _failed(self, error: Exception, index: int, moment: str, reached: list[int]) -> EnvironmentFailed:
        """The error for an environment that raised. `reached`: how far each environment has come, in episodes for a
        failed reset and in steps for a failed step: whether another one has passed that place."""
        passed = any(far >= reached[index] for other, far in enumerate(reached) if other != index)
        finished = sum(episode for episode in self._episode if episode > 0)
        return EnvironmentFailed.by(error, self._name, moment, finished, passed)

    def _check_first(self, observation: tree.Tree) -> None:
        self._sentinel.check_observation(observation)
        self._sentinel.check_mask(observation, None)

    def _place(self, index: int) -> str:
        """Where environment `index` is, in words for a message."""
        taken = self._taken[index]
        place = f"environment {index}, episode {self._episode[index]}, step {len(taken)}"
        if taken and self._decoder.kind == "box" and not np.isfinite(taken[-1]).all():
            place += " (the policy's action was not finite either)"
        return place

    def state(self) -> dict:
        """The running episodes: their numbers, and their actions as the environments got them, one after the other."""
        taken = [one for actions in self._taken for one in actions]
        shape = (len(taken), *self.spec.action.shape)
        return {
            "resume": "replayed",
            "episode": np.array(self._episode, np.int64),
            "length": np.array([len(actions) for actions in self._taken], np.int64),
            "total": self._total.copy(),
            "actions": np.array(taken, self._decoder.dtype).reshape(shape),
            "observation": tree.map(np.copy, self._observation),
        }

    def restore(self, state: dict) -> tree.Tree:
        """Replay the running episodes; where an environment does not repeat itself, begin the next episode."""
        if state.get("resume") != "replayed" or len(state["episode"]) != self.count:
            raise UserError(
                f"The stored state of '{self.spec.environment}' was made with other environments; "
                f"restore it with the same kind and number of environments (here {self.count} single ones)."
            )
        stored = tree.map(np.asarray, state["observation"])
        ends = np.cumsum(state["length"])
        actions = np.split(np.asarray(state["actions"]), ends[:-1])
        rows, infos, self.restarted = [], [], np.zeros(self.count, bool)
        for index in range(self.count):
            row, info = self._replay(index, int(state["episode"][index]), actions[index])
            same = row is not None and self._total[index] == state["total"][index]
            if same:
                again = tree.leaves(self._encoder.stack([row], [info]))
                expected = tree.leaves(tree.take(stored, [index]))
                same = all(np.array_equal(a, b) for a, b in zip(again, expected, strict=True))
            if not same:
                row, info = self._begin(index, int(state["episode"][index]) + 1)
                self.restarted[index] = True
            rows.append(row)
            infos.append(info)
        self.resume = "restarted" if self.restarted.any() else "replayed"
        self._observation = self._encode(rows, infos)
        self._check_first(self._observation)
        self._unused_reset = False
        return self._observation

    def _replay(self, index: int, episode: int, actions: np.ndarray) -> tuple[Any, dict]:
        """The last observation and info of a replayed episode; (None, {}) if it ended or failed this time."""
        row, info = self._begin(index, episode)
        ones = actions.tolist() if self._decoder.kind == "discrete" else list(actions)
        try:
            for one in ones:
                self._taken[index].append(one if type(one) is int else one.copy())
                row, reward, terminated, truncated, info = self._steppers[index](one)
                self._total[index] += float(reward)
                if terminated or truncated:
                    return None, {}
        except Exception:  # an action that was legal then may be illegal in an episode that differs
            return None, {}
        return row, info

    def render(self) -> np.ndarray | None:
        if self._envs[0].render_mode is None:
            return None
        try:
            frame: Any = self._envs[0].render()
        except Exception as error:
            raise EnvironmentFailed.by(error, self._name, "when it drew itself") from error
        return frame if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        for env in () if self._borrowed else self._envs:
            env.close()
