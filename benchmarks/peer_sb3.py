"""Stable-Baselines3's side of the comparison, run by the Python of its own virtual environment.

python peer_sb3.py ppo        python peer_sb3.py dqn        python peer_sb3.py start
"""

import sys
import time

import torch

torch.set_num_threads(1)

from stable_baselines3 import DQN, PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402

WARM_UP = {"ppo": 5 * 1024, "dqn": 4_000}
MEASURED = {"ppo": 40_000, "dqn": 15_000}


class Meter(BaseCallback):
    """Steps/s between the warm-up and the end of the measured span."""

    def __init__(self, algorithm: str):
        super().__init__()
        self.span = WARM_UP[algorithm], WARM_UP[algorithm] + MEASURED[algorithm]
        self.began: tuple[float, int] | None = None

    def _on_step(self) -> bool:
        now = time.perf_counter()
        if self.began is None and self.num_timesteps >= self.span[0]:
            self.began = now, self.num_timesteps
        if self.num_timesteps < self.span[1]:
            return True
        self.speed = (self.num_timesteps - self.began[1]) / (now - self.began[0])
        return False


def model(algorithm: str):
    environments = make_vec_env("CartPole-v1", n_envs=8, seed=0)
    if algorithm == "ppo":
        network = {"net_arch": [64, 64], "activation_fn": torch.nn.Tanh}
        return PPO(
            "MlpPolicy", environments, n_steps=128, batch_size=256, n_epochs=4, learning_rate=1e-3,
            policy_kwargs=network, device="cpu", seed=0,
        )  # fmt: skip
    return DQN(
        "MlpPolicy", environments, learning_rate=1e-3, buffer_size=50_000, learning_starts=1_000, batch_size=64,
        train_freq=1, gradient_steps=2, target_update_interval=500, policy_kwargs={"net_arch": [64, 64]}, device="cpu",
        seed=0,
    )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "start":
        model("ppo").learn(1_024)
    else:
        meter = Meter(sys.argv[1])
        model(sys.argv[1]).learn(1_000_000, callback=meter)
        print(meter.speed)
