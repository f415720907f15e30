"""Four threads that insert and four that draw: nothing lost, nothing torn, the window kept, and nobody left waiting."""

import sys
import threading
import time

import numpy as np
import psutil
import pytest

from cavalcade.table import Limiter, Stopped, Table, prioritised

BATCH, LONG = 64, 60.0  # seconds nobody should ever wait; a thread that does fails instead of hanging
SMALL = {"n": np.zeros((), np.int64), "twice": np.zeros((), np.float64), "rest": np.zeros(3, np.int32)}
LARGE = {**SMALL, "frame": np.zeros((80, 80), np.uint8)}  # batches of these are copied while other threads run


@pytest.fixture(autouse=True)
def threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def items(numbers, blank):
    found = {"n": numbers, "twice": numbers * 2.0, "rest": (numbers[:, None] + np.arange(3)) % 1009}
    if "frame" in blank:
        found["frame"] = np.broadcast_to((numbers % 251).astype(np.uint8)[:, None, None], (len(numbers), 80, 80))
    return found


def numbers_of(sample):
    """Which items were drawn; every leaf has to belong to the same one."""
    for name, leaf in items(sample.items["n"], sample.items).items():
        assert np.array_equal(sample.items[name], leaf), f"{name} is torn"
    return sample.items["n"]


def assert_in_window(table):
    with table.lock:
        limits, live = table.limiter, len(table)
        balance = limits.inserts * limits.samples_per_insert - limits.samples
        assert balance <= limits.max_diff and live == limits.inserts - limits.deletes
        assert limits.samples == 0 or balance >= limits.min_diff
        assert live <= table.capacity


def together(*jobs):
    """Run each in a thread of its own, and raise what any of them raised."""
    errors = []

    def guarded(job):
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LONG)
        assert not thread.is_alive(), "a thread never came back"
    if errors:
        raise errors[0]


