"""Scores that others publish, to stand beside ours. Their steps and their settings differ; the source says which."""

from typing import NamedTuple

ZOO = "SB3 zoo, tuned"  # benchmark.md of rl-baselines3-zoo: one run, deterministic policy
CLEANRL = "CleanRL"  # its documentation: mean of three seeds, untuned defaults
SLM = "SLM-Lab"  # version 5: four sessions, moving average
GYMNAX = "gymnax"  # its checkpoints


class Published(NamedTuple):
    score: float
    steps: int | None  # None: the source does not say
    source: str

    def __str__(self) -> str:
        steps = "" if self.steps is None else f" at {self.steps // 1000:,}k"
        return f"{self.score:g}{steps} ({self.source})"


PUBLISHED: dict[tuple[str, str], tuple[Published, ...]] = {  # (task, system)
    ("CartPole-v1", "dqn"): (Published(500, 50_000, ZOO), Published(488.7, 500_000, CLEANRL)),
    ("CartPole-v1", "ppo"): (Published(500, 100_000, ZOO), Published(490.0, 500_000, CLEANRL)),
    ("CartPole-v1", "a2c"): (Published(500, 500_000, ZOO), Published(496.7, 200_000, SLM)),
    ("Acrobot-v1", "dqn"): (Published(-76.6, 100_000, ZOO), Published(-91.5, 500_000, CLEANRL)),
    ("Acrobot-v1", "ppo"): (Published(-73.5, 1_000_000, ZOO), Published(-86.4, 500_000, CLEANRL)),
    ("Acrobot-v1", "a2c"): (Published(-83.4, 500_000, ZOO), Published(-84, 300_000, SLM)),
    ("LunarLander-v3", "dqn"): (Published(154, 100_000, f"{ZOO}, v2"), Published(195, 300_000, SLM)),
    ("LunarLander-v3", "ppo"): (Published(242, 1_000_000, f"{ZOO}, v2"), Published(183, 300_000, SLM)),
    ("LunarLander-v3", "a2c"): (Published(156, 200_000, f"{ZOO}, v2"),),
    ("MountainCar-v0", "dqn"): (Published(-100.8, 120_000, ZOO), Published(-195, 500_000, CLEANRL)),
    ("MountainCar-v0", "ppo"): (Published(-110, 1_000_000, ZOO), Published(-200, 500_000, CLEANRL)),
    ("MountainCar-v0", "a2c"): (Published(-111, 1_000_000, ZOO),),
    ("MountainCarContinuous-v0", "ppo"): (Published(88.3, 20_000, ZOO),),
    ("Pendulum-v1", "ppo"): (Published(-172, 100_000, ZOO), Published(-175, 300_000, SLM)),
    ("Pendulum-v1", "a2c"): (Published(-163, 1_000_000, ZOO),),
    ("MinAtar/Breakout-v1", "ppo"): (Published(28, None, GYMNAX),),
    ("MinAtar/SpaceInvaders-v1", "ppo"): (Published(131, None, GYMNAX),),
    ("HalfCheetah-v5", "ppo"): (
        Published(5819, 1_000_000, f"{ZOO}, v3"),
        Published(1443, 1_000_000, CLEANRL),
    ),
    ("cavalcade/CartPoleNoVelocity-v1", "ppo"): (Published(500, 100_000, f"{ZOO}, with memory"),),
}
