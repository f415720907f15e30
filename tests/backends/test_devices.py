"""Devices: what may be asked for, what is refused, and that a device changes nothing about the results.

There is no GPU here and torch has no second CPU, so of torch only the choice and the CPU are tested; jax can be told to
count the CPU twice, and shows that arrays go where they are sent.
"""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from cavalcade import backends, train
from cavalcade.backends import devices
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.learning.learner import Learner
from tests.learning.test_learner import parts_of, random_items, vector


@pytest.mark.parametrize(
    "asked, there, chosen",
    [
        ("auto", {"cuda": 2, "mps": 0, "cpu": 1}, ("cuda", 0)),
        ("auto", {"cuda": 0, "mps": 1, "cpu": 1}, ("mps", 0)),
        ("auto", {"cuda": 0, "mps": 0, "cpu": 1}, ("cpu", 0)),
        ("cpu", {"cuda": 2, "cpu": 1}, ("cpu", 0)),
        ("cuda", {"cuda": 2, "cpu": 1}, ("cuda", 0)),
        ("cuda:1", {"cuda": 2, "cpu": 1}, ("cuda", 1)),
    ],
)
def test_the_device_asked_for_or_the_fastest_is_chosen(asked, there, chosen):
    assert devices.choose(asked, there, "torch") == chosen


