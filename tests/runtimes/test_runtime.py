"""Programs, the in-process runtime and lock step: edges, turns, deadlocks that speak, and exact on-policy learning."""

from collections import deque
from typing import NamedTuple

import numpy as np
import pytest

from cavalcade import tree
from cavalcade.acting.env_loop import EnvLoop
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.learning.loop import LearnerLoop
from cavalcade.programs.program import Handle, Program, resolve
from cavalcade.runtimes.inprocess import Deadlock, InProcess
from cavalcade.table import Items, Limiter, Table

# --- programs -----------------------------------------------------------------------------------------------------


class Box:
    """Keeps what it was made with."""

    def __init__(self, *args, **kwargs):
        self.args, self.kwargs = args, kwargs


class Clock(NamedTuple):
    steps: int
    source: object = None


def test_handles_become_objects_wherever_they_are():
    program = Program("wiring")
    a, b = program.add("a", Box), program.add("b", Box, 7)
    program.add("c", Box, a, [b, (a, 1)], {"inner": {"b": b}}, named=a, many=[a, b], plain="text")
    objects = InProcess(program).objects
    a, b, c = objects["a"], objects["b"], objects["c"]
    assert b.args == (7,)
    assert c.args[0] is a and c.args[1][0] is b and c.args[1][1] == (a, 1)
    assert c.args[2]["inner"]["b"] is b
    assert c.kwargs["named"] is a and c.kwargs["many"] == [a, b] and c.kwargs["plain"] == "text"


def test_named_tuples_among_the_arguments_stay_what_they_are():
    program = Program("wiring")
    a = program.add("a", Box)
    program.add("b", Box, Clock(3), Clock(4, a))
    objects = InProcess(program).objects
    assert objects["b"].args == (Clock(3), Clock(4, objects["a"]))


def test_values_without_handles_pass_through_unchanged():
    array = np.arange(3)
    assert resolve(array, {}) is array and resolve("a", {"a": 1}) == "a"
    assert resolve({"k": [1, (2, None)]}, {}) == {"k": [1, (2, None)]}


def test_edges_are_the_handles_among_the_arguments():
    program = Program("wiring")
    a, b = program.add("a", Box), program.add("b", Box)
    program.add("c", Box, [a], {"x": (b,)}, source=a)
    program.add("d", Box, 1, two=2)
    assert program.nodes["c"].edges() == ["a", "b", "a"] and program.nodes["d"].edges() == []


def test_several_nodes_of_one_name_are_numbered():
    program = Program("wiring")
    names = [program.add("actor", Box).name for _ in range(3)]
    assert names == ["actor/0", "actor/1", "actor/2"] == list(program.nodes)
    tables = [program.add("table", Box) for _ in range(3)]
    assert len({handle.name for handle in tables}) == 3 and len(program.nodes) == 6
    assert tables[0] == Handle(tables[0].name)


def test_a_handle_of_another_program_is_an_error_that_names_it():
    program = Program("wiring")
    program.add("a", Box, Handle("elsewhere"))
    with pytest.raises(KeyError, match="elsewhere"):
        InProcess(program)


# --- turns --------------------------------------------------------------------------------------------------------


class Counter:
    """Moves `limit` times and keeps a shared diary."""

    def __init__(self, name, diary, limit):
        self.name, self.diary, self.limit, self.count = name, diary, limit, 0
        self.closed = False

    def step(self):
        self.diary.append(self.name)
        self.count += self.count < self.limit
        return self.count < self.limit

    def account(self):
        return f"has counted to {self.count}"

    def report(self):
        return {"count": self.count}

    def state(self):
        return {"count": self.count}

    def restore(self, state):
        self.count = state["count"]
        return f"goes on at {self.count}" if self.name == "b" else None

    def close(self):
        self.closed = True


def counters(**limits):
    diary, program = deque(), Program("counting")
    program.add("store", Box)  # no worker: it has no step
    for name, limit in limits.items():
        program.add(name, Counter, name, diary, limit)
    return InProcess(program), diary


