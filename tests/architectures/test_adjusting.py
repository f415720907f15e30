"""Dynamic adjustment: the rule with literal numbers, workers that move between predictors, real runs."""

import json

import numpy as np
import pytest

import cavalcade
from cavalcade.architectures.adjusting import Decision, Rule, Valves
from cavalcade.errors import UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.table.port import Port
from tests.acting.test_central import Inserts, steps_that_do_not_follow
from tests.helpers.leftovers import nothing_is_left  # noqa: F401

SMALL = {"hidden": (8,), "unroll": 8}


# --- the rule -------------------------------------------------------------------------------------------------------


def test_what_raises_the_throughput_is_kept_and_what_does_not_is_taken_back():
    rule = Rule((2, 2, 8), np.random.default_rng(0))
    assert rule.numbers == (2, 2, 8), "all that were launched"
    assert rule.measured(10_200.0) is None, "nothing was changed yet"
    first = rule.numbers
    assert first != (2, 2, 8)
    assert rule.measured(11_400.0) == Decision((2, 2, 8), first, 10_200.0, 11_400.0, True)
    second = rule.numbers
    assert rule.measured(11_400.0) == Decision(first, second, 11_400.0, 11_400.0, False), "as many are not more"
    assert rule.numbers == first, "taken back"
    assert rule.measured(9_000.0) is None, "the old numbers are measured anew"
    third = rule.numbers
    assert third != first
    assert rule.measured(9_001.0) == Decision(first, third, 9_000.0, 9_001.0, True), "compared with the period before"


def test_numbers_change_by_one_at_most_between_one_and_what_was_launched():
    rule, seen = Rule((2, 1, 4), np.random.default_rng(1)), set()
    for n in range(400):
        before = rule.numbers
        decision = rule.measured(float(n))  # always more: every change is kept
        assert (decision is None) == (n == 0) and rule.numbers != before
        assert all(1 <= now <= most for now, most in zip(rule.numbers, (2, 1, 4)))
        assert all(abs(now - then) <= 1 for now, then in zip(rule.numbers, before))
        seen.add(rule.numbers)
    assert len(seen) == 2 * 1 * 4


def test_a_decision_says_what_changed():
    kept = Decision((2, 2, 8), (1, 2, 9), 10_200.4, 11_400.0, True)
    assert kept.sentence == "adjusted: predictors 2 -> 1, trainers 2, agents 8 -> 9: 10,200 -> 11,400 steps/s, kept"
    assert Decision((1, 2, 3), (1, 1, 3), 5.0, 4.0, False).sentence.endswith(
        "trainers 2 -> 1, agents 3: 5 -> 4 steps/s, taken back"
    )


def test_valves():
    valves = Valves(np.array([2, 1, 3], np.int64))
    assert [valves.predictor_for(agent) for agent in range(5)] == [0, 1, 0, None, None]
    assert [valves.trains(trainer) for trainer in range(2)] == [True, False]


# --- room -----------------------------------------------------------------------------------------------------------


def test_room_that_is_given_back_is_promised_to_others():
    x = parts("ga3c", "process")
    table = x.table()
    one, other = Port(table, 0, 64), Port(table, 1, 64)
    writers = [port.address.connect() for port in (one, other)]
    assert x.plan.sizes.queue == 12 and not writers[0].can_insert(8) and not writers[1].can_insert(8)
    one.step(), other.step()
    assert writers[0].can_insert(8) and not writers[1].can_insert(8) and table.promised == 8
    writers[0].keep(2)
    other.step()
    assert not writers[1].can_insert(8) and table.promised == 8, "not before the owner has heard of it"
    one.step(), other.step()
    assert writers[1].can_insert(8) and table.promised == 2 + 8
    assert writers[0].can_insert(2) and not writers[0].can_insert(5), "what was given back is not there any more"
    one.step()
    assert not writers[0].can_insert(5) and table.promised == 10, "12 is all there is"
    writers[1].keep(0)
    other.step(), one.step()
    assert writers[0].can_insert(5) and table.promised == 5
    one.reclaim(), other.reclaim()
    assert table.promised == 0
    for part in (one, other, table):
        part.close()


# --- moving ---------------------------------------------------------------------------------------------------------


def parts(system, runtime="inprocess", **more):
    return experiment(system, runtime, **more).parts


def experiment(system, runtime="inprocess", **more):
    settings = {"steps": 4_000, "backend": "numpy", "actors": 3, "envs": 2, "evaluations": 0, "seed": 3, **more}
    return Experiment.create(system, "CartPole-v1", Settings(runtime=runtime, **settings), SMALL)


