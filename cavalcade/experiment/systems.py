"""Systems: an algorithm under an architecture with the settings of its paper, by name.

`settings` suit small vector observations; `pixels` are the paper's Atari settings and apply where observations are
images.
"""

from dataclasses import dataclass, field
from typing import Any

from cavalcade.errors import UserError, nearest


@dataclass(frozen=True)
class System:
    """What `cavalcade train NAME` runs."""

    algorithm: str  # name in `ALGORITHMS`
    architecture: str  # name in `ARCHITECTURES`
    paper: str
    about: str  # one line for a person
    settings: dict[str, Any] = field(default_factory=dict)
    pixels: dict[str, Any] = field(default_factory=dict)


# Mnih 2015, extended data table 1. Counts of steps are in environment steps (four frames each), the target period in
# updates.
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
    "optimiser_name": "centred-rmsprop",
    "learning_rate": 2.5e-4,
    "optimiser_epsilon": 0.01,
    "clip_rewards": True,
}

# Atoms of Bellemare 2017; rates and epsilons are those usual for C51 and QR-DQN, not checked against the papers. All
# else is the Nature paper's.
_C51_PIXELS = {
    **_NATURE,
    "value_low": -10.0,
    "value_high": 10.0,
    "optimiser_name": "adam",
    "optimiser_epsilon": 0.01 / 32,
    "epsilon_end": 0.01,
}
_QR_PIXELS = {**_NATURE, "optimiser_name": "adam", "learning_rate": 5e-5, "optimiser_epsilon": 0.01 / 32}
_QR_PIXELS |= {"epsilon_end": 0.01}

# Nair 2015, section 4: the settings of the Nature paper, with AdaGrad. The paper names no rate; this one is not tuned.
_GORILA_PIXELS = {**_NATURE, "optimiser_name": "adagrad", "learning_rate": 1e-3, "optimiser_epsilon": 1e-10}

# Horgan 2018, appendix C, in environment steps (four frames each).
_APEX_PIXELS = {
    "replay_size": 200_000,  # 2,000,000 in the paper, which take 15 GB
    "replay_start": 50_000,
    "batch": 512,
    "update_every": 640,  # the paper's learner drew 9.7K transitions a second while 12.5K came in
    "updates_per_draw": 1,
    "target_period": 2_500,
    "pull_every": 100,  # 400 frames
    "anneal": False,
    "optimiser_name": "centred-rmsprop",
    "learning_rate": 2.5e-4 / 4,
    "optimiser_epsilon": 1.5e-7,
    "max_gradient_norm": 40.0,
    "clip_rewards": True,
}

# Mnih 2016, section 8: n-step returns with t_max = 5 and shared RMSProp.
_A3C_PIXELS = {
    "discount": 0.99,
    "gae_lambda": 1.0,
    "unroll": 5,
    "optimiser_name": "rmsprop",
    "learning_rate": 7e-4,
    "entropy_cost": 0.01,
    "clip_rewards": True,
    "normalise_rewards": False,
}

# Schulman 2017, table 5, with 8 environments.
_PPO_PIXELS = {
    "discount": 0.99,
    "unroll": 128,
    "epochs": 3,
    "minibatches_per_epoch": 4,
    "learning_rate": 2.5e-4,
    "clip": 0.1,
    "entropy_cost": 0.01,
    "clip_rewards": True,
}

# Espeholt 2018, table G.1. In the paper a lost life ends an episode: --option life_loss_info=true. Its deep network is
# --convolution impala, on a CPU twelve times slower than the network chosen here, which is about its shallow one.
_IMPALA_PIXELS = {
    "discount": 0.99,
    "gae_lambda": 1.0,
    "unroll": 20,
    "batch": 32,
    "value_cost": 0.5,
    "entropy_cost": 0.01,
    "summed": True,
    "optimiser_name": "rmsprop",
    "learning_rate": 6e-4,
    "optimiser_epsilon": 0.01,
    "max_gradient_norm": 40.0,
    "clip_rewards": True,
    "normalise_rewards": False,
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
        pixels=_A3C_PIXELS,
    ),
    "ppo": System(
        "ppo",
        "sync",
        "Schulman et al. 2017, Proximal policy optimization algorithms",
        "clipped surrogate, several epochs of minibatches; recurrent with --memory",
        pixels=_PPO_PIXELS,
    ),
    "apex-dqn": System(
        "dqn",
        "apex",
        "Horgan et al. 2018, Distributed prioritized experience replay",
        "double dueling n-step Q-learning; many actors, a ladder of epsilons, priorities from the actors",
        settings={
            "priority_exponent": 0.6,
            "actor_priorities": True,
            "trim_every": 100,
            "tolerance": 0.1,
            "flush": 50,
            "pull_every": 25,
            "epsilon_ladder": True,
        },
        pixels=_APEX_PIXELS,
    ),
    "impala": System(
        "impala",
        "impala",
        "Espeholt et al. 2018, IMPALA: scalable distributed deep-RL with importance weighted actor-learners",
        "actor-critic behind a queue of unrolls, corrected by V-trace; a share of replay with --replay-share",
        pixels=_IMPALA_PIXELS,
    ),
}