def test_a_round_is_one_turn_of_every_worker_in_the_order_they_were_added():
    runtime, diary = counters(c=9, a=9, b=9)
    runtime.round()
    runtime.round()
    assert list(diary) == ["c", "a", "b", "c", "a", "b"]


def test_a_round_goes_on_while_anyone_moves():
    runtime, _ = counters(a=1, b=5)
    for _ in range(4):
        runtime.round()
    with pytest.raises(Deadlock):
        runtime.round()


def test_a_deadlock_is_an_error_with_the_account_of_every_node():
    runtime, diary = counters(a=1, b=1)
    with pytest.raises(Deadlock) as caught:
        runtime.round()
    assert "'counting'" in str(caught.value)
    assert "a: has counted to 1" in str(caught.value) and "b: has counted to 1" in str(caught.value)
    assert list(diary) == ["a", "b"], "everyone had one turn"


def test_reports_and_states_are_gathered_from_those_who_have_them():
    runtime, _ = counters(a=9, b=9)
    runtime.round()
    runtime.round()
    assert runtime.reports() == {"a": {"count": 2}, "b": {"count": 2}}
    kept = runtime.state()
    assert kept == {"a": {"count": 2}, "b": {"count": 2}}
    other, _ = counters(a=9, b=9)
    assert other.restore(kept) == ["b: goes on at 2"]
    other.round()
    assert other.reports()["a"] == {"count": 3}
    other.close()
    assert other.objects["a"].closed and other.objects["b"].closed


# --- real deadlocks -----------------------------------------------------------------------------------------------

DQN = {
    "hidden": (8,),
    "batch": 16,
    "update_every": 4,
    "updates_per_draw": 2,
    "n_step": 3,
    "replay_size": 2_000,
    "replay_start": 100,
}
ON_POLICY = {"hidden": (8,), "unroll": 8}
PPO = {**ON_POLICY, "epochs": 2, "minibatches_per_epoch": 2}
SYSTEMS = {"dqn": DQN, "a2c": ON_POLICY, "ppo": PPO}


def experiment(system, actors=1, envs=2, **overrides):
    settings = Settings(steps=2_000, backend="numpy", actors=actors, envs=envs, evaluations=0, seed=1)
    return Experiment.create(system, "CartPole-v1", settings, {**SYSTEMS[system], **overrides})


def with_table(parts, make):
    """The program of one actor and a learner around another table than the right one."""
    program = Program("stuck")
    table = program.add("table", make, parts.signature)
    learner = program.add("learner", LearnerLoop, parts.learner, source=table, batch=parts.experience.batch)
    program.add(
        "actor",
        EnvLoop,
        parts.policy,
        parts.environments,
        parts.experience,
        sink=table,
        source=learner,
        seed=0,
    )
    return InProcess(program)


def test_a_window_too_narrow_for_the_batch_stops_with_an_account():
    # 4 samples per insert and a window of 8 are fine for single draws; a draw of 32 never fits into it
    runtime = with_table(
        experiment("dqn").parts, lambda signature: Table.uniform(signature, 2_000, Limiter.ratio(4.0, 100, 4.0))
    )
    with pytest.raises(Deadlock) as caught:
        for _ in range(1_000):
            runtime.round()
    text = str(caught.value)
    assert "table: 100 items (needs 100), 100 inserted, 0 drawn, balance 400 in the window [396, 404]" in text
    assert "learner: waits for 32 items; 0 updates done" in text
    assert "actor/0: holds items the table will not take yet" in text
    runtime.close()


def test_a_queue_shorter_than_a_batch_stops_with_an_account():
    runtime = with_table(experiment("ppo", envs=4).parts, lambda signature: Table.queue(signature, 3))
    with pytest.raises(Deadlock) as caught:
        for _ in range(100):
            runtime.round()
    text = str(caught.value)
    assert "table: 0 items" in text and "learner: waits for 4 items" in text
    assert "actor/0: waits for room; 0 environment steps done" in text, "no step is made for which there is no room"
    runtime.close()


