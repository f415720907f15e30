"""Any Gymnasium vector environment, whatever its autoreset mode, as the one step record of `vector.Step`.

- NEXT_STEP ends an episode in one step and resets in the next, which ignores its action: that step is not
  valid.
- SAME_STEP resets at once and hides the final observation in its infos: it is put back as the successor.
- DISABLED never resets: the adapter does, only where an episode ended.

A vector environment keeps its random state to itself, so a restored one begins new episodes from new seeds.
"""

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from cavalcade import tree
from cavalcade.envs.encoding import ActionDecoder, Encoder
from cavalcade.envs.sentinel import Sentinel
from cavalcade.envs.vector import Episode, Step, stream_seed
from cavalcade.errors import UserError
from cavalcade.failures import EnvironmentFailed
from cavalcade.specs import MASK

FINAL_KEYS = ("final_obs", "final_observation")  # since Gymnasium 1.1; before


class VectorAdapter:
    def __init__(self, env: VectorEnv, name: str, seed: int, actor: int = 0, reuses_buffers: bool = True) -> None:
        """`reuses_buffers`: the environment may write into arrays it returned before, so they are copied."""
        self._env, self._name = env, name
        self._mode = autoreset_mode(env, name)
        self._seed = (seed, actor)
        self._resets = 0
        self.count = env.num_envs
        self.resume = "restarted"
        self.restarted = np.zeros(self.count, bool)
        self.info: dict = {}  # of the last reset or step

        self._decoder = ActionDecoder(env.single_action_space)
        self._last_action: np.ndarray = np.zeros(self.count)
        self._episode = np.zeros(self.count, np.int64)
        self._length = np.zeros(self.count, np.int64)
        self._total = np.zeros(self.count, np.float64)
        self._resetting = np.zeros(self.count, bool)  # NEXT_STEP: these ignore the coming action

        raw, self.info = self._reset(seed=self._reset_seed())
        self._encoder = Encoder(
            name, env.single_observation_space, env.single_action_space, MASK in self.info, reuses_buffers
        )
        self.spec = self._encoder.spec
        self._sentinel = Sentinel(self.spec)
        self._observation = self._encoder.checked(lambda: self._encoder.batch(raw, self.info))
        self._check_first(self._observation)
        self._unused_reset = True

    def _reset_seed(self) -> int:
        """Only for whole resets: seeding costs ale-py 0.2 s for each game, because it loads the game again.
        Below 2**30: vector environments add the index to it, and some keep it in a signed 32-bit
        integer."""
        return stream_seed(*self._seed, self._resets) >> 2

    def reset(self) -> tree.Tree:
        if not self._unused_reset:
            self._resets += 1
            self._episode += 1
            self._length[:], self._total[:], self._resetting[:] = 0, 0.0, False
            raw, self.info = self._reset(seed=self._reset_seed())
            self._observation = self._encoder.batch(raw, self.info)
            self._check_first(self._observation)
        self._unused_reset = False
        return self._observation

    def _reset(self, **how: Any) -> tuple[Any, dict]:
        try:
            return self._env.reset(**how)
        except UserError:
            raise
        except Exception as error:
            raise self._failed(error, "in reset()") from error

    def _act(self, action: np.ndarray) -> tuple:
        try:
            return self._env.step(action)
        except UserError:
            raise
        except Exception as error:
            raise self._failed(error, f"in step {self._length.max() + 1} of an episode") from error

    def _failed(self, error: Exception, moment: str) -> EnvironmentFailed:
        return EnvironmentFailed.by(error, self._name, moment, int(self._episode.sum()))

    def step(self, action: np.ndarray) -> Step:
        action = self._decoder.batch(action)
        raw, raw_reward, raw_terminated, raw_truncated, self.info = self._act(action)
        self._unused_reset = False
        self._last_action = action
        terminated, truncated = np.array(raw_terminated, np.bool_), np.array(raw_truncated, np.bool_)
        ended = terminated | truncated
        valid = ~self._resetting
        reward = np.where(valid, np.asarray(raw_reward, np.float64), 0.0)
        self._length += valid
        self._total += reward
        small_reward = reward.astype(np.float32)
        self._sentinel.check_reward(small_reward, self._place)

        current = self._encoder.batch(raw, self.info)
        next_observation = current
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            next_observation = self._with_final_rows(current, ended)
        self._sentinel.check_observation(next_observation, self._place)
        self._sentinel.check_mask(next_observation, terminated, self._place)

        episodes = self._finish(ended) if ended.any() else []
        first = ended
        if self._mode is AutoresetMode.NEXT_STEP:
            first = self._next_step_first(ended)
        elif self._mode is AutoresetMode.DISABLED and ended.any():
            current = self._reset_rows(next_observation, ended)
        if current is not next_observation:
            self._check_first(current)
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

    def _finish(self, ended: np.ndarray) -> list[Episode]:
        rows = np.flatnonzero(ended).tolist()
        episodes = [Episode(row, float(self._total[row]), int(self._length[row])) for row in rows]
        self._episode[rows] += 1
        self._length[rows] = 0
        self._total[rows] = 0.0
        return episodes

    def _next_step_first(self, ended: np.ndarray) -> np.ndarray:
        first, self._resetting = self._resetting, ended
        if (first & ended).any():
            raise UserError(
                f"The vector environment '{self.spec.environment}' says that it resets in the step after an "
                "episode's end (NEXT_STEP), but ended an episode in that very step; "
                "correct its metadata['autoreset_mode']."
            )
        return first

    def _with_final_rows(self, current: tree.Tree, ended: np.ndarray) -> tree.Tree:
        """SAME_STEP: the true successors, taken out of the infos."""
        final_info = self.info.get("final_info")
        final = next((self.info[key] for key in FINAL_KEYS if key in self.info), None)
        if final is None:
            raise UserError(
                f"The vector environment '{self.spec.environment}' resets in the step that ends an episode "
                "(SAME_STEP) but gives no info['final_obs']; make it give the final observations there."
            )
        rows = np.flatnonzero(ended).tolist()
        if isinstance(final, (dict, tuple)):  # batched like an observation
            rows_of_final = tree.take(self._encoder.batch(final, _as_info(final_info)), rows)
        else:  # one entry for each environment, objects or an array
            infos = [_row_of_info(final_info, row) for row in rows]
            rows_of_final = self._encoder.stack([final[row] for row in rows], infos)
        return _replace_rows(current, rows, rows_of_final)

    def _reset_rows(self, observation: tree.Tree, ended: np.ndarray) -> tree.Tree:
        """DISABLED: begin the next episodes where one ended; the other rows of such a reset mean nothing."""
        raw, info = self._reset(options={"reset_mask": ended.copy()})
        rows = np.flatnonzero(ended).tolist()
        return _replace_rows(observation, rows, tree.take(self._encoder.batch(raw, info), rows))

    def _check_first(self, observation: tree.Tree) -> None:
        self._sentinel.check_observation(observation, self._place)
        self._sentinel.check_mask(observation, None, self._place)

    def _place(self, row: int) -> str:
        place = f"environment {row}, episode {self._episode[row]}, step {self._length[row]}"
        if self._length[row] and self._decoder.kind == "box" and not np.isfinite(self._last_action[row]).all():
            place += " (the policy's action was not finite either)"
        return place

    def state(self) -> dict:
        return {"resume": "restarted", "resets": self._resets, "episode": self._episode.copy()}

    def restore(self, state: dict) -> tree.Tree:
        if state.get("resume") != "restarted" or len(state["episode"]) != self.count:
            raise UserError(
                f"The stored state of '{self.spec.environment}' was made with other environments; "
                f"restore it with the same kind and number of environments (here a vector of {self.count})."
            )
        self._resets = int(state["resets"])
        self._episode = np.array(state["episode"], np.int64)
        self._unused_reset = False
        self.restarted[:] = True
        return self.reset()

    def render(self) -> np.ndarray | None:
        if self._env.render_mode is None:
            return None
        frames: Any = self._env.render()
        frame = frames[0] if isinstance(frames, (tuple, list)) and frames else frames
        return frame if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        self._env.close()


