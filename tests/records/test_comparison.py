"""What tells runs apart: different settings are different lines with names that say so, seeds and repeats are one."""

from pathlib import Path

import pytest

from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment
from cavalcade.experiment.run_settings import Settings
from cavalcade.records.comparison import LONGEST_LABEL, lines
from cavalcade.records.folder import Run


def run(folder: str = "run", system: str = "ppo", **changed) -> Run:
    """A run whose config is a real one, changed."""
    config = CONFIGS[system]
    options, algorithm = changed.pop("options", {}), changed.pop("algorithm", {})
    return Run(
        Path(folder), {**config, "options": options, "algorithm": {**config["algorithm"], **algorithm}, **changed}
    )


CONFIGS = {name: Experiment.create(name, "CartPole-v1", Settings(), {}).config() for name in ("ppo", "dqn")}


def labels(*runs: Run) -> list[tuple[str, int]]:
    return [(line.label, len(line.runs)) for line in lines(runs)]


def test_seeds_repeats_and_what_changes_no_learning_are_one_line():
    same = {"target": 400.0, "rows": 10, "checkpoint_seconds": 1.0, "evaluations": 3, "versions": {"numpy": "1"}}
    assert labels(run(seed=1), run(seed=2), run(seed=2), run(seed=3, **same)) == [("ppo", 4)]


def test_lines_are_named_by_what_differs():
    slow, deep = {"learning_rate": 1e-4}, {"learning_rate": 1e-4, "hidden": [32, 32]}
    found = labels(run(), run(seed=1, algorithm=slow), run(seed=2, algorithm=slow), run(algorithm=deep))
    assert found == [
        ("learning-rate 0.001, hidden 64 64", 1),
        ("learning-rate 0.0001, hidden 64 64", 2),
        ("learning-rate 0.0001, hidden 32 32", 1),
    ]
    assert labels(run(), run(environment="Acrobot-v1", backend="jax")) == [
        ("CartPole-v1, torch", 1),
        ("Acrobot-v1, jax", 1),
    ]
    assert labels(run(), run(options={"arms": 4})) == [("arms=default", 1), ("arms=4", 1)]
    assert labels(run(), run(updates="allreduce", steps=20_000)) == [
        ("steps 100,000, updates default", 1),
        ("steps 20,000, updates allreduce", 1),
    ]


def test_systems_are_not_compared_by_settings_that_only_one_of_them_has():
    found = labels(run(), run(algorithm={"normalise_advantages": False}), run(system="dqn", seed=4))
    assert [label for label, _ in found] == ["ppo, normalise-advantages", "ppo, no normalise-advantages", "dqn"]


def test_a_setting_that_an_older_config_does_not_have_tells_nothing_apart():
    old, older = run(seed=1), run(seed=2)
    del old.config["storage"], older.config["algorithm"]["discount"]
    assert labels(old, older, run()) == [("ppo", 3)]
    assert labels(Run(Path("a"), {}), Run(Path("b"), {}), run("c")) == [("a", 2), ("ppo", 1)]


def test_long_labels_are_short_and_still_different():
    many = {"learning_rate": 1e-4, "discount": 0.9, "epochs": 1, "minibatches": 2, "clip": 0.3, "hidden": [8, 8, 8]}
    most = {**many, "entropy_cost": 0.5, "max_gradient_norm": 3.0}
    names = [label for label, _ in labels(run("one"), run("two", algorithm=many), run("three", algorithm=most))]
    assert len(set(names)) == 3 and all(len(name) < LONGEST_LABEL + 20 for name in names)
    assert names[0] == "discount 0.99, learning-rate 0.001, entropy-cost 0, 4 more"
    a, b = (run(environment=f"{'package.' * 9}{word}:Id-v0") for word in ("one", "two"))
    assert [label for label, _ in labels(a, b)] == [
        "package.package…ackage.one:Id-v0",
        "package.package…ackage.two:Id-v0",
    ]


def test_labels_that_were_given():
    runs = [run(seed=1), run(seed=2), run(system="dqn")]
    assert [(line.label, len(line.runs)) for line in lines(runs, ["mine", "other"])] == [("mine", 2), ("other", 1)]
    assert [(line.label, len(line.runs)) for line in lines(runs, ["a", "b", "a"])] == [("a", 2), ("b", 1)]
    with pytest.raises(
        UserError, match=r"1 label fits neither the 3 run folders nor the 2 lines they make \(ppo; dqn\)"
    ):
        lines(runs, ["a"])
