"""A writer that sends messages fills a table exactly as one beside it: same items, same rows held, same promises."""

import dataclasses
import pickle
import time

import numpy as np
import pytest

from cavalcade import tree
from cavalcade.envs.adapter import VectorAdapter
from cavalcade.errors import UserError
from cavalcade.experience import Episode, NStep, Unroll
from cavalcade.table import Items, Limiter, Rows, RowSpec, Signature, Table
from tests.helpers.streams import MODES, Streams

COUNT, STACK = 3, 4


class StackedStreams(Streams):
    """The same with stacks of the last observations, blank before an episode's first."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.stack = np.zeros((self.num_envs, STACK, 4), np.float32)
        space = self.single_observation_space
        self.single_observation_space = type(space)(-np.inf, np.inf, (STACK, 4), np.float32)

    def _push(self, now, begins):
        self.stack = np.concatenate([self.stack[:, 1:], now[:, None]], axis=1)
        self.stack[begins, :-1] = 0.0

    def reset(self, *, seed=None, options=None):
        now, info = super().reset(seed=seed, options=options)
        which = options["reset_mask"] if options else np.ones(self.num_envs, bool)
        self.stack[which] = 0.0
        self.stack[which, -1] = now[which]
        return self.stack.copy(), info

    def step(self, actions):
        resetting = self.over.copy() if self.mode is MODES[0] else np.zeros(self.num_envs, bool)
        now, reward, terminated, truncated, info = super().step(actions)
        if "final_obs" in info:
            before = self.stack
            ended = info["_final_obs"]
            final = np.array([f if e else n for f, e, n in zip(info["final_obs"], ended, now)])
            self._push(final, np.zeros(self.num_envs, bool))
            for i in np.flatnonzero(ended):
                info["final_obs"][i] = self.stack[i].copy()
            self.stack = before
            resetting = ended
        self._push(now, resetting)
        return self.stack.copy(), reward, terminated, truncated, info


class Wire:
    """Calls that take a while: each message is a copy, and answered some looks later."""

    def __init__(self, port, seed=0, slow=0.5):
        self.port, self.chance, self.slow, self.rows_sent = port, np.random.default_rng(seed), slow, 0

    def __call__(self, message):
        self.rows_sent += len(message.new)
        return Answer(self, pickle.loads(pickle.dumps(message)))


class Answer:
    def __init__(self, wire, message):
        self.wire, self.message, self.found = wire, message, None

    def ready(self):
        if self.found is None and self.wire.chance.random() >= self.wire.slow:
            self.found = self.wire.port.answer(self.message)
        return self.found is not None

    def get(self):
        assert self.found is not None
        return self.found


def made(item, mode, stacked, size):
    """Environments and a table with the rows that a writer elsewhere may hold beside the items."""
    kind = StackedStreams if stacked else Streams
    environments = VectorAdapter(kind(COUNT, mode, seed=5), "streams", 5)
    spec = dataclasses.replace(environments.spec, frames=STACK if stacked else 1)
    kept = item.signature(spec, {}, {"q_taken": np.zeros((), np.float32)} if not transition(item) else {})
    writer_rows = 2 * item.rows_under_way(kept.rows, COUNT, 2) + 64
    rows = Rows(kept.rows, item.rows_needed(kept.rows, size, True) + writer_rows)
    return environments, Table(kept, size, limiter=Limiter.at_least(1), rows=rows, writer_rows=writer_rows)


def transition(item):
    return isinstance(item, NStep)


def flush(sink):
    while sink.on_way is not None or sink.outbox:
        sink._exchange()


ITEMS = [
    NStep(1, 0.9),
    NStep(3, 0.9),
    NStep(3, 0.9, prioritised=True),
    Unroll(6, 0.9),
    Unroll(6, 0.9, period=3),
    Unroll(5, 0.9, period=2),
    Episode(5, 0.9),
]


@pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacks"])
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("item", ITEMS, ids=str)
def test_a_writer_elsewhere_fills_a_table_like_one_beside_it(item, mode, stacked):
    tables, sinks, streams = [], [], []
    for remote in (False, True):
        environments, table = made(item, mode, stacked, 40)
        port = table.serve("actor/0") if remote else None
        sink = port.address.connect(Wire(port)) if remote else table
        adder = item.adder(sink, COUNT, 0, 2, lambda items: np.abs(items["reward"]))
        obs = environments.reset()
        tables.append(table)
        sinks.append(sink)
        streams.append([environments, adder, obs, []])
    here, there = tables
    chance = np.random.default_rng(1)
    for number in range(250):
        q = {"q_taken": chance.random(COUNT).astype(np.float32), "q_best": chance.random(COUNT).astype(np.float32)}
        extras = q if getattr(item, "prioritised", False) else {} if transition(item) else {"q_taken": q["q_taken"]}
        late = chance.random() < 0.3  # finished items may wait for two steps
        for sink, stream in zip(sinks, streams):
            environments, adder, obs, waiting = stream
            action = np.full(COUNT, number % 2)
            step = environments.step(action)
            items = adder.add(obs, action, extras, {}, step)
            waiting.extend([(items, number // 7, number)] if items is not None else [])
            while waiting and (not late or waiting[0][2] <= number - 2):
                items, version, _ = waiting.pop(0)
                assert sink.insert(items, version, items.priority, timeout=None)
            stream[2] = step.observation
        if number % 25 == 24:
            flush(sinks[1])
            there.check()
            drawn = [table.sample(32) for table in tables]
            tree.map(np.testing.assert_array_equal, *(sample.items for sample in drawn))
            for name in ("keys", "version", "probability", "times_sampled", "age"):
                np.testing.assert_array_equal(getattr(drawn[0], name), getattr(drawn[1], name))
            np.testing.assert_array_equal(here.priority[here.key >= 0], there.priority[there.key >= 0])
    assert here.limiter.inserts == there.limiter.inserts > 100
    assert 0 < sinks[1].ask.rows_sent <= 251 * COUNT * (1 + (STACK if stacked else 1)), "each observation goes once"


ITEM = Signature.transition(RowSpec(np.zeros(4, np.int64)), {"number": np.zeros((), np.int64)}, adjacent=True)


def items_of(sink, count, start=0):
    slots = sink.take_rows(count)
    obs = np.repeat(np.arange(start, start + count)[:, None], 4, axis=1)
    sink.rows.seen.write(slots, {"obs": obs, "first": np.zeros(count, bool), "#origin": np.zeros((count, 3), np.int32)})
    return Items(np.stack([slots, slots], axis=1), {"number": np.arange(start, start + count)}), slots


def queue(size, writers=2):
    table = Table.queue(ITEM, size, rows=Rows(ITEM.rows, 4 * size + 512 * writers), writer_rows=256)
    ports = [table.serve(f"actor/{number}") for number in range(writers)]
    return table, ports, [port.address.connect(Wire(port, slow=0.0)) for port in ports]


def test_room_in_a_queue_is_promised_to_one_writer_at_a_time():
    table, ports, (one, two) = queue(64)
    assert not one.can_insert(64) and not two.can_insert(64), "nobody has asked before"
    assert one.can_insert(64) and not two.can_insert(64)
    items, _ = items_of(one, 64)
    assert one.insert(items)
    for _ in range(3):
        assert not one.can_insert(64) and not two.can_insert(64)
    assert len(table) == 64 and table.promised == 0
    assert table.sample(64)
    ports[0].reclaim()  # the first has died after asking for more
    assert two.can_insert(64) and table.promised == 64
    table.check()


def test_a_writer_that_would_wait_for_ever_is_told():
    _, _, (writer,) = queue(32, writers=1)
    items, _ = items_of(writer, 64)
    with pytest.raises(UserError, match="never room for 64 items at once: insert 32 or fewer"):
        writer.insert(items, timeout=None)
    assert not writer.insert(items), "who does not wait is told nothing but no"


def test_items_with_a_promise_do_not_wait_behind_a_wish_for_more_room():
    """Two seats write through one writer: the first has its room, the second asks for more than there is."""
    table, _, (both,) = queue(64, writers=1)
    while not both.can_insert(48):
        pass
    assert not both.can_insert(48 + 48)  # the wish is on its way
    assert both.insert(items_of(both, 48)[0])
    end = time.monotonic() + 10
    while len(table) < 48:
        assert time.monotonic() < end and not both.can_insert(48), "they are in the table before there is room for more"
    assert table.sample(48)
    while not both.can_insert(48):
        assert time.monotonic() < end
    table.check()


def test_a_writer_that_died_leaves_no_row_and_no_promise():
    table, (port,), (one,) = queue(64, writers=1)
    while not one.can_insert(16):
        pass
    items, slots = items_of(one, 16)
    assert one.insert(items)
    one.rows.release(slots)
    while not one.can_insert(16):
        pass
    items_of(one, 8)  # it dies in the middle of an unroll
    assert table.promised == 16 and len(table) == 16
    port.reclaim()
    table.check()
    assert table.promised == 0 and not np.count_nonzero(table.rows.holder)
    new = port.address.connect(Wire(port, slow=0.0))
    while not new.can_insert(16):
        pass
    assert new.insert(items_of(new, 16, 100)[0])
    flush_queue(new)
    assert len(table) == 32 and table.sample(32).items["number"].tolist() == [*range(16), *range(100, 116)]


def flush_queue(sink):
    while sink.outbox or not sink.can_insert(1):
        pass


def test_of_a_table_that_is_full_only_so_much_is_on_its_way():
    rows = Rows(ITEM.rows, 40_000)
    table = Table(ITEM, 4000, limiter=Limiter(1.0, 64, -4000.0, 64.0), rows=rows, writer_rows=8192)
    port = table.serve("actor/0")
    sink = port.address.connect(Wire(port, slow=0.0))
    sent = 0
    while sent < 4000:
        items, slots = items_of(sink, 32, sent)
        if not sink.insert(items):
            break
        sink.rows.release(slots)
        sent += 32
    assert sent == 64 + 1024 and len(table) == 64
    assert not sink.insert(items, timeout=0.01)
    assert table.sample(64)
    while len(table) < 128:
        sink.ready(1)
    table.check()


def test_a_writer_without_rows_says_so():
    _, _, (sink, _) = queue(64)
    sink.take_rows(256)
    with pytest.raises(UserError, match="All 256 rows"):
        sink.take_rows(1)
