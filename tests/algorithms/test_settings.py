"""Every setting of every algorithm reaches something: what is declared, how it acts, or what it learns."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest

from cavalcade import tree
from cavalcade.acting.noise import NoiseStream
from cavalcade.algorithms import Clock
from cavalcade.backends.numpy_backend import acting as numpy_namespace
from cavalcade.envs.spaces import observation_spec
from cavalcade.experiment import ALGORITHMS, Experiment, Settings
from cavalcade.networks.activations import ACTIVATIONS
from cavalcade.optimiser import NAMES
from cavalcade.tree import Layout
from tests.learning.test_learner import CASES, random_items, vector

CHOICES = {  # for words, another one that means something
    "optimiser_name": list(NAMES),
    "activation": list(ACTIVATIONS),
    "convolution": ["auto", "nature", "impala", "small"],
    "surrogate": ["clip", "penalty"],
    "kl_rule": ["ppo", "rllib", "heess"],
    "correction": ["vtrace", "one-step", "epsilon", "none"],
    "epsilon_decay": ["linear", "multiplicative"],
    "value": ["scalar", "c51", "quantiles"],
}


BINDS = {"entropy_ladder": 2.0, "eviction_exponent": -0.4}  # where half of the default is not allowed
CRITICS = {"hidden": (8, 4), "critic_hidden": (8, 4), "batch": 8, "replay_start": 32}
SYSTEMS = CASES | {name: (name, "Pendulum-v1", CRITICS) for name in ("ddpg", "sac", "mpo")}


def other_values(field: dataclasses.Field) -> list:
    default = field.default
    if default is None:
        return [0.5]
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return sorted({default + 1, max(1, default // 2)} - {default})
    if isinstance(default, float):
        return [BINDS.get(field.name, default / 2 + 0.01)]
    if isinstance(default, tuple):
        return [(32,), (8, 8, 8)]
    assert field.name in CHOICES, f"say which words {field.name} may be"
    return [word for word in CHOICES[field.name] if word != default]


CLOCK = Clock(500, 1, 3, 10_000)  # a twentieth of the run is done
CHANGES = [
    (name, field.name, value)
    for name, kind in ALGORITHMS.items()
    for field in dataclasses.fields(kind)
    for value in other_values(field)
]


# what has to be otherwise, too, for a setting to matter
WITH = {
    "importance_exponent": {"priority_exponent": 0.6},
    "optimiser_decay": {"optimiser_name": "rmsprop"},
    "optimiser_epsilon": {"optimiser_epsilon": 0.1},
    "kl_rule": {"surrogate": "penalty"},
    "kl_target": {"surrogate": "penalty"},
    "c_bar": {"c_bar": 0.3},
    "rho_bar": {"rho_bar": 0.3},
    "clip": {"clip": 0.01},
    "replay_size": {"impala": {"replay_share": 0.5}},
    "entropy_ladder": {"entropy_cost": 0.1},
    "atoms": {"atoms": 11},
    "value_low": {"atoms": 11},
    "value_high": {"atoms": 11},
    "actor_priorities": {"priority_exponent": 0.6},
    "eviction_exponent": {"priority_exponent": 0.6},
    "smoothing_bound": {"smoothing": 0.2},
    "epsilon": {"epsilon": 1e-6},
    "epsilon_mean": {"epsilon_mean": 1e-9},
    "quantiles": {"value": "quantiles"},
    **{("dqn", name): {"value": "c51"} for name in ("atoms", "value_low", "value_high")},
}
GAUSSIAN = ("initial_deviation", "noise_correlation")  # which matter for continuous actions


def defaults(name: str, environment: str, settings: dict):
    """The parts of a run with these settings and small networks, without a preset."""
    system, _, small = SYSTEMS[name]
    run = Settings(steps=10_000, backend="numpy", envs=4, preset="none")
    return Experiment.create(system, environment, run, {**small, **settings}).parts


def effects(name: str, environment: str, settings: dict) -> list:
    """What a run with these settings is made of: as numbers and words that can be compared."""
    parts = defaults(name, environment, settings)
    algorithm, spec, rng = parts.algorithm, parts.spec, np.random.default_rng(0)
    declared = [algorithm.experience(), algorithm.optimiser(100), algorithm.updates(100_000, 8), algorithm.target()]
    declared += [algorithm.max_lag, algorithm.adds_gradients, algorithm.scales_rewards, algorithm.extras(spec)]
    declared += [algorithm.exploration(4, CLOCK), parts.plan.sizes]
    if adaptation := algorithm.adaptation(100):
        for value in np.geomspace(1e-4, 1.0, 30):
            coefficients = adaptation.initial
            for _ in range(20):  # updates, of more than one draw
                given = dict.fromkeys(adaptation.reads, np.float32(value))
                coefficients = adaptation.rule(numpy_namespace, coefficients, given)
            declared.append(coefficients)
    policy, learner = parts.policy(), parts.learner()
    observations = np.random.default_rng(1).standard_normal(spec.zeros(4).shape).astype(np.float32)
    noise = NoiseStream(algorithm, spec, rng, 4)
    noise.draw(CLOCK, np.ones(4, np.bool_))
    noise = noise.draw(CLOCK, np.zeros(4, np.bool_))
    acted = policy.act(observations, policy.model.carry(4), np.zeros(4, np.bool_), noise)
    for seed in range(3):
        items = random_items(parts, seed)
        if parts.experience.store.correction is not None:
            items["weight"] = np.linspace(0.5, 1.0, parts.experience.batch, dtype=np.float32)
        learner.update(items)
    return [*map(repr, declared), *(leaf.tobytes() for leaf in tree.leaves(acted[0])), vector(learner).tobytes()]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_changes_something(name):
    idle = []
    for field, value in [(field, value) for kind, field, value in CHANGES if kind == name]:
        before = WITH.get((name, field), WITH.get(field, {}))
        before = before.get(name, {}) if field == "replay_size" else before
        if field in before:  # a value at which it binds, against its default
            before, value = {}, before[field]
        where = "Pendulum-v1" if field in GAUSSIAN else SYSTEMS[name][1]
        if getattr(defaults(name, where, {}).algorithm, field) == value:  # these tests have it otherwise already
            value = getattr(ALGORITHMS[name](), field)
        if effects(name, where, before) == effects(name, where, {**before, field: value}):
            idle.append(f"{field}={value}")
    assert set(idle) == {f"convolution={other}" for other in CHOICES["convolution"] if other != "auto"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_convolution_is_that_of_images(name):
    spec = defaults(name, SYSTEMS[name][1], {}).spec
    pixels = dataclasses.replace(spec, observation=observation_spec(gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)))
    sizes = {
        kind: Layout.of(ALGORITHMS[name](convolution=kind).model(pixels).init(np.random.default_rng(0))).size
        for kind in CHOICES["convolution"]
    }
    assert sizes.pop("auto") == sizes["nature"] and len(set(sizes.values())) == 3