def move(table, blank, rounds):
    """4 threads insert `rounds` batches each, 4 draw as many; what each of the latter drew, and how memory grew."""
    drawn, used = [[] for _ in range(4)], []

    def insert(which):
        for i in range(rounds):
            numbers = np.arange(i * BATCH, (i + 1) * BATCH) + which * rounds * BATCH
            assert table.insert(items(numbers, blank), which, timeout=LONG)
            assert_in_window(table)

    def sample(which):
        for i in range(rounds):
            found = table.sample(BATCH, timeout=LONG)
            drawn[which].append(numbers_of(found))
            assert np.array_equal(found.version, drawn[which][-1] // (rounds * BATCH)), "the version of another item"
            assert_in_window(table)
            if which == 0 and i in (rounds // 10, rounds - 1):
                used.append(psutil.Process().memory_info().rss)

    together(*(lambda job=job, which=which: job(which) for which in range(4) for job in (insert, sample)))
    return [np.concatenate(each) for each in drawn], used[1] - used[0]


def test_a_queue_passes_a_million_items_once_and_in_order_through_eight_threads():
    rounds = 3_907  # 4 * 3907 * 64 are a million
    table = Table.queue(SMALL, 1_000)
    drawn, growth = move(table, SMALL, rounds)
    everything = np.concatenate(drawn)
    assert np.array_equal(np.sort(everything), np.arange(4 * rounds * BATCH)), "lost, or drawn twice"
    for each in drawn:  # of one thread that drew, what came from one that inserted
        for which in range(4):
            assert (np.diff(each[each // (rounds * BATCH) == which]) > 0).all(), "out of order"
    kept = sum(each.nbytes for each in drawn)
    assert growth < kept + 20e6, f"memory grew by {growth / 1e6:.0f} MB"
    assert len(table) == 0
    table.check()


def test_a_stack_passes_every_item_once():
    table = Table.stack(LARGE, 500)
    drawn, _ = move(table, LARGE, 100)
    assert np.array_equal(np.sort(np.concatenate(drawn)), np.arange(4 * 100 * BATCH))
    table.check()


def test_replay_by_priority_keeps_its_ratio_and_its_items_whole():
    """Inserters end; those who draw go on until they are stopped, so the window alone decides how much is drawn."""
    table = Table.prioritised(LARGE, 600, Limiter.ratio(2.0, 200, 300.0))
    alive, inserted, drawn = threading.Barrier(5), 4 * 80 * BATCH, []

    def insert(which):
        chance = np.random.default_rng(which)
        for i in range(80):
            numbers = np.arange(i * BATCH, (i + 1) * BATCH) + which * 80 * BATCH
            assert table.insert(items(numbers, LARGE), which, chance.random(BATCH), timeout=LONG)
            assert_in_window(table)
        alive.wait(LONG)

    def sample():
        try:
            while True:
                found = table.sample(BATCH, 0.4, timeout=LONG)
                drawn.append(numbers_of(found).max())
                assert table.update_priorities(found.keys, found.probability) <= BATCH
                assert_in_window(table)
        except Stopped:
            pass

    def stop():
        alive.wait(LONG)
        end = time.monotonic() + LONG
        while table.can_sample(BATCH) and time.monotonic() < end:
            time.sleep(0.01)
        table.stop()

    together(*(lambda which=which: insert(which) for which in range(4)), *[sample] * 4, stop)
    limits = table.limiter
    assert limits.inserts == inserted and limits.samples == len(drawn) * BATCH
    assert not table.can_sample(BATCH) and abs(limits.samples - 2.0 * (inserted - 200)) <= 300
    assert max(drawn) < inserted and limits.deletes == inserted - 600
    table.check()


def test_memory_stays_flat_when_large_samples_are_drawn():
    table = Table(LARGE, 1_000, prioritised(0.6))
    used = []
    for i in range(600):
        table.insert(items(np.arange(i * BATCH, (i + 1) * BATCH), LARGE))
        numbers_of(table.sample(256))
        used.append(psutil.Process().memory_info().rss)
    assert max(used[300:]) - used[100] < 10e6


# --- waiting ------------------------------------------------------------------------------------------------------


def seconds(call):
    start = time.monotonic()
    found = call()
    return found, time.monotonic() - start


def test_calls_with_a_timeout_give_up_after_it_and_change_nothing():
    table = Table.queue(SMALL, 2)
    found, took = seconds(lambda: table.sample(1, timeout=0.1))
    assert found is None and 0.1 <= took < 2.0
    assert table.insert(items(np.arange(2), SMALL), timeout=0.1)
    found, took = seconds(lambda: table.insert(items(np.arange(1), SMALL), timeout=0.1))
    assert found is False and 0.1 <= took < 2.0
    assert len(table) == 2 and table.limiter.inserts == 2
    table.check()


def test_calls_without_a_timeout_never_wait():
    table = Table.queue(SMALL, 2)
    one = items(np.arange(1), SMALL)
    _, took = seconds(lambda: [table.sample(1) for _ in range(1_000)])
    assert took < 1.0
    table.insert(items(np.arange(2), SMALL))
    found, took = seconds(lambda: [table.insert(one) for _ in range(1_000)])
    assert not any(found) and took < 1.0
    table.stop()
    assert table.insert(one) is False, "who does not wait is told nothing but no"


def test_who_waits_is_woken_by_what_it_waits_for():
    table = Table.queue(SMALL, 1)
    took = []

    def sample():
        found, waited = seconds(lambda: table.sample(1, timeout=None))
        took.append(waited)
        assert numbers_of(found) == [7]

    def insert():
        time.sleep(0.2)
        table.insert(items(np.array([7]), SMALL))

    together(sample, insert)
    assert 0.1 < took[0] < 2.0


@pytest.mark.parametrize("act", [lambda t: t.delete(t.key), lambda t: t.sample(1)], ids=["delete", "sample"])
def test_a_full_table_wakes_inserters_when_items_go(act):
    table = Table.queue(SMALL, 1)
    table.insert(items(np.array([7]), SMALL))

    def leave():
        time.sleep(0.2)
        act(table)

    _, took = seconds(lambda: together(lambda: table.insert(items(np.array([8]), SMALL), timeout=LONG), leave))
    assert table.limiter.inserts == 2 and took < 5.0


@pytest.mark.parametrize("timeout", [None, LONG])
@pytest.mark.parametrize("full", [True, False])
def test_stop_wakes_all_who_wait_at_once(full, timeout):
    table, woken = Table.queue(SMALL, 3), []
    if full:
        table.insert(items(np.arange(3), SMALL))

    def wait():
        with pytest.raises(Stopped):
            table.insert(items(np.arange(1), SMALL), timeout=timeout) if full else table.sample(1, timeout=timeout)
        woken.append(time.monotonic())

    def stop():
        time.sleep(0.2)
        woken.append(time.monotonic())
        table.stop()

    together(wait, wait, wait, wait, stop)
    assert len(woken) == 5 and woken[-1] - woken[0] < 2.0
    wait()  # nor does anybody wait later


def test_tables_that_share_a_lock_are_stopped_one_by_one():
    one = Table.queue(SMALL, 3)
    other = Table.queue(SMALL, 3, rows=one.rows)
    one.stop()
    assert other.sample(1, timeout=0.05) is None
    with pytest.raises(Stopped):
        one.sample(1, timeout=0.05)
