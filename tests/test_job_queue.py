"""The queue of runs behind `make tasks` and `make learn`, with real runs: what is done is skipped, what was cut off
goes on, other settings are another run; and the table and the picture that are made of them."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from cavalcade.experiment import systems

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))  # where the scripts find each other

import atari  # noqa: E402
import document  # noqa: E402
import job as one_job  # noqa: E402
import job_queue  # noqa: E402
import learn  # noqa: E402
import tasks  # noqa: E402
import tasks_picture  # noqa: E402
import tasks_table  # noqa: E402
from job import Job  # noqa: E402

SMALL = "--backend numpy --hidden 8 --unroll 16 --envs 2 --evaluations 2 --evaluation-episodes 1"
TINY = f"a2c CartPole-v1 {SMALL} --steps 400"
LONG = f"a2c CartPole-v1 {SMALL} --steps 12000 --checkpoint-seconds 0.1"


@pytest.fixture(scope="module", autouse=True)
def apart(tmp_path_factory):
    """Runs that are not nice, which beside other tests would wait for minutes, and results that are not the
    project's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_job, "CAVALCADE", one_job.CAVALCADE[1:])
        patch.setattr(one_job, "SCORES", tmp_path_factory.mktemp("scores"))
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("queue")


@pytest.fixture(scope="module")
def done(root):
    """A job that is done, in a queue with one that fails; what was printed."""
    good, bad = Job("good", TINY, 1, root, episodes=3), Job("bad", f"a2c CartPole-v1 {SMALL} --steps 1", 1, root)
    assert job_queue.work([bad, good]) == 1
    assert bad.result is None and "ends before the first update" in bad.log.read_text()
    return good


def wait_for(condition):
    for _ in range(1_200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited for a minute")


def test_a_result_says_what_was_judged_and_how_it_was_made(done):
    result = done.result
    assert result.episodes == 3 == len(result.returns) and result.mean == pytest.approx(np.mean(result.returns))
    assert (result.steps, result.settings, result.seconds > 0) == (400, done.fingerprint, True)
    assert result.command == f"cavalcade train {TINY} --seed 1"
    assert [step for step, _ in result.evaluations] == [200, 400]
    assert not done.run.checkpoints.exists() and done.run.policy.exists()


def test_what_was_done_on_another_machine_is_done(done, root, monkeypatch, tmp_path):
    """The line of the result belongs to the project; the run folder does not."""
    elsewhere = replace(done, root=tmp_path / root.name)
    assert elsewhere.result == done.result and not elsewhere.begun
    assert job_queue.work([elsewhere]) == 0 and not elsewhere.begun
    monkeypatch.setattr(one_job, "SCORES", tmp_path)
    assert replace(done).result is None


def test_what_is_done_is_skipped_and_equal_settings_are_one_run(done, root, capsys):
    before = done.log.read_text(), done.result
    twin = Job("twin", f"{TINY} --discount 0.99 --threads 1", 1, root, episodes=3)  # says what is the default anyway
    assert twin.folder == done.folder
    assert job_queue.work([done, twin]) == 0
    assert capsys.readouterr().out == "2 of 2 jobs are done\n" and (done.log.read_text(), done.result) == before
    job_queue.show([done, twin])
    assert "2 jobs in 1 runs" in capsys.readouterr().out


@pytest.mark.parametrize("other", [{"command": f"{TINY} --discount 0.9"}, {"seed": 2}, {"episodes": 4}])
def test_other_settings_are_another_run(done, other):
    changed = replace(done, **other)
    assert changed.result is None and not changed.begun and done.result


def test_a_default_that_has_changed_in_the_code_is_another_run(done, monkeypatch):
    monkeypatch.setitem(systems.SYSTEMS, "a2c", replace(systems.SYSTEMS["a2c"], settings={"log_epsilon": 0.5}))
    monkeypatch.setattr(one_job, "config_of", one_job.config_of.__wrapped__)
    assert replace(done).result is None


def test_what_cannot_be_run_here_has_a_reason_and_no_result(root):
    refused = Job("refused", "a2c NoSuchTask-v0", 1, root)
    assert "NoSuchTask-v0" in refused.refusal and refused.result is None


QUEUE = f"""
import sys
sys.path.append({str(BENCHMARKS)!r})
from pathlib import Path
import job
from job_queue import main
job.CAVALCADE, job.SCORES = job.CAVALCADE[1:], Path(sys.argv.pop())
sys.exit(main(None, [job.Job("long", {LONG!r}, 1, Path(sys.argv.pop()), episodes=2)], lambda: print("written")))
"""


def test_a_job_that_was_stopped_or_killed_goes_on_and_does_not_begin_anew(tmp_path, capsys):
    job = Job("long", LONG, 1, tmp_path, episodes=2)
    given = str(tmp_path), str(one_job.SCORES)
    queue = subprocess.Popen([sys.executable, "-c", QUEUE, *given], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: job.begun and job.run.rows())
    queue.send_signal(signal.SIGTERM)
    said = queue.communicate(timeout=60)[0]
    assert queue.returncode == 130 and "long seed 1: stopped at step" in said and "written" in said
    stopped, begun_with = job.steps[0], job.run.rows()[0]
    assert 0 < stopped < 12_000 and list(job.run.checkpoints.glob("step-*"))

    running = job_queue.Running(job, 1, alone=True)
    with pytest.raises(job_queue.Taken):
        job_queue.Running(job, 1, alone=True)
    wait_for(lambda: job.steps[0] > stopped)
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    running.log.close()
    assert job.steps[0] < 12_000 and job.result is None

    assert job_queue.work([job]) == 0
    assert "begins, going on from step" in capsys.readouterr().out
    assert job.result.steps >= 12_000 and job.run.rows()[0] == begun_with, "the first row is still that of the first"
    assert "No checkpoint was written yet" not in job.log.read_text()


def test_a_job_that_somebody_else_runs_is_passed_over(tmp_path, capsys):
    job = Job("taken", TINY, 1, tmp_path)
    with job.log.open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert job_queue.work([job]) == 1
    assert "taken seed 1 is being run by somebody else" in capsys.readouterr().out and not job.begun


# --- statistics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "middle"),
    [([8, 1, 7, 2, 6, 3, 5, 4], 4.5), ([100, 1, 2, 3, -50], 2.0), ([3, 5, 10], 6.0), ([7], 7.0)],
)
def test_interquartile_mean(values, middle):
    assert tasks_table.interquartile_mean(np.array(values, float)) == middle


