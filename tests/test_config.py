"""No dead options: every field of every config is read by the code, and every field can be changed."""

import ast
import dataclasses
import inspect
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import cavalcade
from cavalcade.config import Config, described, setting
from cavalcade.envs.spaces import action_spec, observation_spec
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import ALGORITHMS
from cavalcade.experiment.matrix import HOME
from cavalcade.experiment.run_settings import GROUPS, Settings
from cavalcade.experiment.systems import example
from cavalcade.experiment.typed_settings import KINDS
from cavalcade.networks.torso import Torso
from cavalcade.optimiser import Optimiser
from cavalcade.specs import EnvSpec
from cavalcade.tree import named

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


WRONG = {"activation": ("reluu", "relu"), "convolution": ("impal", "impala"), "optimiser_name": ("adm", "adam")}


@pytest.mark.parametrize(
    "name, field", [(name, field) for name, kind in ALGORITHMS.items() for field in WRONG if field in described(kind)]
)
def test_a_word_that_means_nothing_is_refused_with_the_nearest(name, field):
    word, nearest = WRONG[field]
    with pytest.raises(UserError, match=f"'{word}'.*Did you mean '{nearest}'"):
        ALGORITHMS[name](**{field: word})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_are_frozen(name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        ALGORITHMS[name]().discount = 0.5


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_declares_what_architectures_ask(name):
    algorithm = ALGORITHMS[name]()
    assert algorithm.max_lag in (0, None) and (algorithm.target() is None) == (name in ("a2c", "ppo", "impala", "pg"))
    continuous = example(HOME[name]) == "Pendulum-v1"
    actions = gym.spaces.Box(-2, 2, (3,)) if continuous else gym.spaces.Discrete(3)
    model = algorithm.model(EnvSpec("", observation_spec(gym.spaces.Box(-1, 1, (4,))), action_spec(actions)))
    assert {"policy", "q"} & {model.part_of(path) for path, _ in named(model.init(np.random.default_rng(0)))}


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


@pytest.mark.parametrize("kind", [Settings, *ALGORITHMS.values()], ids=lambda kind: kind.__name__)
def test_every_setting_has_a_sentence_and_a_group(kind):
    for one in described(kind).values():
        assert one.about.sentence and one.about.group in GROUPS, one.name


# --- one conversion, one check ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Some(Config):
    count: int = setting(1, "of something", at_least=1)
    share: float = setting(0.5, "of something", at_least=0, at_most=1)
    rate: float = setting(1e-3, "of something", above=0)
    limit: float | None = setting(None, "of something")
    on: bool = setting(True, "or off")
    sizes: tuple[int, ...] = setting((64, 64), "of something", at_least=1)
    word: str = setting("a", "of two", words=("a", "bee"))


@pytest.mark.parametrize(
    "name, given, held",
    [
        ("count", 1e5, 100_000),
        ("count", "1e5", 100_000),
        ("count", "100_000", 100_000),
        ("count", np.int64(3), 3),
        ("share", "0.25", 0.25),
        ("share", 1, 1.0),
        ("rate", "1e-3", 0.001),
        ("limit", "none", None),
        ("limit", -150, -150.0),
        ("on", "False", False),
        ("on", "yes", True),
        ("on", 0, False),
        ("sizes", 64, (64,)),
        ("sizes", "32,16", (32, 16)),
        ("sizes", [32, 16.0], (32, 16)),
        ("sizes", (), ()),
    ],
)
def test_what_means_the_same_is_the_same(name, given, held):
    made = getattr(Some(**{name: given}), name)
    assert made == held and type(made) is type(held)


@pytest.mark.parametrize(
    "name, given, says",
    [
        ("count", 0, "--count is 0; it has to be a whole number of at least 1."),
        ("count", 0.5, "--count is 0.5; it has to be a whole number of at least 1."),
        ("count", "8x", "--count is '8x'; it has to be a whole number of at least 1."),
        ("count", True, "--count is True; it has to be a whole number"),
        ("count", float("inf"), "--count is inf; it has to be a whole number"),
        ("share", 1.5, "--share is 1.5; it has to be a number from 0 to 1."),
        ("share", "nan", "--share is 'nan'; it has to be a number from 0 to 1."),
        ("share", None, "--share is None; it has to be a number from 0 to 1."),
        ("rate", 0, "--rate is 0.0; it has to be a number above 0."),
        ("limit", "soon", "--limit is 'soon'; it has to be a number, or none."),
        ("on", "maybe", "--on is 'maybe'; it has to be true or false."),
        ("on", 2, "--on is 2; it has to be true or false."),
        ("sizes", (64, 0), "--sizes is 64 0; it has to be whole numbers such as 64 64 of at least 1."),
        ("sizes", "big", "--sizes is 'big'; it has to be whole numbers"),
        ("word", "be", "--word 'be' is not one of a, bee. Did you mean 'bee'"),
        ("word", 3, "--word '3' is not one of a, bee."),
    ],
)
def test_what_cannot_be_is_refused_with_type_and_range(name, given, says):
    with pytest.raises(UserError) as refused:
        Some(**{name: given})
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_discount_above_one_is_refused_everywhere(name):
    with pytest.raises(UserError, match=r"--discount is 1.5; it has to be a number from 0 to 1\."):
        ALGORITHMS[name](discount=1.5)


def test_a_changed_default_keeps_its_range():
    @dataclasses.dataclass(frozen=True)
    class More(Some):
        count: int = 5

    assert More().count == 5
    with pytest.raises(UserError, match="--count is 0; it has to be a whole number of at least 1"):
        More(count=0)


# --- settings as one object ---------------------------------------------------------------------------------------


def test_settings_are_one_object_with_every_value_of_the_run():
    made = cavalcade.settings("apex-dqn", learning_rate="3e-4", steps=1e4)
    assert made.priority_exponent == 0.6 and made.learning_rate == 3e-4 and made.steps == 10_000
    assert made.replace(hidden=32).hidden == (32,)
    assert {*described(Settings), *described(ALGORITHMS["dqn"])} == set(described(type(made)))
    assert set(KINDS) == set(ALGORITHMS)
    for wrong in (lambda: made.replace(hiden=32), lambda: cavalcade.settings("apex-dqn", hiden=32)):
        with pytest.raises(UserError, match=r"'hiden'\. Did you mean 'hidden'"):
            wrong()


def test_settings_train_a_run_and_keywords_change_them(tmp_path):
    made = cavalcade.settings("ppo", steps=128, envs=4, unroll=8, backend="numpy", hidden=8, evaluations=0, seed=3)
    run = cavalcade.train("ppo", "CartPole-v1", settings=made, seed=5, out=tmp_path / "run", display=False)
    assert run.config["seed"] == 5 and run.config["envs"] == 4 and run.config["algorithm"]["hidden"] == [8]
    with pytest.raises(UserError, match=r"are PPOSettings, but dqn takes those of cavalcade.settings\('dqn'\)"):
        cavalcade.train("dqn", "CartPole-v1", settings=made)


def test_names_that_are_no_setting_get_the_nearest_of_run_and_algorithm():
    for wrong, near in (("learning_rat", "learning_rate"), ("step", "steps"), ("callback", "callbacks")):
        with pytest.raises(UserError, match=rf"ppo has no setting '{wrong}'\. Did you mean '{near}'"):
            cavalcade.train("ppo", "CartPole-v1", **{wrong: 1})