def test_the_right_table_does_not_get_stuck():
    parts = experiment("dqn").parts
    runtime = with_table(parts, lambda signature: parts.table())
    for _ in range(500):
        runtime.round()
    assert runtime.objects["learner"].version > 0
    runtime.close()


def test_delivering_what_was_held_is_a_move():
    """`step` says whether the worker moved; what it hands over late has moved, room for the next unroll or not."""
    runtime = with_table(experiment("ppo", envs=2, unroll=2).parts, lambda signature: Table.queue(signature, 2))
    table, actor = runtime.objects["table"], runtime.objects["actor/0"]
    assert actor.step() and actor.step()  # a whole unroll
    assert table.sample(2)
    assert actor.step()  # room for another, and it starts
    assert table.insert(Items(np.zeros((2, 3), np.int32), {}), 0)  # somebody else is faster
    assert actor.step() and actor.outbox is not None
    assert not actor.step(), "no room: it waits"
    table.sample(2)
    assert actor.step() and actor.outbox is None
    assert not actor.step(), "delivered, and no room for the next"
    runtime.close()


# --- lock step ----------------------------------------------------------------------------------------------------


class Diary:
    """The draws of a table, written down as the learner makes them."""

    def __init__(self, runtime):
        self.table, self.learner = runtime.objects["table"], runtime.objects["learner"]
        self.actors = [node for name, node in runtime.objects.items() if name.startswith("actor")]
        self.draws = []  # (versions of the items, version of the learner, how many)
        self.original = self.table.sample
        self.table.sample = self.sample

    def sample(self, count, importance=0.0):
        drawn = self.original(count, importance)
        if drawn is not None:  # None: not now
            self.draws.append((drawn.version.copy(), self.learner.version, len(drawn.keys)))
        return drawn

    @property
    def steps(self):
        return sum(actor.steps for actor in self.actors)


@pytest.mark.parametrize("system", ["a2c", "ppo"])
@pytest.mark.parametrize("actors, envs", [(1, 4), (3, 2)])
def test_on_policy_learning_is_exactly_on_policy(system, actors, envs):
    run = experiment(system, actors, envs)
    runtime = run.launch()
    diary = Diary(runtime)
    for _ in range(60):
        runtime.round()
        learner = runtime.objects["learner"]
        assert learner.lag == 0.0
        assert diary.steps // actors == diary.actors[0].steps, "actors go together"
        complete = diary.steps // (8 * actors * envs) * 8 * actors * envs
        drawn = len(diary.draws) * 8 * actors * envs
        assert drawn in (complete, complete - 8 * actors * envs), "a batch is drawn before the next is acted"
    assert len(diary.draws) >= 6
    per_draw = 1 if system == "a2c" else 2 * 2
    for number, (versions, at, count) in enumerate(diary.draws):
        assert count == actors * envs, "one unroll from every environment"
        assert at == number * per_draw and (versions == at).all(), "made by the very parameters that are updated"
    assert learner.report()["policy_lag"] == 0.0
    assert learner.version == run.algorithm.updates(len(diary.draws) * 8 * actors * envs, actors * envs)
    assert len(diary.table) <= actors * envs
    runtime.close()


