"""How large tables are made: for every algorithm, row and number of actors, whatever environments do."""

import dataclasses
import functools
import time

import gymnasium as gym
import numpy as np
import pytest

from cavalcade.envs.adapter import VectorAdapter
from cavalcade.errors import UserError
from cavalcade.experience import Episode, NStep, Unroll
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.experiment.matrix import HOME, wirings
from cavalcade.experiment.systems import SYSTEMS, example
from cavalcade.programs.program import Handle
from cavalcade.table import Items, Rows, RowSpec, Signature, Table, port
from tests.helpers.apart import Apart
from tests.helpers.streams import MODES, Streams

SETTINGS = Settings(envs=4, evaluations=0, backend="numpy", threads=1)
SMALL = {
    "dqn": {"hidden": (4,), "replay_size": 300, "replay_start": 50, "batch": 8, "update_every": 8},
    "a2c": {"hidden": (4,), "unroll": 8},
    "ppo": {"hidden": (4,), "unroll": 8},
    "impala": {"hidden": (4,), "unroll": 8, "batch": 6},
}
SMALL["ddpg"] = SMALL["sac"] = {**SMALL["dqn"], "critic_hidden": (4,)}


class Ends(gym.Env):
    """Every step ends an episode: rows are used up twice as fast, and by unrolls as slowly released as ever."""

    def __init__(self, width=4, cut=False, continuous=False):
        self.observation_space, self.cut = gym.spaces.Box(0, 1, (width,), np.float32), cut
        self.action_space = gym.spaces.Box(-2, 2, (3,), np.float32) if continuous else gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        return np.ones(self.observation_space.shape, np.float32), 1.0, not self.cut, self.cut, {}


# --- what the environments of a writer hold --------------------------------------------------------------------------

DISCRETE = np.zeros(1, np.int64)  # an action of one environment


def worst(item, signature, extras, patience, action):
    """Rows that one environment holds at most, and rows that it takes in one step at most, where episodes of one step
    end in all ways. Nothing is inserted: what is in use is held by the stream."""
    environments = VectorAdapter(Streams(1, MODES[1], longest=1), "streams", 0)
    table = Table.queue(signature, 1, rows=Rows(signature.rows, 4_000))
    take, taken = table.take_rows, []
    table.take_rows = lambda count, writer: taken.append(count) or take(count, writer)
    adder = item.adder(table, 1, 0, patience, lambda items: items["reward"])
    obs = environments.reset()
    held = at_once = 0
    for _ in range(4 * (adder.stream.horizon + 40)):
        step = environments.step(action)
        del taken[:]
        adder.add(obs, action, {name: leaf[None] for name, leaf in extras.items()}, {}, step)
        held, at_once = max(held, table.rows.count - 1 - table.rows.vacant), max(at_once, sum(taken))
        obs = step.observation
    return held, at_once


@pytest.mark.parametrize("patience", [0, 6])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "item", [NStep(1, 0.9), NStep(5, 0.9), Unroll(1, 0.9), Unroll(9, 0.9), Unroll(70, 0.9), Unroll(8, 0.9, 3)], ids=str
)
def test_no_environment_holds_more_rows_than_are_reckoned(item, wide, patience):
    """Wide rows are written at every step, others many steps at a time."""
    environments = VectorAdapter(Streams(1, MODES[1]), "streams", 0)
    signature = item.signature(environments.spec, {}, {"wide": np.zeros(300 if wide else 1, np.float32)})
    extras = {"wide": np.zeros(300 if wide else 1, np.float32)} if not isinstance(item, NStep) else {}
    held, _ = worst(item, signature, extras, patience, DISCRETE)
    assert held <= item.rows_under_way(signature.rows, 1, patience) <= 2 * held + 8, "no more than is of use"