@pytest.mark.parametrize(
    "asked, there, says",
    [
        ("cuda", {"cuda": 0, "mps": 0, "cpu": 1}, "CUDA device that torch can use; use --device cpu or auto."),
        ("mps", {"cuda": 1, "cpu": 1}, "MPS device that torch can use; use --device cuda, cpu or auto."),
        ("cuda:2", {"cuda": 2, "cpu": 1}, "CUDA device 2 that torch can use; use --device cuda:0 to 1, cpu or auto."),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_what_is(asked, there, says):
    with pytest.raises(UserError) as refused:
        devices.choose(asked, there, "torch")
    assert str(refused.value) == f"--device {asked}: this machine has no {says}"


@pytest.mark.parametrize("asked", ["gpu", "cuda:", "cuda:x", "auto:1", ""])
def test_what_is_no_device_is_refused(asked):
    with pytest.raises(UserError, match=f"--device '{asked}' is not one of auto, cpu, cuda, mps"):
        Settings(device=asked)
    with pytest.raises(UserError, match="Did you mean 'cuda'"):
        Settings(device="cud")


@pytest.mark.parametrize("backend", backends.NAMES)
def test_this_machine_refuses_what_it_has_not(backend, tmp_path):
    kind = next(kind for kind in ("mps", "cuda") if not backends._module(backend).devices().get(kind))
    says = f"--device {kind}: this machine has no {kind.upper()} device that {backend} can use"
    with pytest.raises(UserError, match=says):
        backends.load(backend, 1, kind)
    with pytest.raises(UserError, match=says):
        train("dqn", "CartPole-v1", out=tmp_path / "run", backend=backend, device=kind, display=False)
    assert not (tmp_path / "run").exists(), "before anything is written"


def test_a_run_can_be_looked_at_where_its_device_is_not():
    settings = Settings(backend="numpy")
    config = Experiment.create("dqn", "CartPole-v1", settings, {}).config() | {"device": "cuda"}
    found = Experiment.from_config(config)
    assert found.settings.device == "cuda" and found.parts.device == "cuda"
    with pytest.raises(UserError, match="--device cuda"):
        found.parts.learner()


def test_auto_leaves_small_networks_on_the_cpu():
    """What else it means is the backend's to say."""
    found = {}
    for environment, settings in (("CartPole-v1", {}), ("CartPole-v1", {"memory": 8}), ("ALE/Pong-v5", {})):
        parts = Experiment.create("ppo", environment, Settings(), settings).parts
        asked = [dataclasses.replace(parts, device=device) for device in ("auto", "cpu", "cuda")]
        found[environment, *settings] = [one.learner_device for one in (parts, *asked)]
    assert found == {
        ("CartPole-v1",): ["cpu", "cpu", "cpu", "cuda"],
        ("CartPole-v1", "memory"): ["cpu", "cpu", "cpu", "cuda"],
        ("ALE/Pong-v5",): ["auto", "auto", "cpu", "cuda"],
    }


@pytest.mark.parametrize("backend", backends.NAMES)
def test_the_cpu_by_name_is_the_default_to_the_bit(backend):
    parts, paths = parts_of("dqn", backend), []
    for library in (backends.load(backend, 1), backends.load(backend, 1, "cpu")):
        learner = Learner(parts.algorithm, parts.model, library, 100, seed=0)
        metrics = [learner.update(random_items(parts, draw)) for draw in range(3)]
        paths.append((metrics, vector(learner).tolist()))
    assert paths[0] == paths[1]


@pytest.mark.parametrize("backend", backends.NAMES)
def test_sent_arrays_arrive_as_they_are(backend):
    library = backends.load(backend, 1, "cpu")
    arrays = {"a": np.arange(6, dtype=np.uint8).reshape(2, 3)[:, ::2], "b": {"c": np.ones(2, np.float32)}}
    arrived = library.send(arrays)()
    again = library.to_numpy(library.from_numpy(arrived))
    assert np.array_equal(again["a"], [[0, 2], [3, 5]]) and again["a"].dtype == np.uint8
    assert np.array_equal(again["b"]["c"], [1.0, 1.0])


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_an_update_of_sent_items_is_that_of_the_items(backend):
    plain, sent = parts_of("impala", backend).learner(), parts_of("impala", backend).learner()
    for draw in range(2):
        items = random_items(parts_of("impala"), draw)
        assert plain.update(items) == sent.update(sent.backend.send(items)())
    assert np.array_equal(vector(plain), vector(sent))


TWO_DEVICES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import dataclasses, sys
import jax, numpy as np
from cavalcade import backends, tree
from cavalcade.errors import UserError
from cavalcade.learning import Learner
from tests.learning.test_learner import parts_of, random_items, vector

first, second = jax.devices("cpu")
for case in ("dqn", "impala"):
    parts = parts_of(case, "jax")
    here = dataclasses.replace(parts, device="cpu").learner()
    there = dataclasses.replace(parts, device="cpu:1").learner()

    def lies_on(learner):
        arrays = [leaf for leaf in tree.leaves(learner.arrays) if isinstance(leaf, jax.Array) and leaf.committed]
        assert learner.arrays["params"].committed and len(arrays) >= 2
        return set().union(*(leaf.devices() for leaf in arrays))

    assert (lies_on(here), lies_on(there)) == ({first}, {second})
    for draw in range(3):
        items = random_items(parts, draw)
        assert here.update(items) == there.update(there.backend.send(items)())
    assert (lies_on(here), lies_on(there)) == ({first}, {second}), "and stays there"
    assert np.array_equal(vector(here), vector(there)), "to the bit"

    other = dataclasses.replace(parts, device="cpu:1").learner()
    other.restore(here.state())
    assert lies_on(other) == {second}, "a state of one device goes on on another"
    assert other.update(items) == there.update(items) and np.array_equal(vector(other), vector(there))

    policy = parts.policy()
    assert policy.acts_in == "numpy"
    params, statistics = there.params()
    assert type(params) is np.ndarray
    policy.load(params, statistics, there.updates)
    on_backend = dataclasses.replace(parts, device="cpu:1", acts_in="backend").policy()
    on_backend.load(params, statistics, there.updates)
    assert on_backend.device[0].devices() == {first}, "acting stays on the CPU that is the default"
    obs, first_step = random_items(parts)["obs"].reshape(-1, 4)[:8], np.ones(8, bool)
    one, two = (p.act(obs, parts.model.carry(8), first_step, None)[0] for p in (policy, on_backend))
    assert np.array_equal(one, two)
try:
    backends.load("jax", 1, "cpu:2")
except UserError as error:
    print(error)
"""


def test_arrays_lie_on_the_device_that_was_chosen():
    done = subprocess.run([sys.executable, "-c", TWO_DEVICES], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "--device cpu:2: this machine has no CPU device 2 that jax can use; use --device cpu:0 to 1 or auto.\n"
    )
