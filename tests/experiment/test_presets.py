"""Presets: every entry can be used, the right one is found, what the user gives wins, and CartPole's runs are as they
were when their settings were the defaults."""

import re
from fnmatch import fnmatchcase
from itertools import combinations, product

import gymnasium as gym
import pytest

import cavalcade
from cavalcade.__main__ import main
from cavalcade.config import described
from cavalcade.errors import UserError
from cavalcade.experiment import ALGORITHMS, SYSTEMS, Experiment, Settings, find_preset, run_settings
from cavalcade.experiment.presets import entries
from cavalcade.runs.training import repeat

# --- the data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: f"{entry.systems[0]} {entry.environments[0]}")
def test_every_entry_has_a_source_and_values_that_its_systems_take(entry):
    assert entry.systems and entry.environments and entry.settings and entry.source.partition(",")[0].strip()
    for system in entry.systems:
        kind = ALGORITHMS[SYSTEMS[system].algorithm]
        known = {**described(Settings), **described(kind)}
        for name, value in entry.settings.items():
            converted = known[name].converted(value)
            assert (type(converted), converted) == (type(value), value), name
        kind(**{name: value for name, value in entry.settings.items() if name in described(kind)})  # together too


def test_no_two_entries_of_equal_rank_fit_one_system_and_environment():
    names = [(system, name) for entry in entries() for system in entry.systems for name in entry.environments]
    for (system, one), (other_system, other) in combinations(names, 2):
        if system == other_system and ("*" in one) == ("*" in other):
            assert not fnmatchcase(one, other) and not fnmatchcase(other, one), (system, one, other)


def test_every_family_has_presets():
    for system, environment in (
        ("dqn", "MountainCar-v0"),
        ("ppo", "LunarLander-v3"),
        ("ppo", "minigrid:MiniGrid-DoorKey-5x5-v0"),
        ("dqn", "MinAtar/Breakout-v1"),
        ("a2c", "ALE/Pong-v5"),
        ("ppo", "HalfCheetah-v5"),
        *product(
            ("sac", "seed-sac", "td3", "ddpg"), ("MountainCarContinuous-v0", "LunarLanderContinuous-v3", "Ant-v5")
        ),
        *product(("sac", "seed-sac", "td3", "ddpg", "d4pg", "dmpo"), ("Pendulum-v1",)),
    ):
        assert find_preset(system, environment).source, environment
    for system in ON_CARTPOLE:
        assert find_preset(system, "CartPole-v0").source == "ours, chosen for seconds to solved"


def test_the_support_of_a_preset_holds_the_returns_of_its_task():
    """A reward of Pendulum is at least -16.3; from where the pole hangs it takes about 100 steps to swing it up."""
    for system in ("d4pg", "dmpo"):
        algorithm = made(system, "Pendulum-v1").algorithm
        lowest = -16.3 * (1.0 - algorithm.discount**200) / (1.0 - algorithm.discount)
        assert algorithm.atoms == 51 and algorithm.value_low < lowest and algorithm.value_high == 0.0


# --- CartPole as it was when these were the defaults --------------------------------------------------------------

TORSO = {"hidden": (64, 64), "activation": "tanh", "shared": False, "memory": 0}
ACTOR_CRITIC = {**TORSO, "discount": 0.99, "anneal": True, "value_cost": 1.0, "max_gradient_norm": 0.5}
ACTOR_CRITIC |= {"optimiser_epsilon": 1e-5, "optimiser_decay": 0.99, "clip_rewards": False}
ACTOR_CRITIC |= {"normalise_observations": False, "normalise_rewards": True}
DQN = {"discount": 0.99, "learning_rate": 1e-3, "anneal": True, "batch": 64, "update_every": 2, "updates_per_draw": 4}
DQN |= {"target_period": 250, "n_step": 3, "double": True, "dueling": True, "max_gradient_norm": 10.0}
DQN |= {"optimiser_name": "adam", "optimiser_epsilon": 1e-8, "clip_rewards": False, "epsilon_start": 1.0}
DQN |= {"epsilon_end": 0.04, "epsilon_steps": 10_000, "epsilon_ladder": False, "replay_size": 50_000}
DQN |= {"replay_start": 1_000, "priority_exponent": 0.0, "importance_exponent": 0.4, "actor_priorities": False}
DQN |= {"trim_every": 0, "tolerance": 0.0, "flush": 1, "pull_every": 0, "hidden": (128, 128), "activation": "relu"}
DQN |= {"normalise_observations": False}
APEX = {"epsilon_ladder": True, "priority_exponent": 0.6, "actor_priorities": True, "trim_every": 100}
APEX |= {"tolerance": 0.1, "flush": 50, "pull_every": 25}
A2C = {**ACTOR_CRITIC, "gae_lambda": 1.0, "unroll": 8, "learning_rate": 7e-4, "entropy_cost": 0.0}
A2C |= {"optimiser_name": "rmsprop", "normalise_advantages": False, "queue_batches": 1, "log_epsilon": 0.0}
PPO = {**ACTOR_CRITIC, "gae_lambda": 0.95, "unroll": 64, "learning_rate": 1e-3, "entropy_cost": 0.0}
PPO |= {"optimiser_name": "adam", "normalise_advantages": True, "epochs": 4, "minibatches_per_epoch": 4}
PPO |= {"surrogate": "clip", "clip": 0.2}
IMPALA = {**ACTOR_CRITIC, "gae_lambda": 1.0, "unroll": 20, "learning_rate": 7e-4, "entropy_cost": 0.01}
IMPALA |= {"optimiser_name": "rmsprop", "normalise_advantages": False, "correction": "vtrace", "rho_bar": 1.0}
IMPALA |= {"c_bar": 1.0, "batch": 16, "queue_batches": 2, "max_policy_lag": 0, "replay_share": 0.0, "summed": False}
ON_CARTPOLE = {
    "dqn": DQN,
    "gorila-dqn": DQN,
    "apex-dqn": {**DQN, **APEX},
    "a2c": A2C,
    "a3c": A2C,
    "paac": A2C,
    "ga3c": {**A2C, "queue_batches": 2, "log_epsilon": 1e-6},
    "ppo": PPO,
    "dppo": PPO,
    "impala": IMPALA,
    "seed-impala": IMPALA,
}


