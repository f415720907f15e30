"""Writers in processes of their own: nothing lost, nothing torn, nothing left behind, and a killed one replaced."""

import multiprocessing
import os
import signal
import time

import numpy as np
import psutil
import pytest

from cavalcade import tree
from cavalcade.envs.adapter import VectorAdapter
from cavalcade.errors import UserError
from cavalcade.experience import NStep, Unroll
from cavalcade.table import Items, Limiter, Rows, RowSpec, Signature, Stopped, Table
from cavalcade.table.port import Port, Writer
from cavalcade.table.rows import ORIGIN
from cavalcade.transport.memory import Memory
from tests.helpers.leftovers import nothing_is_left  # noqa: F401
from tests.helpers.streams import MODES, Streams

SPAWN = multiprocessing.get_context("spawn")
WIDTH = 16
ITEM = Signature.transition(RowSpec(np.zeros(WIDTH, np.int64)), {"number": np.zeros((), np.int64)}, adjacent=True)
BATCH = 64


def shared_table(size=20_000, writers=1, **more):
    memory = Memory("shared")
    rows = Rows(ITEM.rows, 2 * size + writers * 4096, memory)
    more = {"limiter": Limiter.at_least(1), **more}
    return Table(ITEM, size, rows=rows, memory=memory, **more)


