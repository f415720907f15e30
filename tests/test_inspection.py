"""`cavalcade table`: figures of the table and single items, against the run they come from."""

import re

import numpy as np
import pytest

import cavalcade
from cavalcade.__main__ import main
from cavalcade.inspection import load_table

SMALL = {"backend": "numpy", "hidden": (8,), "envs": 2, "evaluations": 0, "display": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return cavalcade.train(
        "dqn",
        "CartPole-v1",
        steps=600,
        replay_start=100,
        priority_exponent=0.6,
        out=tmp_path_factory.mktemp("run") / "dqn",
        **SMALL,
    )


def shown(capsys, *arguments):
    code = main(["table", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_table_is_described(run, capsys):
    code, text, _ = shown(capsys, run.path)
    table, step, version = load_table(run.path)
    assert code == 0 and f"at step {step}" in text and step == 600
    assert "draws prioritised (0.6), removes fifo" in text
    assert f"holds {len(table):,} of 50,000 items" in text and len(table) > 500
    assert f"the learner is at {version:,}" in text
    bars = re.findall(r"to \S+ +([\d,]+)  #*", text)
    assert sum(int(count.replace(",", "")) for count in bars) == len(table), "every item is in one bar"


def test_an_item_is_shown_as_its_episode_and_step(run, capsys):
    """Steps of the same environment and episode follow each other in the numbers of the table's items."""
    code, text, _ = shown(capsys, run.path, "--item", 3)
    assert code == 0
    assert re.search(r"item 3: priority \S+, drawn \d+ times", text)
    environment, episode, first, last = map(
        int, re.search(r"environment (\d+), episode (\d+), steps (\d+) to (\d+)", text).groups()
    )
    assert environment == 1 and episode == 1 and last - first <= 3, "item 3 is the second of environment 1"
    assert first == 1
    for leaf in ("obs", "next_obs", "action", "reward", "discount"):
        assert f"  {leaf}: " in text
    assert (
        shown(capsys, run.path, "--item", -1)[1]
        == shown(capsys, run.path, "--item", len(load_table(run.path)[0]) - 1)[1]
    )


def test_items_and_runs_that_are_not_there(run, capsys, tmp_path):
    code, _, error = shown(capsys, run.path, "--item", 10**6)
    assert code == 2 and "There is no item 1000000: 0 to" in error
    assert shown(capsys, tmp_path / "nothing")[0] == 2
    assert "Usage: cavalcade table RUN" in shown(capsys)[2]


def test_an_emptied_queue_says_so(capsys, tmp_path):
    run = cavalcade.train("ppo", "CartPole-v1", steps=64, unroll=8, out=tmp_path / "ppo", **SMALL)
    code, text, _ = shown(capsys, run.path)
    assert code == 0 and ("no items" in text or "holds 2" in text)


def test_a_looked_at_table_is_whole(run):
    table, _, _ = load_table(run.path)
    table.check()
    assert np.isfinite(table.sample(32).items["obs"]).all()


def test_the_table_of_a_run_in_processes_is_shown_too(capsys, tmp_path):
    settings = {**SMALL, "runtime": "process", "replay_start": 100}
    run = cavalcade.train("dqn", "CartPole-v1", steps=600, out=tmp_path / "run", **settings)
    code, text, _ = shown(capsys, run.path)
    assert code == 0 and "draws uniform, removes fifo" in text and "policy versions: 0 to" in text
    assert shown(capsys, run.path, "--item", -1)[0] == 0
