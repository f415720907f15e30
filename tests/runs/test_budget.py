"""The time budget: seconds become shares by kind of process, and one rule says what bounds a run and what moves it."""

import json
from dataclasses import asdict

import pytest

import cavalcade
from cavalcade.experiment.experiment import algorithm_for, probe
from cavalcade.programs.stopwatch import ROLES, WALL, Stopwatch
from cavalcade.records.folder import Run
from cavalcade.runs import report
from cavalcade.runs.budget import Bottleneck, Ledger, Spent, bottleneck, together
from cavalcade.runs.metrics import Metrics

RUN = {"runtime", "actors", "envs", "acts_in", "evaluations", "evaluation_episodes"}
REPLAY = RUN | {"batch", "update_every", "updates_per_draw", "tolerance", "flush", "pull_every"}
QUEUE = RUN | {"batch", "unroll", "queue_batches"}
LOCK_STEP = RUN | {"epochs", "unroll"}
PLACES = {"table": "learner", "learner": "learner", "actor/0": "actor/0", "actor/1": "actor/1"}


def spent(processes: int = 1, **shares: float) -> Spent:
    return Spent(processes, 10.0 * processes, shares)


def found(cores: int, options: set[str], **budget: Spent) -> Bottleneck:
    made = bottleneck(budget, cores, options)
    assert made is not None
    return made


# --- from seconds to shares -------------------------------------------------------------------------------------


def test_a_stopwatch_books_every_second_once():
    watch = Stopwatch()
    watch.lap("acting")
    watch.start()
    watch.lap("storing")
    first = watch.drain()
    assert first.keys() == {"acting", "storing", WALL}
    assert 0 < first["acting"] + first["storing"] <= first[WALL]
    assert watch.drain().keys() == {WALL}


def test_shares_are_of_the_time_of_each_kind_of_process():
    ledger = Ledger(PLACES)
    ledger.book(
        {
            "table": {"table_size": 3, "seconds": {"waiting": 1.0}},  # a runtime's, on the first node of the process
            "learner": {"seconds": {"storing": 2.0, "learning": 5.0, WALL: 10.0}},
            "actor/0": {"seconds": {"environment": 4.0, "waiting": 6.0, WALL: 10.0}},
            "actor/1": {"seconds": {"environment": 3.0, "waiting": 2.0, WALL: 5.0}},  # started again half way
        }
    )
    budget = ledger.since({})
    assert budget == {
        "learner": Spent(1, 10.0, {"waiting": 0.1, "storing": 0.2, "learning": 0.5}),
        "actor": Spent(2, 15.0, {"environment": 7 / 15, "waiting": 8 / 15}),
    }
    assert together(budget) == pytest.approx(
        {"waiting": 9 / 25, "storing": 2 / 25, "learning": 5 / 25, "environment": 7 / 25}
    )


def test_a_budget_is_of_the_time_since_a_copy():
    ledger = Ledger(PLACES)
    ledger.book({"actor/0": {"seconds": {"acting": 5.0, WALL: 5.0}}})
    then = ledger.copy()
    ledger.book({"actor/0": {"seconds": {"environment": 1.0, WALL: 4.0}}, "actor/1": {"steps": 3}})
    assert ledger.since(then) == {"actor": Spent(2, 4.0, {"acting": 0.0, "environment": 0.25})}
    assert ledger.since(ledger.copy()) == {}


def test_nodes_of_one_process_share_its_time():
    ledger = Ledger()
    seconds = {"actor/0": {"acting": 1.0}, "actor/1": {"acting": 2.0}, "learner": {"learning": 5.0}}
    ledger.book({name: {"seconds": {**booked, WALL: 10.0}} for name, booked in seconds.items()})
    assert ledger.since({}) == {"process": Spent(1, 10.0, {"acting": 0.3, "learning": 0.5})}


def test_together_of_nothing_is_nothing():
    assert together({}) == {}


# --- the rules --------------------------------------------------------------------------------------------------


def test_nothing_bounds_a_run_without_figures():
    assert bottleneck({}, 2, REPLAY) is None
    assert bottleneck({"actor": spent(2, waiting=1.0), "learner": spent(waiting=0.9)}, 2, REPLAY) is None


