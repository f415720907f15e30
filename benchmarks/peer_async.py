"""Other libraries' asynchronous learners, in their own environments: frames/s after a warm-up, two workers.

    .peers/ray/bin/python benchmarks/peer_async.py rllib cartpole 20 8      IMPALA; seconds measured, seconds before
    .peers/sf/bin/python benchmarks/peer_async.py sf pong 20 8              APPO

Settings of both: CartPole with MLP 64x64 tanh, nothing shared, 4 environments a worker, unrolls of 128, 1,024 frames
between two publications; Pong (ALE/Pong-v5, 84x84, four frames stacked, each action repeated four times) with the
Nature CNN and 512 units, 8 environments a worker, unrolls of 32, batches of 512. Frames are the emulator's: four for
each action on Pong.
"""

import logging
import os
import sys
import tempfile
import time
import warnings

WORKERS, SKIP = 2, 4
warnings.filterwarnings("ignore")


class Window:
    """Frames between two moments: `before` seconds after the first frames were learned from, and `seconds` later."""

    def __init__(self, seconds: float, before: float):
        self.seconds, self.before = seconds, before
        self.first: float | None = None
        self.start: tuple[float, int] | None = None
        self.end: tuple[float, int] | None = None

    def look(self, frames: int) -> bool:
        """Whether it is over."""
        now = time.perf_counter()
        if self.first is None and frames > 0:
            self.first = now
        if self.first is None or now - self.first < self.before:
            return False
        self.start = self.start or (now, frames)
        self.end = (now, frames)
        return now - self.start[0] >= self.seconds

    @property
    def speed(self) -> float:
        assert self.start and self.end
        return (self.end[1] - self.start[1]) / (self.end[0] - self.start[0])


# --- RLlib ------------------------------------------------------------------------------------------------------------


def pong_for_rllib(_config):
    import ale_py
    import gymnasium as gym
    import numpy as np
    from gymnasium import wrappers

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    env = wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=SKIP, screen_size=84, grayscale_obs=True)
    env = wrappers.FrameStackObservation(env, 4)
    floats = gym.spaces.Box(0.0, 1.0, (84, 84, 4), np.float32)  # what its CNN takes: fractions, channels last
    return wrappers.TransformObservation(env, lambda o: np.moveaxis(o, 0, -1).astype(np.float32) / 255.0, floats)


def rllib_config(task: str):
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    register_env("pong", pong_for_rllib)
    pong = task == "pong"
    if pong:
        network = DefaultModelConfig(
            conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]],
            conv_activation="relu",
            head_fcnet_hiddens=[512],
            vf_share_layers=True,
        )
    else:
        network = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    config = IMPALAConfig().environment("pong" if pong else "CartPole-v1").learners(num_learners=0)
    config = config.env_runners(
        num_env_runners=WORKERS,
        num_envs_per_env_runner=8 if pong else 4,
        rollout_fragment_length=32 if pong else 128,
    )
    config = config.training(
        lr=2.5e-4 if pong else 1e-3,
        train_batch_size_per_learner=512 if pong else 1024,
        grad_clip=40.0 if pong else 0.5,
        vf_loss_coeff=0.5,
        entropy_coeff=0.01 if pong else 0.0,
    )
    return config.rl_module(model_config=network).debugging(seed=0, log_level="ERROR")


def rllib_start() -> None:
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"})
    import ray

    ray.init(num_cpus=4, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)


def rllib_learned(result: dict) -> int:
    """Environment steps that the learner has learned from so far."""
    return int(result.get("learners", {}).get("__all_modules__", {}).get("num_env_steps_trained_lifetime", 0) or 0)