def test_whole_episodes_hold_no_more_either():
    item, environments = Episode(6, 0.9), VectorAdapter(Streams(1, MODES[1]), "streams", 0)
    signature = item.signature(environments.spec, {}, {})
    assert worst(item, signature, {}, 0, DISCRETE)[0] <= item.rows_under_way(signature.rows, 1)


def test_beginning_again_before_anything_was_written_leaves_no_rows_behind():
    item, environments = Unroll(20, 0.9), VectorAdapter(Streams(2, MODES[1]), "streams", 0)
    signature = item.signature(environments.spec, {}, {})
    table = Table.queue(signature, 1, rows=Rows(signature.rows, 100))
    kept = item.adder(table, 2).stream.state()
    for _ in range(60):
        adder = item.adder(table, 2)
        adder.stream.begin_again(kept)
        adder.add(environments.reset(), np.zeros(2, np.int64), {}, {}, environments.step(np.zeros(2, np.int64)))
        kept = adder.stream.state()
    assert table.rows.count - 1 - table.rows.vacant == 2


# --- what tables have for it -----------------------------------------------------------------------------------------


@functools.cache
def experiment(system):
    continuous = example(system) == "Pendulum-v1"
    environment = functools.partial(Ends, continuous=True) if continuous else "CartPole-v1"
    return Experiment.create(system, environment, SETTINGS, {})


def programs():
    """(what, program, runtime) of every algorithm under every row and of every system, with 1 to 8 actors; what
    contradicts itself is not there."""
    chosen = [(HOME[name], row) for name in HOME for row in wirings()] + [(system, None) for system in SYSTEMS]
    for system, row in chosen:
        placed = {}
        if row:
            placed = {"acting": row[0], "experience": row[1], "updates": row[2]}
            placed["learners"] = 1 if row[2] == "own" else 2
        for actors in range(1, 9):
            for runtime in ("inprocess", "process"):
                settings = dataclasses.replace(SETTINGS, actors=actors, runtime=runtime, **placed)
                try:
                    program = dataclasses.replace(experiment(system), settings=settings).program()
                except UserError:
                    continue
                yield (system, row, actors, runtime), program, runtime


def writers(program, table):
    """By the process of each node that writes into a table: how many workers' seats it has there."""
    nodes, found = program.nodes.values(), {}
    for node in nodes:
        role, _, _ = node.name.partition("/")
        if role in ("actor", "predictor") and table in node.edges():
            seats = 1
            if role == "predictor":
                sinks = node.args[2]
                mine = [other.name for other in nodes if node.name in other.edges() and other.name.startswith("actor")]
                seats = sum(sinks[int(name.partition("/")[2]) % len(sinks)] == Handle(table) for name in mine)
            found[node.name] = (node.placement.group, seats)
    return found


@functools.cache
def worst_of(item, system, patience):
    x = experiment(system).parts
    extras = {} if isinstance(item, NStep) and not item.prioritised else extras_of(system)
    return worst(item, x.signature, extras, patience, x.spec.action.zeros(1))


def extras_of(system):
    x = experiment(system).parts
    return x.algorithm.extras(x.spec)


def test_every_table_has_room_for_all_that_can_be_held_at_once():
    """Asked of the programs themselves: who writes into which table from which process. Whoever writes from another is
    granted its rows when it is introduced, even if nobody will ever ask it; three quarters of them are sure to be there
    for what its environments hold and take."""
    seen = 0
    for what, program, runtime in programs():
        tables = [node for node in program.nodes.values() if node.name.partition("/")[0] == "table"]
        assert tables
        for table in tables:
            x = table.args[0] if table.args else table.make.__self__
            plan, item = x.plan, x.experience.item
            held, at_once = worst_of(item, what[0], x.experience.patience(x.envs))
            there = writers(program, table.name)
            assert there, what
            apart = [s for group, s in there.values() if runtime != "inprocess" and group != table.placement.group]
            here = sum(seats for _, seats in there.values()) - sum(apart)
            for seats in apart:
                assert seats * x.envs * (held + at_once) <= plan.writer_rows * 3 / 4, what
            of_item, items = (1, plan.sizes.replay) if isinstance(item, NStep) else (item.length + 1, plan.sizes.queue)
            needed = items * of_item + len(apart) * plan.writer_rows + here * x.envs * held
            assert plan.rows >= needed, what
            assert plan.writer_items >= max(plan.sizes.queue, plan.at_once)
            seen += 1
    assert seen > 1_000


