"""Other libraries until CartPole-v1 is solved, in their own environments; solve.py says what solved means.

    .peers/sb3/bin/python benchmarks/peer_solve.py sb3-ppo SEED SECONDS
    .peers/ray/bin/python benchmarks/peer_solve.py rllib-ppo|rllib-impala|rllib-appo SEED SECONDS
    .peers/sf/bin/python benchmarks/peer_solve.py sf-appo SEED SECONDS

Prints `begin` when the environments are made and `solved STEPS` at the end, or nothing more if SECONDS were not enough.
Settings are the ones that each library publishes for CartPole.
"""

import logging
import os
import sys
import tempfile
import time
import warnings

import gymnasium as gym
import numpy as np
import torch

EPISODES, TARGET, EVERY, FIRST_SEED = 10, 475, 0.25, 10_000
warnings.filterwarnings("ignore")
torch.set_num_threads(1)


class Judge:
    """Greedy episodes, played side by side, every quarter second; `look` is called as often as the library can."""

    def __init__(self, limit: float):
        self.envs = [gym.make("CartPole-v1", disable_env_checker=True) for _ in range(EPISODES)]
        self.limit, self.over = limit, False

    def begin(self) -> None:
        print("begin", flush=True)
        self.began = self.last = time.perf_counter()

    def look(self, act, steps: int) -> bool:
        """Whether it is over."""
        if not self.over and time.perf_counter() - self.last >= EVERY:
            self.over = self.play(act) >= TARGET
            if self.over:
                print(f"solved {steps}", flush=True)
            self.last = time.perf_counter()
        self.over |= time.perf_counter() - self.began > self.limit
        return self.over

    def play(self, act) -> float:
        obs = np.stack([env.reset(seed=FIRST_SEED + i)[0] for i, env in enumerate(self.envs)])
        live, total = list(range(EPISODES)), 0.0
        while live:
            actions = act(obs[live])
            going = []
            for i, action in zip(live, actions.tolist()):
                obs[i], reward, ended, truncated, _ = self.envs[i].step(action)
                total += reward
                if not (ended or truncated):
                    going.append(i)
            live = going
        return total / EPISODES


def sb3_ppo(seed: int, judge: Judge) -> None:
    """RL-Zoo's settings for CartPole."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Looking(BaseCallback):
        over = False

        def _on_training_start(self) -> None:
            judge.begin()

        def _on_rollout_start(self) -> None:
            self.over = judge.look(lambda obs: self.model.predict(obs, deterministic=True)[0], self.num_timesteps)

        def _on_step(self) -> bool:
            return not self.over

    model = PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=seed), n_steps=32, batch_size=256, n_epochs=20,
        gae_lambda=0.8, gamma=0.98, ent_coef=0.0, learning_rate=lambda left: 0.001 * left,
        clip_range=lambda left: 0.2 * left, device="cpu", seed=seed,
    )  # fmt: skip
    model.learn(100_000, callback=Looking())


def rllib(name: str, seed: int, judge: Judge) -> None:
    """The settings of RLlib's own tuned examples for CartPole, each with two environment runners."""
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"})
    import ray
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(num_cpus=4, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    if name == "ppo":
        config = PPOConfig().training(lr=0.0003, num_epochs=6, vf_loss_coeff=0.01, use_kl_loss=True)
        network = DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True)
    elif name == "impala":
        config = IMPALAConfig().training(
            train_batch_size_per_learner=500, grad_clip=40.0, grad_clip_by="global_norm", lr=0.0005,
            vf_loss_coeff=0.05, entropy_coeff=0.0,
        )  # fmt: skip
        network = DefaultModelConfig(vf_share_layers=True)
    else:
        config = APPOConfig().training(
            train_batch_size_per_learner=1000, minibatch_size=250, num_epochs=2, lr=0.00075, vf_loss_coeff=0.05,
            entropy_coeff=0.01,
        )  # fmt: skip
        network = DefaultModelConfig(fcnet_hiddens=[32])
    config = config.environment("CartPole-v1").env_runners(num_env_runners=2).learners(num_learners=0)
    config = config.reporting(min_time_s_per_iteration=0 if name == "ppo" else EVERY / 2)
    config = config.rl_module(model_config=network).debugging(seed=seed, log_level="ERROR")
    algorithm = config.build_algo()
    module = algorithm.learner_group._learner.module["default_policy"]

    def act(obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            given = module.forward_inference({"obs": torch.as_tensor(obs, dtype=torch.float32)})
        return given["action_dist_inputs"].argmax(-1).numpy()

    judge.begin()
    steps = 0
    while not judge.look(act, steps):
        steps = int(algorithm.train().get("env_runners", {}).get("num_env_steps_sampled_lifetime", steps))


SF = {  # of its own example (sf_examples/train_gym_env.py), with two workers
    "algo": "APPO", "env": "CartPole-v1", "use_rnn": False, "recurrence": 1, "with_vtrace": False, "batch_size": 512,
    "num_envs_per_worker": 20, "policy_workers_per_policy": 2, "reward_scale": 0.1, "num_workers": 2,
    "device": "cpu", "experiment": "solve", "train_for_seconds": 100_000, "train_for_env_steps": 10**10,
    "save_every_sec": 100_000, "save_best_after": 10**9, "experiment_summaries_interval": 100_000,
}  # fmt: skip


def sf_appo(seed: int, judge: Judge) -> None:
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.algo.utils.rl_utils import prepare_and_normalize_obs
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.model.actor_critic import create_actor_critic
    from sample_factory.model.model_utils import get_rnn_size
    from sample_factory.train import make_runner
    from sample_factory.utils.utils import log

    log.setLevel(logging.ERROR)
    register_env("CartPole-v1", cartpole_for_sf)
    folder = tempfile.mkdtemp()
    words = [f"--{name}={value}" for name, value in {**SF, "seed": seed, "train_dir": folder}.items()]
    parser, _ = parse_sf_args(argv=words)
    cfg, runner = make_runner(parse_full_cfg(parser, words))
    mine: dict = {}

    def on_model(data) -> None:
        """The learner's parameters, in memory that it shares with this process."""
        mine["shared"] = data[1]
        mine["model"] = create_actor_critic(cfg, runner.env_info.obs_space, runner.env_info.action_space)
        judge.begin()

    def act(obs: np.ndarray) -> np.ndarray:
        model = mine["model"]
        with torch.no_grad():
            seen = prepare_and_normalize_obs(model, {"obs": torch.as_tensor(obs)})
            model(seen, torch.zeros(len(obs), get_rnn_size(cfg)))
        return model.action_distribution().raw_logits.argmax(-1).numpy()

    class Looking(AlgoObserver):
        def on_connect_components(self, runner) -> None:
            runner.on_model = on_model
            for learner in runner.learners.values():
                learner.model_initialized.connect(runner, "on_model")

        def on_training_step(self, runner, training_iteration_since_resume) -> None:
            mine["model"].load_state_dict(mine["shared"])
            mine["model"].eval()
            if judge.look(act, sum(runner.env_steps.values())):
                runner._should_end_training = lambda: True

    runner.register_observer(Looking())
    runner.init()
    runner.run()


def cartpole_for_sf(name, cfg=None, env_config=None, render_mode=None):
    return gym.make(name)


if __name__ == "__main__":
    who, seed, limit = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    if who == "sb3-ppo":
        sb3_ppo(seed, Judge(limit))
    elif who == "sf-appo":
        sf_appo(seed, Judge(limit))
    else:
        rllib(who.removeprefix("rllib-"), seed, Judge(limit))