def made(system, environment="CartPole-v1", overrides=None, **given) -> Experiment:
    settings = run_settings(system, environment, {"backend": "numpy", **given})
    return Experiment.create(system, environment, settings, overrides or {})


@pytest.mark.parametrize("system", ON_CARTPOLE)
def test_cartpole_has_the_settings_that_were_chosen_on_it(system):
    config = made(system).config()
    assert {name: config["algorithm"][name] for name in ON_CARTPOLE[system]} == ON_CARTPOLE[system]
    assert (config["envs"], config["steps"], config["preset"]) == (8, 100_000, "CartPole-v1")
    for name, value in find_preset(system, "CartPole-v1").of(ALGORITHMS[SYSTEMS[system].algorithm]).items():
        assert ON_CARTPOLE[system][name] == value


def test_memory_uses_the_same_preset():
    with_memory = made("ppo", overrides={"memory": 16}).algorithm
    assert with_memory == made("ppo").algorithm.replace(memory=16)


# --- which preset ---------------------------------------------------------------------------------------------------


def test_an_id_beats_a_pattern_and_its_version_counts():
    known = find_preset("ppo", "MiniGrid-DoorKey-5x5-v0")
    assert known.matched == known.name == "MiniGrid-DoorKey-5x5-v0"
    family = find_preset("ppo", "MiniGrid-DoorKey-16x16-v0")
    assert (family.name, family.matched) == ("MiniGrid-DoorKey-16x16-v0", "MiniGrid-*")
    assert find_preset("ppo", "gymnasium:LunarLander-v3").name == "LunarLander-v3"
    assert not find_preset("ppo", "LunarLander-v2").settings and find_preset("ppo", "LunarLander-v2").name == "none"


def test_functions_have_none_and_objects_that_of_their_spec_if_it_is_for_as_many():
    def mountain():
        return gym.make("MountainCar-v0")

    assert find_preset("dqn", mountain).name == "none"
    assert find_preset("dqn", "somewhere:mountain").name == "none"
    assert find_preset("dqn", mountain, "MountainCar-v0").name == "MountainCar-v0"
    assert find_preset("dqn", mountain()).name == "MountainCar-v0", "for 1 environment"
    assert find_preset("ppo", mountain()).name == "none", "for 16 environments"
    assert find_preset("ppo", gym.make_vec("MountainCar-v0", num_envs=16)).name == "MountainCar-v0"


def test_another_environments_preset_is_taken_by_its_name():
    settings = run_settings("ppo", "Taxi-v4", {"preset": "Acrobot-v1"})
    assert (settings.preset, settings.envs, settings.steps) == ("Acrobot-v1", 16, 1_000_000)
    with pytest.raises(UserError, match=r"^ppo has no preset of 'Acrobott'; cavalcade presets ppo .* 'Acrobot-v1'\?$"):
        run_settings("ppo", "Taxi-v4", {"preset": "Acrobott"})
    with pytest.raises(UserError, match="no system 'pppo'"):
        run_settings("pppo", "Taxi-v4", {"preset": "Acrobot-v1"})


# --- what wins ------------------------------------------------------------------------------------------------------


def test_a_preset_beats_defaults_and_what_is_given_beats_the_preset():
    found = made("dqn", "MountainCar-v0", {"batch": 64}, envs=8)  # both are the defaults, and given
    assert (found.algorithm.discount, found.algorithm.hidden, found.settings.steps) == (0.98, (256, 256), 120_000)
    assert (found.algorithm.batch, found.settings.envs) == (64, 8)
    without = made("dqn", "MountainCar-v0", preset="none")
    assert without.algorithm == ALGORITHMS["dqn"]() and without.settings == Settings(backend="numpy", preset="none")


def test_a_preset_beats_the_settings_for_images():
    pytest.importorskip("ale_py")
    found = cavalcade.settings("dqn", "ALE/Pong-v5")
    assert (found.replay_size, found.target_period, found.clip_rewards) == (100_000, 250, True)
    assert cavalcade.settings("dqn", "ALE/Pong-v5", preset="none").replay_size == SYSTEMS["dqn"].pixels["replay_size"]