def write(address, writer, count, pause=0.0):
    """Items whose number, first row and second row are functions of one number: number, then number + 1."""
    to = Writer(address)
    chains = np.arange(BATCH, dtype=np.int64) * 10**6 + writer * 10**9
    here = observe(to, chains)
    for _ in range(count // BATCH):
        after = observe(to, chains + 1)
        rows = np.stack([here, after], axis=1)
        while not to.can_insert(BATCH):
            time.sleep(1e-4)
        to.insert(Items(rows, {"number": chains}), version=writer, priority=np.ones(BATCH, np.float32), timeout=None)
        to.rows.release(here)
        here, chains = after, chains + 1
        if pause:
            time.sleep(pause)


def observe(to, numbers):
    slots = to.take_rows(BATCH)
    obs = np.repeat(numbers[:, None], WIDTH, axis=1)
    to.rows.seen.write(slots, {"obs": obs, "first": np.zeros(BATCH, bool), ORIGIN: np.zeros((BATCH, 3), np.int32)})
    return slots


def assert_whole(sample):
    """Every drawn item is what one writer wrote, in all of its words."""
    numbers = sample.items["number"]
    assert (sample.items["obs"] == numbers[:, None]).all() and (sample.items["next_obs"] == numbers[:, None] + 1).all()
    np.testing.assert_array_equal(numbers // 10**9, sample.version)


def test_a_million_items_from_four_processes_arrive_whole_and_once_while_others_are_drawn():
    each = 250_000 // BATCH * BATCH
    table = shared_table(writers=4, sampler="uniform")
    ports = [Port(table, writer, grants=2048) for writer in range(4)]
    writers = [SPAWN.Process(target=write, args=(port.address, port.writer, each)) for port in ports]
    for process in writers:
        process.start()
    memory, drawn = [], 0
    while table.limiter.inserts < 4 * each:
        moved = [port.step() for port in ports]
        if table.can_sample(256):
            assert_whole(table.sample(256))
            drawn += 256
        if len(table) == table.size:
            memory.append(psutil.Process().memory_info().rss)
        if not any(moved):
            time.sleep(1e-4)
    for process in writers:
        process.join()
        assert process.exitcode == 0
    while drawn < 1_000_000:
        assert_whole(table.sample(1024))
        drawn += 1024
    memory.append(psutil.Process().memory_info().rss)
    assert memory[-1] - memory[0] < 16e6, "memory grows"
    for port in ports:
        port.step()
    assert table.limiter.inserts == 4 * each and len(table) == table.size
    for port in ports:
        port.reclaim()
    table.check()
    close(table, *ports)


def close(table, *ports):
    for port in ports:
        port.close()
    table.close()


def test_a_queue_across_processes_gives_every_item_once_in_the_order_of_its_writer():
    count = 128 * BATCH
    memory = Memory("shared")
    table = Table.queue(ITEM, 512, rows=Rows(ITEM.rows, 4096, memory), memory=memory)
    port = Port(table, 0, grants=1024, posts=256)
    writer = SPAWN.Process(target=write, args=(port.address, 0, count))
    writer.start()
    numbers = []
    while len(numbers) < count:
        port.step()
        assert len(table) <= 512, "the limiter holds writers back"
        sample = table.sample(32)
        if sample:
            assert_whole(sample)
            numbers += sample.items["number"].tolist()
    writer.join()
    expected = [chain * 10**6 + step for step in range(count // BATCH) for chain in range(BATCH)]
    assert numbers == expected
    close(table, port)


def test_a_killed_writer_is_replaced_and_leaves_no_row_behind():
    table = shared_table()
    port = Port(table, 0, grants=2048)
    first = SPAWN.Process(target=write, args=(port.address, 0, 10**9, 1e-4))
    first.start()
    while table.limiter.inserts < 2_000:
        port.step()
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    port.reclaim()
    table.check()
    assert np.count_nonzero(table.rows.holder) == 2048, "only what is granted anew is held"
    before = table.limiter.inserts
    second = SPAWN.Process(target=write, args=(port.address, 0, 4096))
    second.start()
    while table.limiter.inserts < before + 4096:
        port.step()
    second.join()
    assert_whole(table.sample(512))
    table.check()
    close(table, port)


def test_a_writer_waits_for_room_and_gives_up_at_its_timeout():
    table = shared_table(size=1000, limiter=Limiter(1.0, 64, -1000.0, 64.0))
    port = Port(table, 0, grants=256, posts=128)
    to = Writer(port.address)
    slots = to.take_rows(BATCH)
    items = Items(np.stack([slots, slots], axis=1), {"number": np.arange(BATCH)})
    assert to.insert(items) and to.insert(items), "as many as can be on their way"
    assert not to.can_insert(1) and not to.insert(items)
    began = time.monotonic()
    assert not to.insert(items, timeout=0.1) and 0.1 <= time.monotonic() - began < 2
    port.step()
    assert len(table) == 64 and to.insert(items), "one batch went on"
    port.step()
    assert len(table) == 64 and port.rings.posts.waiting == 128, "the limiter says wait: the rest waits outside"
    assert table.sample(64) and port.step() and len(table) == 128
    close(table, port)


def test_room_in_a_queue_is_promised_to_one_writer_at_a_time():
    memory = Memory("shared")
    table = Table.queue(ITEM, 64, rows=Rows(ITEM.rows, 4096, memory), memory=memory)
    ports = [Port(table, number, grants=256) for number in range(2)]
    one, two = (Writer(port.address) for port in ports)
    assert not one.can_insert(64) and not two.can_insert(64), "nobody has asked before"
    for port in ports:
        port.step()
    assert one.can_insert(64) and not two.can_insert(64)
    slots = one.take_rows(BATCH)
    assert one.insert(Items(np.stack([slots, slots], axis=1), {"number": np.arange(BATCH)}))
    for port in ports:
        port.step()
    assert len(table) == 64 and not one.can_insert(1) and not two.can_insert(64)
    assert table.sample(64)
    ports[0].reclaim()  # the first has died after asking for one more
    for port in ports:
        port.step()
    assert two.can_insert(64) and table.promised == 64
    close(table, *ports)


def test_a_writer_that_would_wait_for_ever_is_told():
    memory = Memory("shared")
    table = Table.queue(ITEM, 32, rows=Rows(ITEM.rows, 4096, memory), memory=memory)
    port = Port(table, 0, grants=256)
    to = Writer(port.address)
    slots = to.take_rows(BATCH)
    items = Items(np.stack([slots, slots], axis=1), {"number": np.arange(BATCH)})
    with pytest.raises(UserError, match="never room for 64 items at once: insert 32 or fewer"):
        to.insert(items, timeout=None)
    assert not to.insert(items), "who does not wait is told nothing but no"
    close(table, port)


@pytest.mark.parametrize("queue", [True, False])
def test_a_writer_can_send_as_many_items_at_once_as_it_has_rows(queue):
    memory, count = Memory("shared"), 3_000
    where = {"rows": Rows(ITEM.rows, 2 * count, memory), "memory": memory, "writer_rows": count + 1}
    table = Table.queue(ITEM, count, **where) if queue else Table(ITEM, count, "fifo", max_times_sampled=2, **where)
    port = table.share("actor/0")
    to = Writer(port.address)
    slots = to.take_rows(count + 1)
    for _ in range(2):
        may = to.can_insert(count)
        port.step()
    assert may and to.insert(Items(np.stack([slots[:-1], slots[1:]], axis=1), {"number": np.arange(count)}))
    port.step()
    each = 1 if queue else 2
    assert table.sample(each * count).items["number"].tolist() == np.repeat(np.arange(count), each).tolist()
    close(table, port)


def test_stopping_wakes_a_writer_that_waits_for_rows():
    table = shared_table(size=64)
    port = Port(table, 0, grants=128)
    there = SPAWN.Event()
    waiting = SPAWN.Process(target=wait_for_rows, args=(port.address, there))
    waiting.start()
    assert there.wait(60)
    close(table, port)
    waiting.join(60)
    assert waiting.exitcode == 0


def wait_for_rows(address, there):
    to = Writer(address)
    to.take_rows(128)
    there.set()
    try:
        to.take_rows(1)
    except Stopped:
        return
    raise AssertionError("it did not wait, or was not told")


@pytest.mark.parametrize("item", [NStep(3, 0.9), Unroll(6, 0.9, period=3)], ids=["n-step", "overlapping unrolls"])
def test_an_actor_writes_through_a_port_what_it_would_write_into_the_table(item):
    count, drawn = 5, []
    for remote in (False, True):
        environments = VectorAdapter(Streams(count, MODES[1]), "streams", 0)
        kept = item.signature(environments.spec, {}, {})
        memory = Memory("shared")
        rows = Rows(kept.rows, item.rows_needed(kept.rows, 1000, True) + 512, memory)
        table = Table.queue(kept, 1000, rows=rows, memory=memory)
        ports = [Port(table, 0, grants=512)] if remote else []
        sink = Writer(ports[0].address) if remote else table
        adder = item.adder(sink, count)
        obs = environments.reset()
        for _ in range(100):
            step = environments.step(np.zeros(count, np.int64))
            items = adder.add(obs, np.zeros(count, np.int64), {}, {}, step)
            for port in ports:
                sink.can_insert(len(items.rows) if items else 0)
                port.step()
            assert items is None or sink.insert(items, 7, timeout=None)
            for port in ports:
                port.step()
            obs = step.observation
        table.check()
        drawn.append(table.sample(len(table)).items)
        close(table, *ports)
    tree.map(np.testing.assert_array_equal, *drawn)
    assert len(drawn[0]["reward"]) > 100


def test_a_table_in_ordinary_memory_has_no_ports():
    with pytest.raises(UserError, match="shared memory"):
        Port(Table(ITEM, 10), 0, grants=16)
