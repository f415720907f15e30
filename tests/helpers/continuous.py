"""Learners of continuous control and random draws for them."""

import numpy as np

from cavalcade import tree
from cavalcade.experiment.experiment import Experiment, Settings
from tests.helpers.items import blank

SMALL = {"hidden": (8,), "critic_hidden": (8,), "batch": 16, "replay_start": 32, "normalise_observations": False}
ATOMS = {"value_low": -8.0, "value_high": 8.0, "atoms": 9}
PENDULUM, CART = "Pendulum-v1", "CartPole-v1"
CASES = {  # system, environment, settings
    "ddpg": ("ddpg", PENDULUM, {}),
    "td3": ("td3", PENDULUM, {"policy_rate": 1e-4}),
    "d4pg": ("d4pg", PENDULUM, {**ATOMS}),
    "twin d4pg": ("d4pg", PENDULUM, {**ATOMS, "twin": True, "smoothing": 0.5}),
    "apex-dpg": ("apex-dpg", PENDULUM, {"action_gradient_bound": 0.01}),
    "sac": ("sac", PENDULUM, {}),
    "sac, atoms and n steps": ("sac", PENDULUM, {**ATOMS, "n_step": 3, "layer_norm": True}),
    "sac, discrete": ("sac", CART, {}),
    "sac, masked": ("sac", "cavalcade/MaskedBandit-v0", {"twin": False}),
    "sac, image": ("sac", "MinAtar/Breakout-v1", {}),
    "mpo": ("mpo", PENDULUM, {"sampled_actions": 4}),
    "dmpo": ("dmpo", PENDULUM, {**ATOMS, "sampled_actions": 4, "twin": True, "epsilon_penalty": 0.0}),
}


def parts_of(case, backend="torch", seed=0, **overrides):
    """The parts of a run of this case."""
    system, environment, settings = CASES[case]
    run = Settings(steps=10_000, seed=seed, backend=backend, envs=1, actors=1)
    return Experiment.create(system, environment, run, {**SMALL, **settings, **overrides}).parts


def drawn(parts, seed=0):
    """A draw of random items, a tenth of them ends of episodes, with weights if the replay is prioritised."""
    rng, zeros = np.random.default_rng(seed), blank(parts.signature)
    count = parts.experience.batch
    items = tree.map(lambda leaf: rng.standard_normal((count, *leaf.shape)).astype(leaf.dtype), zeros)
    if parts.spec.action.kind == "discrete":
        items["action"] = rng.integers(0, parts.spec.action.logits, count)
    if parts.spec.masked:
        for name in ("obs", "next_obs"):
            items[name]["action_mask"][:] = 1
            items[name]["action_mask"][::2, 1] = 0
    items["discount"] = np.where(rng.random(count) < 0.1, 0.0, 0.9).astype(np.float32)
    if parts.experience.store.correction is not None:
        items["weight"] = rng.uniform(0.1, 1.0, count).astype(np.float32)
    return items


def moved(learner, seed=0, size=0.1):
    """The learner with params away from its target's and from each other."""
    kept = learner.state()
    noise = np.random.default_rng(seed).standard_normal(learner.layout.size).astype(np.float32)
    kept["state"]["params"] = kept["state"]["params"] + np.float32(size) * noise
    learner.restore(kept)
    return learner


def first_row(learner, items):
    """All samples and the first row of the plan: what `gradients` takes."""
    return next(learner.minibatches(items))


def by_part(learner, vector):
    """The numbers of each part of the model: {part: [n]}."""
    layout, found = learner.layout, {}
    for path, start, end in zip(layout.paths, layout.offsets, layout.offsets[1:]):
        found.setdefault(learner.model.part_of(path), []).append(vector[start:end])
    return {name: np.concatenate(pieces) for name, pieces in found.items()}