def test_whoever_moves_between_predictors_of_one_process_leaves_a_seat_at_each():
    one, moving = (
        Experiment.create("ga3c", "CartPole-v1", dataclasses.replace(SETTINGS, actors=3, adjust_every=every), {})
        for every in (0.0, 1.0)
    )
    assert [x.parts.plan.seats for x in (one, moving)] == [3, 6]


# --- and that it suffices --------------------------------------------------------------------------------------------


HARDEST = [
    ("ga3c", {"actors": 1}, {"cut": True}),
    ("ga3c", {"actors": 3, "predictors": 2, "adjust_every": 0.02}, {}),
    ("impala", {"actors": 2}, {"width": 400}),
    ("seed-impala", {"actors": 5, "experience": "shards", "predictors": 2}, {"cut": True}),
    ("apex-dqn", {"actors": 3, "acting": "central", "experience": "shards"}, {}),
    ("apex-dpg", {"actors": 3, "experience": "shards"}, {"continuous": True, "cut": True}),
    ("seed-sac", {"actors": 5, "predictors": 2}, {"continuous": True}),
    ("a2c", {"actors": 3, "experience": "shards", "shards": 3}, {"width": 400, "cut": True}),
]


@pytest.mark.parametrize("system, settings, options", HARDEST, ids=str)
def test_nobody_waits_for_ever_though_every_step_ends_an_episode(system, settings, options, monkeypatch):
    """All ports and desks of separate processes, in one thread: a writer that blocks would never be granted a row."""

    def at_once(ready, timeout, meanwhile=None):
        assert ready() or timeout == 0.0, "would block"
        return ready()

    monkeypatch.setattr(port, "wait_until", at_once)
    settings = Settings(**settings, envs=3, evaluations=0, backend="numpy", threads=1, runtime="process")
    made = Experiment.create(system, Ends, settings, SMALL[SYSTEMS[system].algorithm], options)
    program = Apart(made.program())
    waited, goal = time.monotonic(), settings.actors * settings.envs * 80
    while sum(actor.steps for actor in program.nodes("actor")) < goal:
        if program.round():
            waited = time.monotonic()
        assert time.monotonic() - waited < 20, "nobody moves any more"
    assert program.node("learner").version > 0
    for table in program.nodes("table"):
        table.check()
    program.close()


def test_rows_that_are_needed_no_more_are_told_of_when_others_are_missing():
    item = Signature.transition(RowSpec(np.zeros(1)), {})
    memory = port.Memory("shared")
    table = Table.queue(item, 8, rows=Rows(item.rows, 40, memory), memory=memory, writer_rows=16)
    owner = table.share("actor/0")
    writer = owner.address.connect()
    writer.release(writer.take_rows(14))
    assert not writer.ready(2)
    owner.step()
    assert writer.ready(2), "without an item that could have brought the news"
    owner.close(), table.close()


def test_all_unrolls_of_many_environments_can_be_on_their_way():
    many = dataclasses.replace(SETTINGS, envs=3_000, runtime="process")
    table = Experiment.create("a2c", "CartPole-v1", many, {"unroll": 2}).parts.table()
    owner = table.share("actor/0")
    writer = owner.address.connect()
    writer.can_insert(3_000)
    owner.step()
    assert writer.insert(Items(np.zeros((3_000, 3), np.int32), {}))
    owner.step()
    assert len(table) == 3_000
    owner.close(), table.close()
