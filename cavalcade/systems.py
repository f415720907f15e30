"""Systems: an algorithm under an architecture with the settings of its paper, by name.

`settings` suit small vector observations; `pixels` are the paper's Atari settings and apply where observations are
images.
"""

from dataclasses import dataclass, field
from typing import Any

from cavalcade.errors import UserError, nearest


@dataclass(frozen=True)
class System:
    algorithm: str
    architecture: str
    paper: str
    about: str
    settings: dict[str, Any] = field(default_factory=dict)
    pixels: dict[str, Any] = field(default_factory=dict)


# Mnih 2015, extended data table 1: counts of steps are in agent steps (four frames each), target period in updates
_NATURE = {
    "n_step": 1,
    "double": False,
    "dueling": False,
    "replay_size": 200_000,  # 1,000,000 in the paper
    "replay_start": 20_000,  # 50,000 in the paper
    "batch": 32,
    "update_every": 4,
    "updates_per_draw": 1,
    "anneal": False,
    "target_period": 2_000,  # 10,000 in the paper, with five times the replay
    "epsilon_end": 0.1,
    "epsilon_steps": 250_000,
    "optimiser_name": "rmsprop",
    "learning_rate": 2.5e-4,
    "optimiser_epsilon": 0.01,
    "clip_rewards": True,
}

SYSTEMS = {
    "dqn": System(
        "dqn",
        "sync",
        "Mnih et al. 2015, Human-level control through deep reinforcement learning",
        "Q-learning with replay and a target network; double, dueling and n-step are settings",
        pixels=_NATURE,
    ),
    "a2c": System(
        "a2c",
        "sync",
        "Mnih et al. 2016, Asynchronous methods for deep reinforcement learning",
        "advantage actor-critic in lock step",
        pixels={"unroll": 5, "entropy_cost": 0.01, "clip_rewards": True, "normalise_rewards": False},
    ),
    "ppo": System(
        "ppo",
        "sync",
        "Schulman et al. 2017, Proximal policy optimization algorithms",
        "clipped surrogate, several epochs of minibatches; recurrent with --memory",
        pixels={
            "learning_rate": 2.5e-4,
            "clip": 0.1,
            "entropy_cost": 0.01,
            "clip_rewards": True,
            "epochs": 3,
        },
    ),
}


def find(name: str) -> System:
    if name not in SYSTEMS:
        raise UserError(f"There is no system '{name}'; choose one of {', '.join(SYSTEMS)}.{nearest(name, SYSTEMS)}")
    return SYSTEMS[name]