@pytest.mark.parametrize("system", ["a2c", "ppo"])
@pytest.mark.parametrize("actors, envs", [(1, 4), (3, 2)])
def test_the_whole_run_makes_the_updates_it_announced(system, actors, envs):
    run = experiment(system, actors, envs)
    runtime = run.launch()
    diary = Diary(runtime)
    while diary.steps < 8 * actors * envs * 5:
        runtime.round()
    predicted = run.algorithm.updates(diary.steps, actors * envs)
    assert predicted == (5 if system == "a2c" else 20)
    assert diary.learner.version in (predicted, predicted - predicted // 5)  # the last batch may still wait
    if diary.table.can_sample(actors * envs):
        diary.learner.step()
    assert diary.learner.version == predicted
    runtime.close()


@pytest.mark.parametrize("actors, envs", [(1, 2), (3, 2)])
def test_dqn_learns_as_often_as_it_declares(actors, envs):
    run = experiment("dqn", actors, envs)
    runtime = run.launch()
    diary = Diary(runtime)
    limits, ratio, draw = diary.table.limiter, 16 / 4, 16 * 2
    assert limits.samples_per_insert == ratio and run.parts.experience.batch == draw
    while diary.steps < 1_200:
        runtime.round()
        if limits.inserts < 100:
            assert not diary.draws, "nothing is drawn before replay_start"
        else:
            assert abs(limits.samples - ratio * (limits.inserts - 100)) <= draw
    assert all(count == draw and (versions <= at).all() for versions, at, count in diary.draws)
    assert diary.learner.version == 2 * len(diary.draws)
    pending = 2 * actors * envs  # items of n_step 3 that are still growing
    predicted = run.algorithm.updates(diary.steps, actors * envs)
    assert predicted == (diary.steps - 100) // 4 >= 275
    assert predicted - pending / 4 - 2 <= diary.learner.version <= predicted + 2
    runtime.close()


def test_more_environments_than_a_batch_do_not_change_how_often_dqn_learns():
    run = experiment("dqn", actors=2, envs=8)  # 8 * 3 items at once are 96 samples, three draws
    runtime = run.launch()
    diary = Diary(runtime)
    limits = diary.table.limiter
    while diary.steps < 1_600:
        runtime.round()
        if limits.inserts >= 100:
            assert abs(limits.samples - 4 * (limits.inserts - 100)) <= 96
    growing = 2 * 16  # items of n_step 3 that are not finished yet
    assert (1_600 - 100 - growing) / 4 - 96 / 16 - 2 <= diary.learner.version <= (1_600 - 100) / 4 + 96 / 16
    runtime.close()


@pytest.mark.parametrize("system", ["dqn", "ppo"])
def test_two_runs_of_one_seed_are_one_run(system):
    vectors = []
    for _ in range(2):
        runtime = experiment(system, actors=2).launch()
        for _ in range(120):
            runtime.round()
        vectors.append(runtime.objects["learner"].published[0])
        runtime.close()
    assert np.array_equal(*vectors)


@pytest.mark.parametrize("system", ["dqn", "ppo"])
def test_a_restored_program_goes_on_exactly(system):
    run = experiment(system, actors=2)
    runtime = run.launch()
    for _ in range(85):
        runtime.round()
    kept = runtime.state()
    for _ in range(60):
        runtime.round()
    other = run.launch()
    remarks = other.restore(kept)
    assert len(remarks) == 2 and all("goes on exactly" in remark for remark in remarks)
    for _ in range(60):
        other.round()
    assert other.objects["learner"].version == runtime.objects["learner"].version > 0
    assert np.array_equal(other.objects["learner"].published[0], runtime.objects["learner"].published[0])
    mine, its = (one.objects["actor/1"].obs for one in (runtime, other))
    assert np.array_equal(mine, its)
    for (path, a), (_, b) in zip(
        tree.named(runtime.objects["table"].state()), tree.named(other.objects["table"].state())
    ):
        assert np.array_equal(a, b), path
    runtime.objects["table"].check()
    runtime.close()
    other.close()


def test_reports_of_a_run_say_what_was_done_since_the_last():
    runtime = experiment("ppo", actors=2).launch()
    for _ in range(20):
        runtime.round()
    reports = runtime.reports()
    assert set(reports) == {"table", "learner", "actor/0", "actor/1"}
    assert reports["actor/0"]["steps"] == runtime.objects["actor/0"].steps > 0
    assert reports["learner"]["updates"] == runtime.objects["learner"].version > 0
    assert set(reports["learner"]["metrics"]) >= {"loss", "gradient_norm", "entropy"}
    again = runtime.reports()
    assert set(again["learner"]["metrics"]) == {"learning_rate"} and "policy_lag" not in again["learner"]
    assert again["actor/0"]["episodes"] == []
    runtime.close()