def test_interval_of_constant_seeds_is_a_point_because_seeds_are_not_exchanged():
    assert tasks_table.interval([[0.0] * 4, [10.0] * 4]) == (5.0, 5.0)


def test_interval_of_a_coin():
    """One draw of two values is 0, 0.5 or 1 (a quarter of two, rounded down, is nothing): all of them within 95 %."""
    assert tasks_table.interval([[0.0, 1.0]]) == (0.0, 1.0)
    low, high = tasks_table.interval([[0.0, 1.0] * 200])
    assert 0.3 < low < 0.5 < high < 0.7


# --- table and picture ---------------------------------------------------------------------------------------------


@dataclass
class Row:
    """A row of tasks.py with jobs of a test."""

    task: str
    settings: str
    jobs: list
    goal: tasks.Goal | None = None
    system: str = "a2c"
    steps: int = 400
    command: str = TINY


def finished(root, command, seed, returns, evaluations=()):
    """A job with a result and evaluations that nobody has trained for."""
    job = Job("made", command, seed, root)
    job.folder.mkdir(parents=True)
    rows = [{"step": step, "time": 2.0, "evaluation": value, "evaluation_step": step} for step, value in evaluations]
    (job.folder / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows or [{"step": 9, "time": 2}])
    )
    (job.folder / "config.json").write_text("{}")
    job.finish({"mean": float(np.mean(returns)), "returns": returns})
    return job


def test_the_table_has_every_seed_the_middle_of_all_episodes_and_whether_the_goal_is_reached(tmp_path):
    file = tmp_path / "results.md"
    both = [finished(tmp_path, TINY, 10, [0.0] * 4), finished(tmp_path, TINY, 11, [10.0] * 4)]
    more, none = Job("more", TINY, 12, tmp_path), Job("none", f"{TINY} --discount 0.9", 10, tmp_path)
    old = f"| CartPole-v1 | a2c | default, {none.fingerprint} | 400 | kept |"
    gone = "| CartPole-v1 | a2c | default, 00000000 | 400 | of other settings |"
    marks = "<!-- tasks table: written by make tasks -->", "<!-- end of tasks table -->"
    file.write_text("\n".join(["before", marks[0], old, gone, marks[1], "after"]))
    rows = [
        Row("CartPole-v1", "preset", both),
        Row("CartPole-v1", "default", both[:1], tasks.Goal(5.0, 400)),  # equal settings
        Row("CartPole-v1", "default", [none]),
        Row("Acrobot-v1", "preset", [*both, more], tasks.Goal(1.0, 400)),
        Row("Pendulum-v1", "preset", both, tasks.Goal(6.0, 400)),
        Row("Nowhere-v0", "preset", [Job("refused", "a2c Nowhere-v0", 1, tmp_path)]),
    ]
    tasks_table.write(tasks_table.merged(rows), file)
    text = file.read_text()
    assert text.startswith(f"before\n{marks[0]}\n") and text.endswith(f"{marks[1]}\nafter") and gone not in text
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    known = f"{both[0].fingerprint} | 400 | 0, 10 | 5 (5 to 5) |"
    published = "500 at 500k (SB3 zoo, tuned); 496.7 at 200k (SLM-Lab)"
    end = f"{both[0].result.date} | `cavalcade train {TINY} --seed S` |"
    assert lines[0] == f"| CartPole-v1 | a2c | preset and default, {known} ≥ 5: reached | {published} | {end}"
    assert lines[1] == old
    assert lines[2].startswith(f"| Acrobot-v1 | a2c | preset, {known} ≥ 1: 2 of 3 seeds so far |")
    assert lines[3].startswith(f"| Pendulum-v1 | a2c | preset, {known} ≥ 6: missed |") and len(lines) == 4
    tasks_table.write(tasks_table.merged(rows), file)
    assert file.read_text() == text