def rllib(task: str, window: Window) -> None:
    rllib_start()
    algorithm = rllib_config(task).reporting(min_time_s_per_iteration=1).build_algo()
    skip = SKIP if task == "pong" else 1
    while True:
        result = algorithm.train()
        sampled = int(result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", 0))
        if rllib_learned(result) and window.look(sampled * skip):
            break


def rllib_first_update(seconds: float) -> None:
    """Says FIRST when the learner has learned from something, and goes on for some seconds."""
    rllib_start()
    algorithm = rllib_config("cartpole").reporting(min_time_s_per_iteration=0).build_algo()
    while not rllib_learned(algorithm.train()):
        pass
    print("FIRST", flush=True)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        algorithm.train()


# --- Sample Factory ---------------------------------------------------------------------------------------------------


def environment_for_sf(name, cfg=None, env_config=None, render_mode=None):
    import gymnasium as gym
    import numpy as np

    if name == "CartPole-v1":
        return gym.make(name)
    from ale_py.env import AtariEnv  # this ale-py does not register itself with the gymnasium that its peer wants

    class AsArray(gym.ObservationWrapper):
        def observation(self, observation):
            return np.asarray(observation)

    env = AtariEnv(game="pong", frameskip=1, repeat_action_probability=0.0)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=SKIP, screen_size=84, grayscale_obs=True)
    return AsArray(gym.wrappers.FrameStack(env, 4))


SF_BOTH = {
    "algo": "APPO",
    "device": "cpu",
    "seed": 0,
    "num_workers": WORKERS,
    "use_rnn": False,
    "recurrence": 1,
    "async_rl": True,
    "serial_mode": False,
    "batched_sampling": False,
    "with_vtrace": False,
    "normalize_input": False,
    "normalize_returns": False,
    "value_loss_coeff": 0.5,
    "max_grad_norm": 0.5,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "reward_scale": 1.0,
    "ppo_clip_ratio": 0.2,
    "experiment": "bench",
    "train_for_seconds": 100_000,
    "train_for_env_steps": 10**10,
    "save_every_sec": 100_000,
    "save_best_after": 10**9,
    "experiment_summaries_interval": 100_000,
}
SF_CARTPOLE = {
    "env": "CartPole-v1",
    "learning_rate": 1e-3,
    "encoder_mlp_layers": (64, 64),
    "nonlinearity": "tanh",
    "actor_critic_share_weights": False,
    "exploration_loss_coeff": 0.0,
    "num_envs_per_worker": 4,
    "rollout": 128,
    "batch_size": 256,
    "num_batches_per_epoch": 4,
    "num_epochs": 4,
}
SF_PONG = {
    "env": "pong",
    "learning_rate": 2.5e-4,
    "encoder_conv_architecture": "convnet_atari",
    "encoder_conv_mlp_layers": (512,),
    "nonlinearity": "relu",
    "actor_critic_share_weights": True,
    "exploration_loss_coeff": 0.01,
    "obs_scale": 255.0,
    "env_frameskip": SKIP,  # it multiplies its count of frames by this
    "num_envs_per_worker": 8,
    "rollout": 32,
    "batch_size": 512,
    "num_batches_per_epoch": 1,
    "num_epochs": 1,
}


def sf(task: str, window: Window) -> None:
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner
    from sample_factory.utils.utils import log

    log.setLevel(logging.ERROR)
    settings = {**SF_BOTH, **(SF_PONG if task == "pong" else SF_CARTPOLE), "train_dir": tempfile.mkdtemp()}
    words: list[str] = []
    for name, value in settings.items():
        words += [f"--{name}", *map(str, value)] if isinstance(value, tuple) else [f"--{name}={value}"]
    register_env(settings["env"], environment_for_sf)

    class Watching(AlgoObserver):
        def on_training_step(self, runner, training_iteration_since_resume):
            if window.look(sum(runner.env_steps.values())):
                runner._should_end_training = lambda: True

    parser, _ = parse_sf_args(argv=words)
    _, runner = make_runner(parse_full_cfg(parser, words))
    runner.register_observer(Watching())
    runner.init()
    runner.run()


if __name__ == "__main__":
    library, task, *numbers = sys.argv[1:]
    if task == "start":
        rllib_first_update(float(numbers[0]))
    else:
        window = Window(float(numbers[0]), float(numbers[1]))
        {"rllib": rllib, "sf": sf}[library](task, window)
        print(f"frames {window.speed:.1f} frames/s")