def test_the_settings_object_has_the_values_of_the_preset_and_needs_none_later():
    named = cavalcade.settings("ppo", "Acrobot-v1", envs=4)
    assert (named.unroll, named.steps, named.envs, named.preset) == (256, 1_000_000, 4, "Acrobot-v1")
    unnamed = cavalcade.settings("ppo")
    assert (unnamed.unroll, unnamed.preset) == (ALGORITHMS["ppo"]().unroll, "none")
    with pytest.raises(UserError, match=r"holds every value already.*cavalcade\.settings\('ppo', ENVIRONMENT, preset="):
        cavalcade.train("ppo", "Acrobot-v1", settings=unnamed, preset="auto")


BRIEF = {"steps": 200, "backend": "numpy", "evaluations": 0, "hidden": (8,), "display": False}


def test_a_settings_object_wins_over_the_preset_of_the_environment(tmp_path):
    settings = cavalcade.settings("dqn", replay_start=100, batch=8).replace(envs=2)
    run = cavalcade.train("dqn", "MountainCar-v0", settings=settings, out=tmp_path / "run", **BRIEF)
    assert run.config["preset"] == "none" and run.config["envs"] == 2
    assert run.config["algorithm"]["discount"] == 0.99 and run.config["algorithm"]["batch"] == 8


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("presets") / "run"
    return cavalcade.train("dqn", "MountainCar-v0", replay_start=150, batch=8, out=path, **BRIEF)


def test_a_run_records_its_preset_and_does_not_look_for_it_again(run, tmp_path, monkeypatch):
    recorded = {**run.config, **run.config["algorithm"]}
    assert recorded["preset"] == "MountainCar-v0"
    for name, value in find_preset("dqn", "MountainCar-v0").settings.items():
        if name not in ("steps", "hidden", "replay_start", "batch"):  # these are given
            assert recorded[name] == value, name
    monkeypatch.setattr("cavalcade.experiment.presets.catalogue.entries", lambda: ())  # of a later version
    again = repeat(run.config, out=tmp_path / "again", display=False)
    assert again.config == run.config
    longer = cavalcade.resume(again.path, steps=210, display=False)
    assert longer.rows()[-1]["step"] == 210 and longer.config["algorithm"] == run.config["algorithm"]


def test_the_first_lines_of_a_run_name_the_preset_if_there_is_one(tmp_path, capsys):
    given = "--backend numpy --steps 64 --evaluations 0 --hidden 8 --envs 2 --unroll 8 --out"
    told = "preset of Acrobot-v1, rl-baselines3-zoo; --preset none leaves it out"
    assert main(["train", "a2c", "Acrobot-v1", *given.split(), str(tmp_path / "with")]) == 0
    assert told in capsys.readouterr().out
    assert main(["train", "a2c", "Acrobot-v1", "--preset", "none", *given.split(), str(tmp_path / "without")]) == 0
    assert "preset" not in capsys.readouterr().out
    assert main(["train", "a2c", "Acrobot-v1", "--preset", "Acrobott"]) == 2
    assert "Did you mean 'Acrobot-v1'?" in capsys.readouterr().err


# --- what is shown --------------------------------------------------------------------------------------------------


def shown(capsys, *arguments) -> str:
    assert main(list(arguments)) == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_says_which_values_are_the_presets(capsys):
    text = shown(capsys, "train", "dqn", "MountainCar-v0", "--help")
    assert re.search(r"--steps 120000 [^\[]*\[preset of MountainCar-v0, rl-baselines3-zoo\]", text)
    assert re.search(r"--discount 0.98 [^\[]*\[preset of MountainCar-v0, rl-baselines3-zoo\]", text)
    assert re.search(r"--clip-rewards false [^\[]*\[default\]", text)
    given = shown(capsys, "train", "dqn", "MountainCar-v0", "--batch", "7", "--help", "learning", "--preset", "none")
    assert "[preset" not in given and "--steps" not in given
    assert re.search(r"--discount 0.99 [^\[]*\[default\]", given) and re.search(r"--batch 7 [^\[]*\[given\]", given)


def test_presets_are_listed_with_their_sources(capsys):
    everything = shown(capsys, "presets")
    for entry in entries():
        assert f"{', '.join(entry.systems)} on {', '.join(entry.environments)} {entry.source}" in everything
    of_system = shown(capsys, "presets", "a2c")
    assert "--normalise-rewards true" in of_system and "dqn" not in of_system
    one = shown(capsys, "presets", "dqn", "MountainCar-v0")
    assert one.startswith("dqn on MountainCar-v0 rl-baselines3-zoo, hyperparams/dqn.yml at 22e3ff2 --steps 120000 ")
    assert "--hidden 256 256" in one and "--double false" in one
    assert main(["presets", "dqn", "MountainCar-v1"]) == 2
    assert "dqn has no preset of 'MountainCar-v1'" in capsys.readouterr().err
    assert main(["presets", "dqm"]) == 2 and "Did you mean 'dqn'?" in capsys.readouterr().err