def test_actors_that_wait_for_the_learner():
    learner, actor = spent(learning=0.87, storing=0.05, waiting=0.03), spent(2, environment=0.3, waiting=0.6)
    made = found(4, REPLAY, learner=learner, actor=actor)
    assert made == ("learner", "learning", 0.87, ("larger --update-every", "smaller --batch"), "actor waits 60 %")
    assert made.short == "learner 87 % learning"
    assert made.sentence == (
        "learner, mostly learning (87 % of its time), actor waits 60 %; moved by larger --update-every, smaller --batch"
    )
    made = found(4, QUEUE | {"threads"}, learner=learner, actor=actor)
    assert made.advice == ("larger --batch", "longer --unroll", "more --threads")
    crowded = spent(8, environment=0.3, waiting=0.6)  # 0.92 and 2.4 of 3 cores leave none for a thread
    made = found(3, QUEUE | {"threads"}, learner=learner, actor=crowded)
    assert made.advice[2] == "more --threads on more cores"
    assert found(4, LOCK_STEP, learner=learner, actor=actor).advice == ("fewer --epochs", "longer --unroll")


def test_a_learner_that_waits_for_the_environments():
    learner, actor = spent(learning=0.2, waiting=0.75), spent(2, environment=0.7, acting=0.2, waiting=0.05)
    made = found(4, QUEUE, learner=learner, actor=actor)
    assert made == ("actor", "environment", 0.7, ("more --actors",), "learner waits 75 %")
    assert found(2, QUEUE, learner=learner, actor=actor).advice == ("more --actors on more cores",)


@pytest.mark.parametrize(
    ("role", "options", "advice"),
    [
        ("acting", QUEUE, ("more --envs", "more --actors", "another --acts-in")),
        ("storing", REPLAY, ("larger --flush", "larger --updates-per-draw", "more --envs")),
        ("storing", QUEUE, ("more --envs",)),
        ("pulling", REPLAY, ("larger --pull-every",)),
        ("pulling", QUEUE, ("longer --unroll",)),
        ("searching", QUEUE, ()),  # a role that nothing is known to move
    ],
)
def test_what_moves_each_role_of_an_actor(role, options, advice):
    actor = spent(2, **{role: 0.6, "environment": 0.3})
    made = found(8, options, learner=spent(learning=0.1, waiting=0.9), actor=actor)
    assert (made.who, made.role, made.advice) == ("actor", role, advice)
    assert made.sentence.endswith(advice[-1] if advice else "learner waits 90 %")


def test_more_processes_at_work_than_cores():
    learner, actor = spent(learning=0.9, waiting=0.05), spent(3, environment=0.6, acting=0.2, waiting=0.2)
    made = found(2, QUEUE, learner=learner, actor=actor)
    assert (made.who, made.role, made.advice) == ("cores", "environment", ("more cores",))
    assert made.share == pytest.approx(0.45)  # 3 x 0.6 of 4 processes
    assert made.where == "cores, mostly environment (45 % of all time), 3.3 busy on 2"
    assert made.short == "cores: 3.3 busy on 2"
    made = found(2, QUEUE | {"address"}, learner=learner, actor=actor)
    assert made.advice == ("more cores", "--runtime ray --address")
    assert found(4, QUEUE, learner=learner, actor=actor).who == "learner"


def test_whoever_waits_long_is_not_short_of_cores():
    learner, actor = spent(learning=1.0), spent(8, environment=0.3, waiting=0.7)
    assert found(2, QUEUE, learner=learner, actor=actor).who == "learner"


def test_processes_that_take_turns_need_slack():
    learner, actor = spent(learning=0.5, waiting=0.45), spent(2, environment=0.3, waiting=0.6)
    assert found(4, QUEUE, learner=learner, actor=actor).advice[0] == "more --queue-batches"
    assert found(4, REPLAY, learner=learner, actor=actor).advice[0] == "larger --tolerance"
    assert found(4, LOCK_STEP, learner=learner, actor=actor).advice[0] == "fewer --epochs"


