"""MinAtar's games (Young and Tian 2019), with three things mended that its own class of environments has wrong.

An episode may repeat the last action of the one before (sticky actions), so it could not be begun again from its seed;
some games need not ever end, so a policy that idles could not be judged; and pictures are ten pixels wide.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from minatar import gym as minatar_gym

LIMIT = 5_000  # steps of an episode, twice those of Freeway, the only game with a limit of its own
SCALE = 16  # pixels of a picture for each of the game


class Game(minatar_gym.BaseEnv):
    """One game, by MinAtar's own name for it; options are MinAtar's (sticky_action_prob, difficulty_ramping)."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        self.game.last_action = 0
        return super().reset(seed=seed, options=options)

    def render(self) -> Any:
        picture = super().render()
        if self.render_mode != "rgb_array":
            return picture
        return np.kron((255 * picture).astype(np.uint8), np.ones((SCALE, SCALE, 1), np.uint8))


def register() -> None:
    """Let MinAtar register its ids, and have them make `Game` with the limit."""
    minatar_gym.register_envs()
    for spec in gym.registry.values():
        if spec.entry_point == "minatar.gym:BaseEnv":
            spec.entry_point, spec.max_episode_steps = f"{__name__}:Game", LIMIT
