"""Atari games through ale-py's own vector environment: preprocessing in C++ threads, nothing to wrap in Python.

The preprocessing is that of the DQN paper: grey 84x84 frames, four stacked (channels first, uint8), every action
repeated four times with a maximum over the last two frames, up to 30 no-ops at the start, FIRE pressed where a game
waits for it, no sticky actions. Rewards stay raw: the learner clips them, otherwise scores would be lost.

Of ale-py's two ways to end an episode with a life, `episodic_life=True` restarts the game, so the agent never sees a
second life. `life_loss_info=True` is that of the DQN paper: a lost life is a terminal state for learning while the game
goes on. It is computed here, from the number of lives, because ale-py gives a wrong final observation for it (0.12,
same-step). A `FinishedEpisode` still means a whole game.
"""

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from cavalcade.envs.adapter import VectorAdapter
from cavalcade.errors import UserError, nearest
from cavalcade.step import Step
from cavalcade.tree import Tree

PREPROCESSING: dict[str, Any] = {
    "img_height": 84,
    "img_width": 84,
    "grayscale": True,
    "stack_num": 4,
    "frameskip": 4,
    "maxpool": True,
    "noop_max": 30,
    "use_fire_reset": True,
    "repeat_action_probability": 0.0,
    "reward_clipping": False,
}


class AtariEnvironments(VectorAdapter):
    """`count` copies of one Atari game. `life_loss_info`: a lost life is terminal; `options` are ale-py's."""

    def __init__(
        self,
        game_id: str,
        count: int,
        seed: int,
        actor: int = 0,
        life_loss_info: bool = False,
        **options: Any,
    ) -> None:
        self._life_loss_ends = life_loss_info
        env = _vector_env(game_id, count, options)
        super().__init__(env, game_id, seed, actor, reuses_buffers=False)  # ale-py returns new arrays
        chosen = {**PREPROCESSING, **options}
        self.spec = dataclasses.replace(self.spec, frames=chosen["stack_num"], frame_skip=chosen["frameskip"])
        self._lives = self.info["lives"]

    def reset(self) -> Tree:
        observation = super().reset()
        self._lives = self.info["lives"]
        return observation

    def step(self, action: np.ndarray) -> Step:
        step = super().step(action)
        if self._life_loss_ends:
            lives, before = self.info["lives"], self._lives
            self._lives = lives
            lost = (lives < before) & ~(step.terminated | step.truncated)
            if lost.any():
                step = step._replace(terminated=step.terminated | lost, first=step.first | lost)
        return step

    def render(self) -> np.ndarray | None:
        """The newest frame that the agent sees: the vector environment gives no other picture."""
        frame = self._observation[0, -1]
        return np.repeat(frame[..., None], 3, axis=-1) if frame.ndim == 2 else frame


def _vector_env(game_id: str, count: int, options: dict[str, Any]) -> gym.vector.VectorEnv:
    """ale-py's vector environment of this game, with `PREPROCESSING` as far as `options` do not change it."""
    try:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise UserError(
            f"The environment '{game_id}' needs a recent ale-py; run: pip install 'cavalcade[atari]'."
        ) from error
    gym.register_envs(ale_py)
    if game_id not in gym.registry:
        games = [known for known in gym.registry if known.startswith("ALE/")]
        raise UserError(f"There is no Atari game '{game_id}'.{nearest(game_id, games)}")

    class PrivateMetadata(AtariVectorEnv):
        metadata: dict[str, Any] = {}  # ale-py writes the mode into the dict shared by all vector environments

    registered = gym.spec(game_id).kwargs
    settings = {
        **{key: registered[key] for key in ("full_action_space", "max_num_frames_per_episode")},
        **PREPROCESSING,
        **options,
    }
    try:
        return PrivateMetadata(registered["game"], count, autoreset_mode=AutoresetMode.SAME_STEP, **settings)
    except TypeError as error:
        raise UserError(f"The options {sorted(options)} do not suit '{game_id}': {error}.") from error