def test_nobody_waits_for_the_evaluator():
    learner, actor = spent(learning=0.8, waiting=0.1), spent(environment=0.3, waiting=0.6)
    evaluator = spent(evaluating=1.0)
    assert found(4, QUEUE, learner=learner, actor=actor, evaluator=evaluator).who == "learner"
    made = found(4, QUEUE, evaluator=evaluator)
    assert (made.who, made.advice) == ("evaluator", ("fewer --evaluations", "fewer --evaluation-episodes"))


def test_one_kind_of_process_only():
    made = found(4, QUEUE, actor=spent(2, environment=0.6, waiting=0.4))
    assert made == ("actor", "environment", 0.6, ("more --actors",), "")
    made = found(4, QUEUE, predictor=spent(acting=0.9))
    assert (made.who, made.role) == ("predictor", "acting")


@pytest.mark.parametrize(
    ("shares", "cores", "options", "advice"),
    [
        # acting and learning are both large, and may overlap
        ({"environment": 0.3, "learning": 0.5}, 2, QUEUE, ("--runtime process", "larger --batch", "longer --unroll")),
        # they may not: in lock step one waits for the other on every runtime
        ({"environment": 0.3, "learning": 0.5}, 2, LOCK_STEP, ("fewer --epochs", "longer --unroll")),
        ({"environment": 0.5, "acting": 0.2, "learning": 0.1}, 2, LOCK_STEP, ("--runtime process", "more --actors")),
        ({"environment": 0.5, "acting": 0.2, "learning": 0.1}, 1, LOCK_STEP, ()),
        ({"learning": 0.9, "environment": 0.1}, 2, REPLAY, ("larger --update-every", "smaller --batch")),
        ({"evaluating": 0.6, "learning": 0.2}, 2, QUEUE, ("fewer --evaluations", "fewer --evaluation-episodes")),
    ],
)
def test_in_one_process_nobody_waits(shares, cores, options, advice):
    made = found(cores, options, process=spent(**shares))
    role = max(shares, key=lambda role: shares[role])
    assert made == ("process", role, shares[role], advice, "")


def test_only_options_that_the_system_has_are_named():
    everything = [spent(**{role: 0.9}) for role in ROLES if role != "waiting"]
    for only in everything:
        assert found(4, set(), actor=only).advice == () and found(4, set(), process=only).advice == ()


# --- rows and the report ----------------------------------------------------------------------------------------


def reports(steps: int, updates: int, lag: float) -> dict[str, dict]:
    waiting = {"waiting": 0.25}
    return {
        "table": {"table_size": 5, "seconds": waiting},
        "learner": {
            "updates": updates,
            "metrics": {},
            "policy_lag": lag,
            "seconds_in_table": 1.5,
            "seconds": {"learning": 0.75, WALL: 1.0},
        },
        "actor/0": {"steps": steps, "episodes": [], "seconds": {"environment": 0.5, "waiting": 0.5, WALL: 1.0}},
        "actor/1": {"steps": steps, "episodes": []},  # it has just been started
    }


def test_rows_hold_the_budget_and_the_lag_is_a_mean_over_updates():
    metrics = Metrics(PLACES)
    assert metrics.policy_lag is None and metrics.budget() == {}
    row = metrics.row(reports(100, 10, 1.0))
    timed = {key: value for key, value in row.items() if key.startswith("time_")}
    assert timed == {
        "time_in_table_seconds": 1.5,
        "time_waiting": 0.375,
        "time_learning": 0.375,
        "time_environment": 0.25,
        "time_learner_waiting": 0.25,
        "time_learner_learning": 0.75,
        "time_actor_environment": 0.5,
        "time_actor_waiting": 0.5,
    }
    assert metrics.budget()["learner"].wall == 1.0  # all there is
    metrics.row(reports(200, 40, 5.0))
    metrics.row(reports(300, 40, 5.0))
    assert metrics.budget()["learner"].wall == 2.0  # without the first row, when processes wait for each other
    assert metrics.policy_lag == 4.0  # 10 x 1 and 30 x 5 over 40


def test_what_is_replayed_has_an_age_and_no_lag():
    metrics = Metrics(PLACES, replay_share=1.0)
    row = metrics.row(reports(100, 10, 6552.0))
    assert row["replay_age"] == 6552.0 and "policy_lag" not in row
    assert (metrics.policy_lag, metrics.replay_age) == (None, 6552.0)


