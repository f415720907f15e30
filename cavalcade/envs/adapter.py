"""Any Gymnasium vector environment, whatever its autoreset mode, as `Environments` whose steps are `step.Step`.

- NEXT_STEP ends an episode in one step and resets in the next, which ignores its action: that step is not valid.
- SAME_STEP resets at once and hides the final observation in its infos: the adapter makes it the successor again.
- DISABLED never resets: the adapter does, only where an episode ended.

A vector environment whose whole state lies in plain attributes is saved and restored exactly (`attributes.py`). The
state of others cannot be read, so after a restore they begin new episodes from new seeds.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from cavalcade import tree
from cavalcade.envs import attributes, protocol
from cavalcade.envs.batches import as_info, autoreset_mode, final_observations, mask_of_row, replaced, take
from cavalcade.envs.encoding import ActionDecoder, Encoder, random_actions
from cavalcade.envs.fitting import MISTAKES
from cavalcade.envs.inspector import Inspector
from cavalcade.envs.sentinel import Sentinel
from cavalcade.envs.tally import METRICS, Tally
from cavalcade.envs.vector import stream_seed, time_limit
from cavalcade.errors import BadEnvironment, UserError
from cavalcade.failures import EnvironmentFailed
from cavalcade.specs import MASK
from cavalcade.step import FinishedEpisode, Step

TRIED = 16  # steps after the first reset that are made twice, to see whether saved attributes repeat them


class VectorAdapter:
    """A Gymnasium vector environment as `Environments`."""

    def __init__(
        self,
        env: VectorEnv,
        name: str,
        seed: int,
        actor: int = 0,
        reuses_buffers: bool = True,
        borrowed: bool = False,
    ) -> None:
        """`reuses_buffers`: the environment may write into arrays that it returned before, so they are copied.
        `borrowed`: the user made the environment and closes it."""
        self._env, self._name, self._borrowed = env, name, borrowed
        self._mode = autoreset_mode(env, name)
        self._seed = (seed, actor)
        self._resets = 0
        self.count = env.num_envs
        self.restarted = np.zeros(self.count, bool)
        self.info: dict = {}  # of the last reset or step
        self.metrics = Tally()

        self._decoder = ActionDecoder(env.single_action_space)
        self._last_action: np.ndarray = np.zeros(self.count)
        self._episode = np.zeros(self.count, np.int64)
        self._length = np.zeros(self.count, np.int64)
        self._total = np.zeros(self.count, np.float64)
        self._resetting = np.zeros(self.count, bool)  # NEXT_STEP: these ignore the next action and reset
        self._inspected = False  # whether the last step was inspected

        space = env.single_observation_space
        self._inspector = Inspector(name, space, self._place)
        self.remarks = self._inspector.remarks
        raw, self.info = self._reset(seed=self._reset_seed())
        masked = MASK in self.info
        self._encoder = Encoder(name, space, env.single_action_space, masked, self._place, reuses_buffers)
        self.spec = replace(self._encoder.spec, time_limit=time_limit(env))
        self._sentinel = Sentinel(self.spec, self.count, self._place)
        self._observation = self._encode(raw)
        self._sentinel.check(self._observation)
        self._unused_reset = True
        self._saves = attributes.read(env) is not None and self._repeats()
        self.resume = "restored" if self._saves else "restarted"

    def _reset_seed(self) -> int:
        """The seed for a reset of all environments; resets of some have none, because seeding costs ale-py 0.2 s for
        each game, which it loads again. Below 2**30, because vector environments add an index to the seed and some
        keep the sum in a signed 32-bit integer."""
        return stream_seed(*self._seed, self._resets) >> 2

    def reset(self) -> tree.Tree:
        if not self._unused_reset:
            self._resets += 1
            self._episode += 1
            self._length[:], self._total[:], self._resetting[:] = 0, 0.0, False
            self._begin()
        self._unused_reset = False
        return self._observation

    def _begin(self) -> None:
        """Reset all environments."""
        raw, self.info = self._reset(seed=self._reset_seed())
        self._observation = self._encode(raw)
        self._sentinel.check(self._observation)

    def _repeats(self) -> bool:
        """Whether saved attributes repeat `TRIED` steps exactly. Afterwards the environment begins as if untouched."""
        random = np.random.default_rng(0)
        drawn = [random_actions(self.spec, self._observation, self.count, random) for _ in range(TRIED)]
        repeats = attributes.repeats(self._env, [*map(self._decoder.batch, drawn)], self._encoder.batch)
        attributes.seed_spaces(self._env, self._reset_seed())
        self._begin()
        return repeats

    def _reset(self, **how: Any) -> tuple[Any, dict]:
        """The environment's own reset, with what it returns checked and its errors explained."""
        try:
            result = self._env.reset(**how)
        except Exception as error:
            raise self._failed(error, "in reset()") from error
        protocol.check_reset(result, self._name, self._place, 0)
        if "seed" in how:  # else only some environments were reset, and the other rows mean nothing
            self._inspect(result[0])
        return result

    def _act(self, action: np.ndarray) -> tuple:
        """The environment's own step; what it returns is inspected now and then (`inspector.py`)."""
        self._last_action = action
        try:
            result = self._env.step(action)
        except Exception as error:
            raise self._failed(error, f"in step {self._length.max()} of an episode") from error
        self._inspected = self._inspector.due()
        if self._inspected or type(result) is not tuple or len(result) != 5:
            protocol.check_vector_step(result, self.count, self._name, self._place(0))
            self._inspect(result[0])
            self._inspector.wait(int(self._episode.min()))
        return result

    def _encode(self, batch: Any) -> tree.Tree:
        try:
            return self._encoder.batch(batch, self.info)
        except MISTAKES:
            self._inspect(batch)  # raises a sentence on what is wrong with the batch
            raise

    def _inspect(self, batch: Any) -> None:
        self._inspector.check_rows(*uncast(self._env))
        self._inspector.check_batch(batch, range(self.count))

    def _failed(self, error: Exception, moment: str) -> EnvironmentFailed:
        """What to raise from `error`; where a sentence is known that says more, that is raised here. If Gymnasium
        failed to cast observations, the observations themselves say more than its error."""
        if isinstance(error, UserError):
            raise error
        if isinstance(error, MISTAKES):
            self._inspector.check_rows(*uncast(self._env))
        protocol.explain(error, self._name, "one of its environments")
        return EnvironmentFailed.by(error, self._name, moment, int(self._episode.sum()))

    def step(self, action: np.ndarray) -> Step:
        action = self._decoder.batch(action)
        valid = ~self._resetting
        self._length += valid
        raw, raw_reward, raw_terminated, raw_truncated, self.info = self._act(action)
        self._unused_reset = False
        terminated, truncated = np.array(raw_terminated, np.bool_), np.array(raw_truncated, np.bool_)
        ended = terminated | truncated
        reward = np.asarray(raw_reward, np.float64)
        if np.count_nonzero(self._resetting):
            reward = np.where(valid, reward, 0.0)
        self._total += reward
        small_reward = reward.astype(np.float32)
        self._sentinel.check_reward(small_reward)

        any_ended = np.count_nonzero(ended) > 0
        current = next_observation = self._encode(raw)
        if self._mode is AutoresetMode.SAME_STEP and any_ended:
            next_observation = self._with_final_rows(current, ended)
        self._sentinel.check(next_observation, terminated)
        if self.info and (any_ended or METRICS in self.info):
            self.metrics.add_vector_step(self.info, valid, ended, self._mode is AutoresetMode.SAME_STEP)

        episodes, first = self._finish(ended) if any_ended else [], ended
        if self._mode is AutoresetMode.NEXT_STEP:
            first = self._next_step_first(ended)
        elif self._mode is AutoresetMode.DISABLED and any_ended:
            current = self._reset_rows(next_observation, ended)
        if current is not next_observation:
            self._sentinel.check(current)
        self._observation = current
        return Step(
            next_observation=next_observation,
            reward=small_reward,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            observation=current,
            first=first.copy(),
            episodes=episodes,
        )

    def _finish(self, ended: np.ndarray) -> list[FinishedEpisode]:
        """The episodes that ended [N], whose counters begin again."""
        rows = np.flatnonzero(ended)
        told = (rows.tolist(), self._total[rows].tolist(), self._length[rows].tolist())
        episodes = list(map(FinishedEpisode, *told))
        self._episode[rows] += 1
        self._length[rows] = 0
        self._total[rows] = 0.0
        return episodes

    def _next_step_first(self, ended: np.ndarray) -> np.ndarray:
        """NEXT_STEP: where [N] an episode began in this step, which is where one ended in the step before."""
        first, self._resetting = self._resetting, ended
        if np.count_nonzero(first & ended):
            raise BadEnvironment(
                f"The vector environment '{self.spec.environment}' says that it resets in the step after an "
                "episode's end (NEXT_STEP), but ended an episode in that very step; "
                "correct its metadata['autoreset_mode']."
            )
        return first

    def _with_final_rows(self, current: tree.Tree, ended: np.ndarray) -> tree.Tree:
        """SAME_STEP: the true successors [N, ...], those of ended episodes taken out of the infos."""
        final_info = self.info.get("final_info")
        final = final_observations(self.info, self._name)
        rows = np.flatnonzero(ended).tolist()
        if isinstance(final, (dict, tuple)):  # batched like an observation
            rows_of_final = tree.take(self._encoder.batch(final, as_info(final_info)), rows)
        else:  # one entry for each environment, objects or an array
            infos = [mask_of_row(final_info, row) for row in rows]
            finals = [final[row] for row in rows]
            if self._inspected:
                self._inspector.check_rows(finals, rows)
            rows_of_final = self._encoder.stack(finals, infos)
        return replaced(current, rows, rows_of_final)

    def _reset_rows(self, observation: tree.Tree, ended: np.ndarray) -> tree.Tree:
        """DISABLED: begin the next episode where one ended; gives the observations [N, ...] to act on next. In what
        such a reset returns, the rows of the other environments mean nothing."""
        raw, info = self._reset(options={"reset_mask": ended.copy()})
        rows = np.flatnonzero(ended).tolist()
        if self._inspected:
            self._inspector.check_rows(*uncast(self._env))
            self._inspector.check_batch(take(raw, rows), rows)
        return replaced(observation, rows, tree.take(self._encoder.batch(raw, info), rows))

    def _place(self, row: int) -> str:
        """Where environment `row` is, in words for a message."""
        place = f"environment {row}, episode {self._episode[row]}, step {self._length[row]}"
        if self._length[row] and self._decoder.kind == "box" and not np.isfinite(self._last_action[row]).all():
            place += " (the policy's action was not finite either)"
        return place

    def state(self) -> dict:
        kept = attributes.read(self._env) if self._saves else None
        begun = {"resets": self._resets, "episode": self._episode.copy()}
        if kept is None:
            return {"resume": "restarted", **begun}
        return {
            "resume": "restored",
            **begun,
            "length": self._length.copy(),
            "total": self._total.copy(),
            "resetting": self._resetting.copy(),
            "observation": tree.map(np.copy, self._observation),
            "attributes": kept,
        }

    def restore(self, state: dict) -> tree.Tree:
        if state.get("resume") not in ("restored", "restarted") or len(state["episode"]) != self.count:
            raise UserError(
                f"The stored state of '{self.spec.environment}' was made with other environments; "
                f"restore it with the same kind and number of environments (here a vector of {self.count})."
            )
        self._resets = int(state["resets"])
        self._episode = np.array(state["episode"], np.int64)
        self._unused_reset = False
        exact = state["resume"] == "restored" and self._saves and attributes.write(self._env, state["attributes"])
        self.resume = "restored" if exact else "restarted"
        self.restarted[:] = not exact
        if not exact:
            return self.reset()
        self._length, self._total = np.array(state["length"], np.int64), np.array(state["total"], np.float64)
        self._resetting = np.array(state["resetting"], np.bool_)
        self._observation = tree.map(np.array, state["observation"])
        return self._observation

    def render(self) -> np.ndarray | None:
        if self._env.render_mode is None:
            return None
        frames: Any = self._env.render()
        frame = frames[0] if isinstance(frames, (tuple, list)) and frames else frames
        return frame if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        if not self._borrowed:
            self._env.close()


def uncast(env: VectorEnv) -> tuple[list, list[int]]:
    """Observations as they were before Gymnasium's SyncVectorEnv, which keeps them, cast them, and their numbers."""
    kept = getattr(env, "_env_obs", None)
    if not isinstance(kept, (list, tuple)) or len(kept) != env.num_envs:
        return [], []
    rows = [row for row in range(env.num_envs) if kept[row] is not None]  # None: it was not reset yet
    return [kept[row] for row in rows], rows
