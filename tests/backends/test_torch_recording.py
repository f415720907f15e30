"""Recorded programs of torch: what they may hold, what is left to eager calls, and what recording must not cost."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from cavalcade.backends.torch_recording import Recorded  # noqa: E402
from cavalcade.experiment import Experiment, Settings  # noqa: E402
from tests.learning.test_learner import random_items  # noqa: E402

FIXED = torch.tensor([1.0, 2.0, 3.0])


def given(seed, updates=Recorded.WARM_UP):
    torch.manual_seed(seed)
    state = {"params": torch.randn(3), "count": torch.zeros(()), "updates": updates}
    return state, {"x": torch.randn(5, 3)}, torch.tensor([4, 0, 2])


def gradient(state, samples, index):
    """Leaves of both kinds, results of several tensors, a constant, and a change in place."""
    params = state["params"].detach().requires_grad_()
    with torch.enable_grad():
        best, where = (torch.index_select(samples["x"], 0, index) * params + FIXED).max(1)
        one, two, _ = torch.unbind(best)
        (found,) = torch.autograd.grad((one * two).tanh() + 0.1 * where.sum() * best.sum(), [params])
    state["params"] -= 0.5 * found
    state["count"] += 1
    return torch.cat([found, state["count"][None]])


def by_value(state, samples, index):
    state["params"] += 1.0
    return state["params"] * 2 if state["params"].sum().item() > 0 else state["params"]


def by_size(state, samples, index):
    kept = samples["x"][samples["x"] > 0]
    return kept.sum() / len(kept)


def run(function, updates):
    recorded, results = Recorded(function), []
    for seed in range(4):
        state, samples, index = given(seed, updates)
        results += [recorded(state, samples, index).clone(), state["params"], state["count"]]
    return results, list(recorded.programs.values())


@pytest.mark.parametrize("function, recordable", [(gradient, True), (by_value, False), (by_size, False)])
def test_what_depends_on_shapes_alone_is_recorded_and_the_rest_is_called(function, recordable):
    """Four times with other numbers, in the bits of eager calls; recording itself changes nothing that was given."""
    eager, none = run(function, 0)
    found, programs = run(function, Recorded.WARM_UP)
    assert not none and [program is not None for program in programs] == [recordable]
    assert all(torch.equal(one, other) for one, other in zip(found, eager, strict=True))


PLAIN = {"hidden": (8, 8), "anneal": False}


@pytest.mark.parametrize(
    "system, settings, most",
    [("dqn", {"double": False, "dueling": False, "batch": 8, "replay_start": 64}, 90), ("ppo", {"unroll": 8}, 158)],
)
def test_an_update_has_few_operations_and_takes_no_vector_apart(system, settings, most):
    """Each costs microseconds, whatever it does. DQN had 132 of them and PPO 223, a slice and a reshape for each layer
    among them."""
    settings = {**PLAIN, **settings}
    parts = Experiment.create(system, "CartPole-v1", Settings(steps=4_000, backend="torch", envs=4), settings).parts
    learner = parts.learner()
    for seed in range(3):
        learner.update(random_items(parts, seed))
    (program,) = learner.backend.stepping[1].programs.values()
    kinds = [node.kind() for node in program.replay.graph.nodes() if node.kind().startswith("aten::")]
    assert len(kinds) <= most and "aten::slice" not in kinds


def test_recording_imports_no_compiler():
    """It takes seconds, in the middle of a run."""
    script = """
import sys
from cavalcade.experiment import Experiment, Settings
parts = Experiment.create("dqn", "CartPole-v1", Settings(steps=4_000, backend="torch"), {"hidden": (8,)}).parts
learner = parts.learner()
from tests.learning.test_learner import random_items
for seed in range(8):
    learner.update(random_items(parts, seed))
assert [program is not None for program in learner.backend.stepping[1].programs.values()] == [True]
found = {"sympy", "torch._dynamo", "torch._inductor"} & set(sys.modules)
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
