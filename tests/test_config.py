"""No dead options: every field of every config is read by the code, and every field can be changed."""

import ast
import dataclasses
import inspect
from pathlib import Path

import gymnasium as gym
import pytest

import cavalcade
from cavalcade.activations import ACTIVATIONS
from cavalcade.errors import UserError
from cavalcade.experiment import ALGORITHMS, Settings
from cavalcade.networks import Torso
from cavalcade.optimiser import NAMES, Optimiser
from cavalcade.specs import EnvSpec, action_spec, observation_spec

ROOT = Path(cavalcade.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def last_name(node: ast.expr) -> str:
    """`algorithm` of `algorithm`, of `self.algorithm` and of `policy.algorithm`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def reads(nodes) -> set[tuple[str, str]]:
    """(owner, field) for every `owner.field` that is read, and for `getattr(owner, "field", ...)`."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add((last_name(node.value), node.attr))
        elif (
            isinstance(node, ast.Call) and last_name(node.func) == "getattr" and isinstance(node.args[1], ast.Constant)
        ):
            found.add((last_name(node.args[0]), node.args[1].value))
    return found


def class_nodes(kind: type):
    """Every node inside the bodies of a class and of the classes it inherits from."""
    for base in kind.__mro__[:-1]:
        source = Path(inspect.getfile(base))
        for node in ast.walk(TREES[source]):
            if isinstance(node, ast.ClassDef) and node.name == base.__name__:
                yield from ast.walk(node)


EVERYWHERE = reads(node for parsed in TREES.values() for node in ast.walk(parsed))


def unread(kind: type, owners: set[str]) -> list[str]:
    """Fields read neither as `self.field` in the class itself nor through one of the names it goes by elsewhere."""
    inside = {field for owner, field in reads(class_nodes(kind)) if owner == "self"}
    outside = {field for owner, field in EVERYWHERE if owner in owners}
    return [field.name for field in dataclasses.fields(kind) if field.name not in inside | outside]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_field_of_an_algorithm_is_read(name):
    assert unread(ALGORITHMS[name], {"algorithm"}) == []


@pytest.mark.parametrize(
    "kind, owners",
    [(Settings, {"s", "settings"}), (Torso, {"settings"}), (Optimiser, {"s", "settings"})],
)
def test_every_field_of_a_config_is_read(kind, owners):
    assert unread(kind, owners) == []


def test_a_dead_option_would_be_found():
    text = "class A:\n  used: int = 1\n  asked: int = 1\n  dead: int = 1\n  def f(self):\n    self.dead = 2\n"
    text += "    return self.used + getattr(self, 'asked')\n"
    found = reads(ast.walk(ast.parse(text)))
    assert found == {("self", "used"), ("self", "asked")}, "definitions and assignments are no reads"


# --- changing fields ----------------------------------------------------------------------------------------------

CHOICES = {  # for words, another one that means something
    "optimiser_name": list(NAMES),
    "activation": list(ACTIVATIONS),
    "convolution": ["nature", "impala"],
    "surrogate": ["clip", "penalty"],
    "kl_rule": ["ppo", "rllib", "heess"],
    "correction": ["vtrace", "one-step", "epsilon", "none"],
}


def other_values(field: dataclasses.Field) -> list:
    default = field.default
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return sorted({default + 1, max(1, default // 2)} - {default})
    if isinstance(default, float):
        return [default / 2 + 0.01]
    if isinstance(default, tuple):
        return [(32,), (8, 8, 8)]
    assert field.name in CHOICES, f"say which words {field.name} may be"
    return [word for word in CHOICES[field.name] if word != default]


CHANGES = [
    (name, field.name, value)
    for name, kind in ALGORITHMS.items()
    for field in dataclasses.fields(kind)
    for value in other_values(field)
]


@pytest.mark.parametrize("name, field, value", CHANGES, ids=lambda v: str(v))
def test_a_changed_field_is_accepted_and_everything_can_still_be_built(name, field, value):
    algorithm = ALGORITHMS[name](**{field: value})
    assert getattr(algorithm, field) == value and algorithm != ALGORITHMS[name]()
    spec = EnvSpec("", observation_spec(gym.spaces.Box(-1, 1, (4,))), action_spec(gym.spaces.Discrete(3)))
    assert algorithm.model(spec).heads
    assert algorithm.experience().item and algorithm.optimiser(100).name in NAMES
    assert algorithm.updates(10_000, 8) > 0


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    "field, word, nearest",
    [("activation", "reluu", "relu"), ("convolution", "impal", "impala"), ("optimiser_name", "adm", "adam")],
)
def test_a_word_that_means_nothing_is_refused_with_the_nearest(name, field, word, nearest):
    spec = EnvSpec("", observation_spec(gym.spaces.Box(-1, 1, (4,))), action_spec(gym.spaces.Discrete(3)))
    with pytest.raises(UserError, match=f"'{word}'.*Did you mean '{nearest}'"):
        algorithm = ALGORITHMS[name](**{field: word})
        algorithm.optimiser(100)
        algorithm.model(spec)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_are_frozen(name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        ALGORITHMS[name]().discount = 0.5


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_declares_what_architectures_ask(name):
    algorithm = ALGORITHMS[name]()
    assert algorithm.reuse in ("once", "many") and algorithm.target_period >= 0
    spec = EnvSpec("", observation_spec(gym.spaces.Box(-1, 1, (4,))), action_spec(gym.spaces.Discrete(3)))
    assert algorithm.acts_by in algorithm.model(spec).heads


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"backend": "tensorflow"}, "--backend 'tensorflow' is not one of torch, jax, numpy"),
        ({"backend": "toch"}, "Did you mean 'torch'"),
        ({"runtime": "in-process"}, "--runtime 'in-process'"),
        ({"acts_in": "gpu"}, "--acts-in 'gpu'"),
        ({"steps": 0}, "--steps is 0"),
        ({"envs": 0}, "--envs is 0"),
        ({"actors": -1}, "--actors is -1"),
        ({"rows": 0}, "--rows is 0"),
        ({"evaluation_episodes": 0}, "--evaluation-episodes is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(wrong, says):
    with pytest.raises(UserError, match=says):
        Settings(**wrong)


@pytest.mark.parametrize("field", dataclasses.fields(Settings), ids=lambda field: field.name)
def test_every_setting_can_be_changed(field):
    words = {"backend": "numpy", "runtime": "inprocess", "acts_in": "numpy", "target": 10.0, "storage": "file"}
    words |= {"device": "cpu", "address": "here:1"}
    words |= {"acting": "central", "experience": "bundled", "updates": "hogwild"}
    value = words[field.name] if field.name in words else field.default + 1
    needed = {"runtime": "ray"} if field.name == "address" else {}
    assert getattr(Settings(**{**needed, field.name: value}), field.name) == value