def autoreset_mode(env: VectorEnv, name: str) -> AutoresetMode:
    mode = getattr(env.unwrapped, "autoreset_mode", None)
    # `VectorEnv.metadata` is one dict for all classes without their own, and some environments write their
    # mode into it: what it says may be another environment's.
    if mode is None and env.metadata is not VectorEnv.metadata:
        mode = env.metadata.get("autoreset_mode")
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError:
        known = ", ".join(f"AutoresetMode.{known.name}" for known in AutoresetMode)
        raise UserError(
            f"The vector environment '{name}' has the autoreset mode {mode!r} in its metadata; "
            f"set metadata['autoreset_mode'] to one of {known}."
        ) from None


def _replace_rows(observation: tree.Tree, rows: list[int], values: tree.Tree) -> tree.Tree:
    def replace(array: np.ndarray, new: np.ndarray) -> np.ndarray:
        copy = array.copy()
        copy[rows] = new
        return copy

    return tree.map(replace, observation, values)


def _as_info(info: Any) -> dict:
    return info if isinstance(info, dict) else {}


def _row_of_info(info: Any, row: int) -> dict:
    """Only the mask of one environment is ever read from its final info."""
    if isinstance(info, dict):
        return {MASK: info[MASK][row]} if MASK in info else {}
    return _as_info(info[row]) if info is not None else {}  # an array of dicts, before Gymnasium 1.0