def test_frames_are_what_the_emulator_played():
    row = Metrics(frame_skip=4).row({"actor/0": {"steps": 8, "episodes": []}})
    assert row["steps_per_second"] > 0 and row["frames_per_second"] == 4 * row["steps_per_second"]


def test_speeds_are_taken_over_a_second_and_ten_rows_at_least(monkeypatch):
    """Rows may follow each other within milliseconds, and an update is made in few of them."""
    now = [100.0]
    monkeypatch.setattr("cavalcade.runs.metrics.time.perf_counter", lambda: now[0])
    metrics, found = Metrics(), []
    for n in range(1, 401):  # 100 rows a second, of 10 steps, and an update after every 50 of them
        now[0] += 0.01
        learner = {"updates": n // 50, "metrics": {}}
        found.append(metrics.row({"actor/0": {"steps": 10 * n, "episodes": []}, "learner": learner}))
    now[0] += 1e-6  # the last row of a run
    found.append(metrics.row({"actor/0": {"steps": 4000, "episodes": []}, "learner": learner}))
    assert all(row["steps_per_second"] == pytest.approx(1000, rel=0.02) for row in found)
    assert all(row["updates_per_second"] == pytest.approx(2, rel=0.5) for row in found[100:])
    assert found[-1]["updates_per_second"] == pytest.approx(2, rel=0.02) and len(metrics.rates) < 310
    now[0] += 1000.0  # rows far apart
    row = metrics.row({"actor/0": {"steps": 5000, "episodes": []}, "learner": learner})
    assert row["steps_per_second"] == pytest.approx(1.09, rel=0.01) and len(metrics.rates) <= 11


@pytest.mark.parametrize(("row_seconds", "learning_seconds"), [(0.015, 0.6), (0.25, 0.5)])
def test_speeds_hold_acting_and_learning_alike(monkeypatch, row_seconds, learning_seconds):
    """Large batches are acted over many rows, and learned from in a pause between two of them."""
    now, updates, found = [100.0], 0, []
    monkeypatch.setattr("cavalcade.runs.metrics.time.perf_counter", lambda: now[0])
    metrics, cycle = Metrics(), 13 * row_seconds + learning_seconds
    now[0] += 5.0  # the start
    for n in range(13 * 30):
        now[0] += row_seconds
        if n % 13 == 12:
            now[0], updates = now[0] + learning_seconds, updates + 16
        learner = {"updates": updates, "metrics": {}}
        found.append(metrics.row({"actor/0": {"steps": 10_000 * (n + 1), "episodes": []}, "learner": learner}))
    assert all(row["updates_per_second"] > 0 for row in found[12:])
    settled = [row for row in found if row["time"] > 8.0 + 6 * cycle]
    assert all(row["updates_per_second"] == pytest.approx(16 / cycle, rel=0.25) for row in settled)
    assert all(row["steps_per_second"] == pytest.approx(130_000 / cycle, rel=0.25) for row in settled)
    assert len(metrics.rates) < 13 * 7


def test_in_one_process_rows_hold_roles_only():
    row = Metrics().row({"actor/0": {"steps": 8, "episodes": [], "seconds": {"acting": 0.5, WALL: 2.0}}})
    assert {key: value for key, value in row.items() if key.startswith("time_")} == {"time_acting": 0.25}


def test_the_report_says_where_the_time_went_and_what_failed(tmp_path):
    run, metrics = Run(tmp_path, {}), Metrics(PLACES)
    metrics.row(reports(100, 10, 1.0))
    fault = {"step": 1200, "node": "actor/1", "cause": "killed by SIGKILL", "failures": 1, "recovery": "started again"}
    (tmp_path / "faults.jsonl").write_text(json.dumps(fault) + '\n{"step": 13')
    made = report.make(run, metrics, bottleneck(metrics.budget(), 4, QUEUE), 12.5)
    report.write(made, tmp_path / "report.json")
    kept = json.loads((tmp_path / "report.json").read_text())
    assert kept["faults"] == [fault] and (kept["steps"], kept["updates"], kept["policy_lag"]) == (200, 10, 1.0)
    assert kept["replay_age"] is None and kept["warnings"] == []
    assert kept["budget"]["actor"] == {"processes": 2, **dict.fromkeys(ROLES, 0.0), "other": 0.0} | {
        "environment": 0.5,
        "waiting": 0.5,
    }
    assert kept["bottleneck"]["who"] == "learner" and kept["bottleneck"]["share"] == 0.75
    assert report.lines(made, styled=False) == [
        "time of    environment  learning  waiting",
        "learner            0 %      75 %     25 %",
        "2 x actor         50 %       0 %     50 %",
        "bottleneck: learner, mostly learning (75 % of its time), actor waits 50 %; "
        "moved by larger --batch, longer --unroll",
        "policy lag: 1 updates in the mean",
        "faults: 1",
        "  step 1,200: actor/1: killed by SIGKILL; started again",
    ]
    styled = "\n".join(report.lines(made, styled=True))
    assert "2 x actor" in styled and "75 %" in styled and "\x1b[" in styled
    many = {**made, "faults": [fault] * 12}
    assert report.lines(many, styled=False)[-1] == "  and 2 more in faults.jsonl"


def test_the_report_calls_replay_by_its_name(tmp_path):
    for share, words in ((1.0, "data in replay"), (0.5, "data from queue and replay")):
        metrics = Metrics(PLACES, replay_share=share)
        metrics.row(reports(100, 10, 6552.0))
        made = report.make(Run(tmp_path, {}), metrics, None, None)
        assert (made["policy_lag"], made["replay_age"]) == (None, 6552.0)
        assert report.lines(made, styled=False)[-1] == f"{words}: 6,552 updates old in the mean"


SMALL = {"backend": "numpy", "envs": 4, "hidden": (8,), "steps": 2_000, "evaluations": 1, "evaluation_episodes": 2}


@pytest.mark.parametrize(("runtime", "actors"), [("inprocess", 1), ("process", 2)])
def test_the_time_of_a_run_is_booked_once(runtime, actors, tmp_path, capsys):
    given = {**SMALL, "runtime": runtime, "actors": actors}
    run = cavalcade.train("impala", "CartPole-v1", out=tmp_path / "run", **given)
    kept = json.loads((run.path / "report.json").read_text())
    kinds = {"process"} if runtime == "inprocess" else {"actor", "learner", "evaluator"}
    assert kept["budget"].keys() == kinds and kept["steps"] >= 2_000 and kept["faults"] == []
    for kind, row in kept["budget"].items():
        booked = sum(row[role] for role in ROLES)
        assert 0 < booked < 1.02, (kind, row)  # booked twice it would be more than there is
    assert kept["bottleneck"]["sentence"] in capsys.readouterr().out
    acting = kept["budget"]["process" if runtime == "inprocess" else "actor"]
    assert all(acting[role] > 0 for role in ("environment", "acting", "pulling", "storing"))
    assert (acting["waiting"] > 0) == (runtime == "process")


@pytest.mark.parametrize(("system", "less"), [("dqn", "a smaller --replay-start"), ("ppo", "a shorter --unroll")])
def test_a_run_without_any_update_says_so(system, less, tmp_path):
    config = {"algorithm": asdict(algorithm_for(system, probe("CartPole-v1", {}), {}))}
    metrics = Metrics(PLACES)
    metrics.row(reports(100, 0, 0.0))
    made = report.make(Run(tmp_path, config), metrics, None, 12.5)
    [sentence] = made["warnings"]
    assert sentence.startswith("No update was made: ") and sentence.endswith(f"give it more --steps or {less}.")
    for styled in (False, True):
        assert report.lines(made, styled)[-1] == f"warning: {sentence}"


def test_a_run_that_was_finished_keeps_its_report(tmp_path):
    run = cavalcade.train("a2c", "CartPole-v1", out=tmp_path / "run", display=False, **{**SMALL, "steps": 200})
    before = (run.path / "report.json").read_bytes()
    cavalcade.resume(run.path, display=False)
    assert (run.path / "report.json").read_bytes() == before