@pytest.mark.parametrize("system", ["ga3c", "paac"])
def test_workers_move_and_rest_without_leaving_anything_behind(system):
    """Valves are turned by hand, also in lock step, where room promised to nobody would stop everything."""
    running = experiment(system, adjust_every=1e9).launch()
    nodes = running.objects
    table, valves, inserts = nodes["table"], nodes["adjuster"], Inserts(nodes["table"])
    predictors = [node for name, node in nodes.items() if name.startswith("predictor")]
    learners = [node for name, node in nodes.items() if name.startswith("learner")]
    rng, most = np.random.default_rng(0), np.array([len(predictors), len(learners), 3])
    for _ in range(20):
        valves.words[:] = rng.integers(1, most + 1)
        at = [valves.predictor_for(agent) for agent in range(3)]
        for _ in range(40):  # who waits for room goes when it was answered
            running.round()
        steps = [nodes[f"actor/{i}"].steps for i in range(3)]
        updates = [sum(learner.learner.updates for learner in learners)]
        for _ in range(10):
            running.round()
        here = [[not guest.away for guest in predictor.guests] for predictor in predictors]
        assert here == [[at[i] == j for i in range(3)] for j in range(len(predictors))]
        assert all(at[i] is not None or nodes[f"actor/{i}"].steps == steps[i] for i in range(3)), (
            "who rests does not step"
        )
        guests = [guest for predictor in predictors for guest in predictor.guests]
        assert table.promised == sum(guest.portion.promised for guest in guests)
        assert all(guest.portion.promised <= (0 if guest.away else 2) for guest in guests)
    table.check()
    assert updates[0] > 20 and len(inserts.found) > 40
    for _, _, items, _ in inserts.found:
        assert not steps_that_do_not_follow(items).any(), "no item joins steps of two services"
        assert (items["valid"].sum(1) >= 7).all(), "whole unrolls"
    running.close()


def test_who_dies_holds_no_room():
    """It may be built anew while its valve is closed, and never come back to where it was."""
    running = experiment("ga3c", adjust_every=1e9).launch()
    for _ in range(10):
        running.round()
    predictor, table = running.objects["predictor/1"], running.objects["table"]
    guest = predictor.guests[1]
    assert not guest.away and guest.portion.promised == 2 and table.promised == 6
    guest.desk.reclaim()
    predictor.step()
    assert guest.away and guest.portion.promised == 0 and table.promised == 4
    assert predictor.account().startswith("3 workers; nobody waits")
    running.close()


def test_a_trainer_that_rests_does_not_draw():
    running = experiment("ga3c", adjust_every=1e9).launch()
    running.objects["adjuster"].words[1] = 1
    first, second = running.objects["learner"], running.objects["learner/1"]
    for _ in range(300):
        running.round()
    assert (first.draws, second.draws) == (first.version, 0) and first.draws > 5
    running.objects["adjuster"].words[1] = 2
    for _ in range(200):
        running.round()
    assert second.draws > 0
    source = running.objects["predictor/1"].source
    version, vector, _ = source.latest(-1)
    assert version == first.draws + second.draws, "predictors see the updates of both"
    assert np.array_equal(vector, running.objects["params"].arrays["params"])
    running.close()


def test_a_run_goes_on_from_its_checkpoint_wherever_workers_are(tmp_path):
    from cavalcade.checkpoints import checkpoint

    running = experiment("ga3c", adjust_every=1e9).launch()
    for n in range(160):
        if n % 20 == 0:
            running.objects["adjuster"].words[:] = [1 + n // 20 % 2, 2, 2 + n // 40 % 2]
        running.round()
    checkpoint.save(tmp_path, {"nodes": running.state()}, 1)
    running.close()
    resumed = experiment("ga3c", adjust_every=1e9).launch((tmp_path, 1, checkpoint.load_step(tmp_path, 1)))
    before = [resumed.objects[f"actor/{i}"].steps for i in range(3)]
    for _ in range(100):
        resumed.round()
    assert all(resumed.objects[f"actor/{i}"].steps > before[i] for i in range(3)), "what is kept: all of them work"
    resumed.objects["table"].check()
    resumed.close()


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_run_in_processes_is_adjusted_and_says_so(tmp_path, capsys):
    settings = {"actors": 2, "envs": 4, "backend": "numpy", "evaluations": 0, "runtime": "process", "rows": 10}
    budget = {"steps": 6_000, "adjust_every": 0.03}
    run = cavalcade.train("ga3c", "CartPole-v1", out=tmp_path / "run", **settings, **budget, **SMALL)
    rows, report = run.rows(), json.loads(run.report_file.read_text())
    assert rows[-1]["step"] >= 6_000 and rows[-1]["updates"] > 100 and not (run.path / "faults.jsonl").exists()
    sentences = [sentence for row in rows for sentence in row.get("adjusted", [])]
    assert len(sentences) >= 2 and sentences == [made["sentence"] for made in report["adjustments"]]
    shown = capsys.readouterr().out
    assert all(f"{sentence}\n" in shown for sentence in sentences)
    assert {1, 2} >= {row["active_predictors"] for row in rows}


@pytest.mark.parametrize(
    "system, settings, says",
    [
        ("a2c", {}, "--acting local"),
        ("ga3c", {"updates": "allreduce"}, "--updates allreduce"),
        ("ga3c", {"experience": "bundled"}, "--experience bundled"),
        ("ga3c", {"actors": 1, "learners": 1, "predictors": 1}, "nothing to adjust"),
        ("ga3c", {"updates": "own", "predictors": 0, "runtime": "ray"}, "shares none"),
    ],
)
def test_what_cannot_be_adjusted_is_refused(system, settings, says):
    with pytest.raises(UserError, match=says):
        experiment(system, **{"runtime": "inprocess", "adjust_every": 20.0, **settings}).program()
