"""`cavalcade table`: figures of the table and single items, against the run they come from."""

import re
import shutil

import numpy as np
import pytest

import cavalcade
from cavalcade.__main__ import main
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.experiment.matrix import why_not, wirings
from cavalcade.records.folder import Run
from cavalcade.runs.inspection import SavedTables
from tests.helpers.leftovers import nothing_is_left  # noqa: F401

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
    tables = SavedTables(run.path)
    assert code == 0 and f"at step {tables.step}" in text and tables.step == 600
    assert "draws prioritised (0.6), removes fifo" in text
    bars = re.findall(r"to \S+ +([\d,]+)  #*", text)
    with tables.open(0) as (table, version):
        assert f"holds {len(table):,} of 50,000 items" in text and len(table) > 500
        assert f"the learner is at {version:,}" in text
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
    with SavedTables(run.path).open(0) as (table, _):
        newest = len(table) - 1
    assert shown(capsys, run.path, "--item", -1)[1] == shown(capsys, run.path, "--item", newest)[1]


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
    with SavedTables(run.path).open(0) as (table, _):
        table.check()
        places = np.flatnonzero(table.key >= 0).astype(np.int32)
        items = table.signature.build(table.rows, table.slots[places], table.own.read(places))
        assert len(table) > 100 and np.isfinite(items["obs"]).all()


def test_the_table_of_a_run_in_processes_is_shown_too(capsys, tmp_path):
    settings = {**SMALL, "runtime": "process", "replay_start": 100}
    run = cavalcade.train("dqn", "CartPole-v1", steps=600, out=tmp_path / "run", **settings)
    code, text, _ = shown(capsys, run.path)
    assert code == 0 and "draws uniform, removes fifo" in text and "policy versions: 0 to" in text
    assert shown(capsys, run.path, "--item", -1)[0] == 0


# --- several tables -----------------------------------------------------------------------------------------------

TINY = {
    "dqn": {"hidden": (8,), "replay_size": 500, "replay_start": 40, "batch": 8},
    "a2c": {"hidden": (8,), "unroll": 4},
    "impala": {"hidden": (8,), "unroll": 4, "batch": 4},
}
EVERY = [(algorithm, row) for algorithm in ("dqn", "a2c", "impala") for row in wirings() if not why_not(algorithm, row)]


def after_some_rounds(path, system, settings, overrides):
    """A run in one process with a checkpoint after 40 rounds; its tables by name as they were then."""
    settings = Settings(backend="numpy", envs=2, actors=2, evaluations=0, steps=500, **settings)
    experiment = Experiment.create(system, "CartPole-v1", settings, overrides)
    run, runtime = Run.create(path, experiment.config()), experiment.launch()
    for _ in range(40):
        runtime.round()
    runtime.save(run.checkpoints, 40, {})
    sizes = [len(node) for name, node in runtime.objects.items() if name.split("/")[0] == "table"]
    runtime.close()
    return run, sizes


@pytest.mark.parametrize(
    "algorithm, row", EVERY, ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_every_row_shows_each_of_its_tables(capsys, tmp_path, algorithm, row):
    acting, experience, updates = row
    settings = {"acting": acting, "experience": experience, "updates": updates, "learners": 1 + (updates != "own")}
    run, sizes = after_some_rounds(tmp_path / "run", algorithm, settings, TINY[algorithm])
    code, text, _ = shown(capsys, run.path)
    assert code == 0 and text.count("holds ") == len(sizes)
    assert re.findall(r"^table/\d+", text, re.M) == [f"table/{k}" for k in range(len(sizes))] * (len(sizes) > 1)
    assert [int(n.replace(",", "")) for n in re.findall("holds ([\\d,]+) of", text)] == sizes
    for k in range(len(sizes)):
        with SavedTables(run.path).open(k) as (table, version):
            table.check()
            assert not len(table) or f"the learner is at {version:,}" in text


def test_of_several_tables_one_is_chosen_by_its_number(capsys, tmp_path):
    settings = {"experience": "shards", "shards": 2}
    run, sizes = after_some_rounds(tmp_path / "run", "dqn", settings, TINY["dqn"])
    code, text, _ = shown(capsys, run.path, "--table", 1)
    assert code == 0 and f"holds {sizes[1]} of" in text and "table/1 of" in text and text.count("holds ") == 1
    code, text, _ = shown(capsys, run.path, "--table", 1, "--item", 0)
    assert code == 0 and "item 0: priority" in text and "environment 2, episode" in text, "it has the second actor"
    code, _, error = shown(capsys, run.path, "--item", 0)
    assert (
        code == 2 and "This run has 2 tables, and each numbers its items: say which one with --table 0 to 1." in error
    )
    code, _, error = shown(capsys, run.path, "--table", 2)
    assert code == 2 and "There is no table 2: this run has the tables 0 to 1." in error


def test_a_queue_and_the_replay_beside_it_are_both_shown(capsys, tmp_path):
    more = {"replay_share": 0.5, "replay_size": 50}
    run, (waiting,) = after_some_rounds(tmp_path / "run", "impala", {}, {**TINY["impala"], **more})
    code, text, _ = shown(capsys, run.path)
    assert code == 0 and re.findall(r"^(queue|replay): draws (\w+)", text, re.M) == [
        ("queue", "fifo"),
        ("replay", "uniform"),
    ]
    assert f"holds {waiting} of" in text and re.search(r"holds \d+ of 50 items", text)
    code, text, _ = shown(capsys, run.path, "--item", 1)
    assert code == 0 and text.count("item 1: ") == 1 and "replay: item 1: " in text, "the queue has it no more"
    code, _, error = shown(capsys, run.path, "--item", 10**6)
    assert code == 2 and "There is no item 1000000" in error


@pytest.fixture(scope="module")
def gorila(tmp_path_factory):
    settings = {**SMALL, "runtime": "process", "actors": 2, "replay_start": 100, "replay_size": 500}
    return cavalcade.train("gorila-dqn", "CartPole-v1", steps=600, out=tmp_path_factory.mktemp("run") / "a", **settings)


def test_the_tables_of_gorila_in_processes_are_shown(gorila, capsys):
    code, text, _ = shown(capsys, gorila.path)
    assert code == 0 and re.findall(r"^table/\d+", text, re.M) == ["table/0", "table/1"]
    assert shown(capsys, gorila.path, "--table", 1, "--item", -1)[0] == 0


def test_a_process_whose_part_cannot_be_read_is_named(gorila, capsys, tmp_path):
    run = shutil.copytree(gorila.path, tmp_path / "run")
    shutil.rmtree(run / "checkpoints" / "worker" / "1")
    code, text, error = shown(capsys, run)
    assert code == 2 and "table/0 of" in text and re.search("What .*worker/1 holds of step .* cannot be read", error)