def test_a_document_without_the_markers_is_refused(tmp_path):
    (tmp_path / "results.md").write_text("nothing")
    with pytest.raises(SystemExit, match="end of Pong"):
        document.write_part("Pong", "text", tmp_path / "results.md")


def test_the_picture_shows_medians_over_seeds_and_leaves_out_what_was_not_run(tmp_path, done):
    courses = [[(100, 1.0), (200, 2.0)], [(100, 5.0), (200, 8.0)], [(50, 0.0), (150, 3.0), (250, 3.0)]]
    jobs = [finished(tmp_path, TINY, seed, [0.0], course) for seed, course in enumerate(courses)]
    steps, values = tasks_picture.median([job.result.evaluations for job in jobs])
    assert steps.tolist() == [100, 200] and values.tolist() == [1.5, 3.0]
    rows = [
        Row("CartPole-v1", "preset", jobs),
        Row("CartPole-v1", "default", [done], system="ppo"),
        Row("Acrobot-v1", "preset", [done]),
        Row("Pendulum-v1", "preset", [Job("to do", f"{TINY} --discount 0.9", 1, tmp_path)]),
    ]
    lines = tasks_table.merged(rows)
    shown = [axes.get_title(loc="left") for axes in tasks_picture.picture(lines).axes if axes.get_visible()]
    assert shown == ["CartPole-v1, presets", "CartPole-v1, defaults", "Acrobot-v1, presets"]
    assert tasks_picture.draw(lines, tmp_path / "tasks.png")
    assert (tmp_path / "tasks.png").read_bytes().startswith(b"\x89PNG")
    assert tasks_picture.picture(lines[-1:]) is None


# --- the jobs of `make tasks` --------------------------------------------------------------------------------------


def test_every_system_is_on_the_tasks_within_the_steps_of_its_goals():
    assert set(tasks.SYSTEMS) == set(systems.SYSTEMS), "give budgets and speeds to a new system"
    for numbers in (*tasks.OF_FAST.values(), *tasks.SPEEDS_OF_FAST.values()):
        assert len(numbers) == len(tasks.FAST)
    assert set(tasks.OF_SLOW) <= set(tasks.BUDGETS) and set(tasks.SPEEDS_OF_SLOW) == set(tasks.SLOW)
    assert {row.system for row in tasks.ROWS} == set(tasks.SYSTEMS)
    rows = {(row.task, row.system, row.settings): row for row in tasks.ROWS}
    for key, goal in tasks.GOALS.items():
        assert rows[key].steps <= goal.steps and len(rows[key].jobs) == 3
    assert {job.seed for job in tasks.JOBS} == {10, 11, 12}
    assert rows["CartPole-v1", "a2c", "preset"].command == "a2c CartPole-v1 --steps 300000"
    assert "--runtime process --actors 2" in rows["Acrobot-v1", "impala", "default"].command


def test_all_of_it_takes_at_most_eight_hours():
    able = [job for job in tasks.JOBS if not job.refusal]
    others = [job.expected * (2 if job.processes else 1) / 2 / 3600 for job in tasks.JOBS if job.refusal]
    assert job_queue.hours(able) + sum(others) <= 8.0


@pytest.mark.parametrize("name", atari.GOALS)
def test_a_run_on_atari_is_told_with_its_goal(name, tmp_path, monkeypatch):
    wanted, command = atari.GOALS[name]
    assert not atari.JOBS[name].refusal and "--runtime process" in command
    monkeypatch.setitem(atari.JOBS, name, finished(tmp_path, TINY, 10, [17.0, 18.5], [(100, 1.0)]))
    goal, score, *_ = atari.line(name)
    assert score == "17.8 (17 to 18.5)" and goal == ("as far as it comes" if wanted is None else "≥ 18: MISSED")


def test_what_was_chosen_on_some_seeds_is_learned_on_others():
    continuous = [row for row in learn.ROWS if systems.find(row.command.split()[0]).algorithm in ("ddpg", "sac", "mpo")]
    assert len(continuous) == 14 and all(row.jobs[0].seed == 10 and len(row.jobs) == row.seeds for row in continuous)


def test_settings_that_came_later_leave_older_fingerprints_as_they_were(tmp_path):
    command = "dqn LunarLander-v3 --steps 300000 --preset none"
    assert Job("", command, 10, tmp_path).fingerprint == "54b6cfd3"
    others = {Job("", f"{command} {more}", 10, tmp_path).fingerprint for more in ("--squared true", "--value c51")}
    assert len(others | {"54b6cfd3"}) == 3