SYSTEMS |= {
    "gorila-dqn": System(
        "dqn",
        "gorila",
        "Nair et al. 2015, Massively parallel methods for deep reinforcement learning",
        "bundles of actor, replay and learner behind a parameter server in slices; global replay: --experience shared",
        pixels=_GORILA_PIXELS,
    ),
    "a3c": System(
        "a2c",
        "a3c",
        "Mnih et al. 2016, Asynchronous methods for deep reinforcement learning",
        "workers change shared parameters without a lock; across machines: --updates parameter-server",
        settings={"optimiser_name": "rmsprop", "learning_rate": 7e-4, "optimiser_epsilon": 1e-5},
        pixels=_A3C_PIXELS,
    ),
    "ga3c": System(
        "a2c",
        "ga3c",
        "Babaeizadeh et al. 2017, Reinforcement learning through asynchronous advantage actor-critic on a GPU",
        "predictors answer many agents together, a training queue feeds trainers; adjusted with --adjust-every",
        settings={"queue_batches": 2, "log_epsilon": 1e-6},
        pixels=_A3C_PIXELS,
    ),
    "dppo": System(
        "ppo",
        "dppo",
        "Heess et al. 2017, Emergence of locomotion behaviours in rich environments",
        "workers average their gradients at every update; the slowest may be left out (--stragglers)",
        pixels=_PPO_PIXELS,
    ),
    "seed-impala": System(
        "impala",
        "seed",
        "Espeholt et al. 2020, SEED RL: scalable and efficient deep-RL with accelerated central inference",
        "V-trace with central acting beside the learner",
        pixels=_IMPALA_PIXELS,
    ),
    "paac": System(
        "a2c",
        "paac",
        "Clemente et al. 2017, Efficient parallel methods for deep reinforcement learning",
        "advantage actor-critic in lock step, one policy for all environment workers",
        pixels=_A3C_PIXELS,
    ),
}

SYSTEMS |= {
    "c51": System(
        "dqn",
        "sync",
        "Bellemare et al. 2017, A distributional perspective on reinforcement learning",
        "dqn with distributions of returns on atoms",
        settings={"value": "c51"},
        pixels=_C51_PIXELS,
    ),
    "qr-dqn": System(
        "dqn",
        "sync",
        "Dabney et al. 2018, Distributional reinforcement learning with quantile regression",
        "dqn with distributions of returns as quantiles",
        settings={"value": "quantiles"},
        pixels=_QR_PIXELS,
    ),
}

# Acme's D4PG, MPO and DMPO (Hoffman 2020), except for the rate of learning and the networks, which are ours.
_ACME = {"n_step": 5, "target_period": 100, "target_mix": 1.0, "layer_norm": True, "activation": "elu"}

SYSTEMS |= {
    "ddpg": System(
        "ddpg",
        "sync",
        "Lillicrap et al. 2016, Continuous control with deep reinforcement learning",
        "a deterministic policy that climbs the gradient of its critic",
    ),
    "td3": System(
        "ddpg",
        "sync",
        "Fujimoto et al. 2018, Addressing function approximation error in actor-critic methods",
        "ddpg with twin critics, a delayed policy and noise on the target's actions",
        settings={"twin": True, "policy_every": 2, "smoothing": 0.2},
    ),
    "d4pg": System(
        "ddpg",
        "sync",
        "Barth-Maron et al. 2018, Distributed distributional deterministic policy gradients",
        "ddpg with distributions of returns over n steps; distributed with --runtime process --actors N",
        settings={**_ACME, "atoms": 51, "exploration_noise": 0.3, "learning_rate": 3e-4},
    ),
    "sac": System(
        "sac",
        "sync",
        "Haarnoja et al. 2018, Soft actor-critic algorithms and applications",
        "a random policy, rewarded for its entropy; for Discrete actions too",
    ),
    "mpo": System(
        "mpo",
        "sync",
        "Abdolmaleki et al. 2018, Maximum a posteriori policy optimisation",
        "sampled actions are weighted by their values; the policy follows within bounds on its KL",
    ),
    "dmpo": System(
        "mpo",
        "sync",
        "Hoffman et al. 2020, Acme: a research framework for distributed reinforcement learning",
        "mpo with a critic that gives distributions of returns",
        settings={"atoms": 51},
    ),
    # Horgan 2018, appendix D, with networks of its sizes. The paper's replay holds 1,000,000 transitions.
    "apex-dpg": System(
        "ddpg",
        "apex",
        "Horgan et al. 2018, Distributed prioritized experience replay",
        "ddpg with many actors, which compute priorities; items are removed by priority, too",
        settings={
            "n_step": 5,
            "hidden": (300, 200),
            "critic_hidden": (400, 300),
            "activation": "tanh",
            "learning_rate": 1e-4,
            "target_period": 100,
            "target_mix": 1.0,
            "action_gradient_bound": 1.0,
            "exploration_noise": 0.3,
            "priority_exponent": 0.6,
            "actor_priorities": True,
            "eviction_exponent": -0.4,
            "tolerance": 0.1,
            "flush": 50,
            "pull_every": 25,
        },
    ),
    "seed-sac": System(
        "sac",
        "seed",
        "Espeholt et al. 2020, SEED RL: scalable and efficient deep-RL with accelerated central inference",
        "soft actor-critic with central acting beside the learner, and replay",
        settings={"tolerance": 0.1},
    ),
}

SYSTEMS |= {
    "pg": System(
        "pg",
        "sync",
        "Williams 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning",
        "REINFORCE in lock step, with the values as a baseline or without (--no-baseline)",
    ),
}


_CONTINUOUS = ("ddpg", "sac", "mpo")  # algorithms for a Box of actions; sac takes Discrete ones too


def example(name: str) -> str:
    """An environment that the system can be drawn and asked on: one of the actions that it is made for."""
    return "Pendulum-v1" if find(name).algorithm in _CONTINUOUS else "CartPole-v1"


def find(name: str) -> System:
    """The system of this name, or a sentence with the names that there are."""
    if name not in SYSTEMS:
        raise UserError(f"There is no system '{name}'; choose one of {', '.join(SYSTEMS)}.{nearest(name, SYSTEMS)}")
    return SYSTEMS[name]
