"""Where a table lies makes no difference to what it gives, what does not fit is refused, and samples are copies."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cavalcade.errors import UserError
from cavalcade.table import Items, Rows, RowSpec, Signature, Table, prioritised
from cavalcade.table.invariants import check
from cavalcade.transport import memory
from cavalcade.transport.memory import Memory

BLANK = {"frame": np.zeros((20, 20), np.uint8), "n": np.zeros((), np.int64)}
SHARED = pytest.mark.skipif(not Path("/dev/shm").exists(), reason="shared memory has no names here")


def frames(numbers):
    """Those of a game: mostly one colour."""
    found = np.zeros((len(numbers), 20, 20), np.uint8)
    found[:, 3:5, 7:9] = np.array(numbers)[:, None, None]
    return found


def run(table):
    """Some of everything; all samples."""
    samples = []
    for start in range(0, 60, 6):
        numbers = np.arange(start, start + 6)
        assert table.insert({"frame": frames(numbers), "n": numbers}, start, numbers * 0.5)
        samples.append(table.sample(9, 0.4))
        table.update_priorities(samples[-1].keys, np.arange(9.0))
        table.delete(samples[-1].keys[:1])
        assert np.array_equal(samples[-1].items["frame"], frames(samples[-1].items["n"]))
    check(table)
    return samples


def run_rows(rows):
    """Stacks of frames and sequences over the same rows; all samples."""
    own = {"n": np.zeros((), np.int64)}
    signatures = Signature.transition(RowSpec(rows.spec.obs, stack=4), own, True), Signature.sequence(rows.spec, own, 3)
    tables = [Table(signature, 5, rows=rows) for signature in signatures]
    slots = rows.take(20)
    rows.previous[slots[1:]] = slots[:-1]
    rows.seen.write(slots, {"obs": frames(range(1, 21)), "first": np.zeros(20, bool), "#origin": np.zeros((20, 3))})
    rows.done.write(slots, {"action": np.arange(1, 21)})
    for table in tables:
        length = table.signature.length
        table.insert(Items(np.stack([slots[i : i + length] for i in range(15)]), {"n": np.arange(15)}))
    rows.release(slots)
    check(*tables)
    return [table.sample(12) for table in tables]


def assert_equal(one, other):
    for a, b in zip(one, other, strict=True):
        assert a.items.keys() == b.items.keys()
        assert all(np.array_equal(a.items[name], b.items[name]) for name in a.items)
        assert all(np.array_equal(x, y) for x, y in zip(a[1:-1], b[1:-1])), "all but when they were made"


SPEC = RowSpec(np.zeros((4, 20, 20), np.uint8), {"action": np.zeros((), np.int64)}, stack=4)


# --- kinds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shared", "file"])
def test_tables_of_every_kind_of_memory_give_the_same_samples(kind, tmp_path):
    plain, made = (
        Table(BLANK, 20, prioritised(0.6), "uniform", seed=3, memory=where)
        for where in (None, Memory(kind, tmp_path if kind == "file" else None))
    )
    assert_equal(run(plain), run(made))
    assert made.bytes == plain.bytes
    made.close()


@pytest.mark.parametrize("kind", ["shared", "file"])
def test_rows_of_every_kind_of_memory_give_the_same_samples(kind):
    there = Memory(kind)
    assert_equal(run_rows(Rows(SPEC, 40)), run_rows(Rows(SPEC, 40, there)))
    there.close()


def test_another_kind_of_memory_is_refused():
    with pytest.raises(UserError, match="flie"):
        Memory("flie")


@SHARED
def test_a_closed_table_leaves_no_shared_memory_behind():
    table = Table(BLANK, 10, memory=Memory("shared"))
    run(table)
    files = [Path("/dev/shm") / name for name in table.memory.names]
    assert files and all(file.exists() for file in files)
    table.close()
    assert not any(file.exists() for file in files) and table.memory.names == []
    table.close()  # once more changes nothing


@SHARED
def test_neither_kind_keeps_files_open_when_its_table_has_gone():
    open_files = []
    for kind in ("shared", "file", "shared", "file"):  # what opens only once is open after the first two
        table = Table(BLANK, 10, memory=Memory(kind))
        run(table)
        table.close()
        del table
        open_files.append(len(os.listdir("/proc/self/fd")))
    assert open_files[3] == open_files[1]


def test_a_table_in_a_file_leaves_no_file_behind(tmp_path):
    table = Table(BLANK, 10, memory=Memory("file", tmp_path))
    run(table)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size, folder", [(100, "/nowhere"), (1 << 50, None)])
def test_a_file_that_cannot_be_made_is_refused_at_once(size, folder):
    with pytest.raises(UserError, match=r"file of .* cannot be made"):
        Memory("file", folder).allocate(size)


@pytest.mark.parametrize("kind", ["memory", "shared", "file"])
def test_memory_is_zero_and_begins_at_a_cache_line(kind):
    there = Memory(kind)
    for size in (1, 63, 64, 1_000):
        block = there.allocate(size)
        assert len(block) >= size and not block.any() and block.ctypes.data % 64 == 0
        block[:] = 255
    assert there.bytes == 1 + 63 + 64 + 1_000
    there.close()


def test_bytes_are_all_that_an_item_takes():
    ten, twenty = (Table({"x": np.zeros(2, np.float32), "n": np.zeros((), np.int64)}, size).bytes for size in (10, 20))
    assert twenty - ten == 10 * (2 * 4 + 8 + 32)  # its leaves, and key, version, when made, priority and times drawn


WRITE = """
import sys
import numpy as np
from cavalcade.table import RowSpec
from cavalcade.transport import Attached
from cavalcade.table.rows import RowData, observed

spec = RowSpec({name: np.zeros(50) for name in ("left", "mid", "right")}, {"action": np.zeros((), np.int64)})
rows = RowData(spec, 11, Attached(sys.argv[1:]))
obs = {"left": np.full((1, 50), 1), "mid": np.full((1, 50), 2), "right": np.full((1, 50), 3)}
rows.seen.write(np.array([1], np.int32), observed(obs))
rows.done.write(np.array([1], np.int32), {"action": np.array([4])})
"""


@pytest.mark.parametrize("seed", ["0", "3", "6", "9"])
def test_another_process_writes_to_the_same_leaves_of_shared_rows(seed):
    """Where the order of a set of strings is another: nothing may depend on it."""
    blank = {name: np.zeros(50) for name in ("left", "mid", "right")}
    rows = Rows(RowSpec(blank, {"action": np.zeros((), np.int64)}), 10, Memory("shared"))
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    subprocess.run([sys.executable, "-c", WRITE, *rows.memory.names], env=environment, check=True)
    slot = np.array([1], np.int32)
    found = {name: leaf.max() for name, leaf in rows.read_observations(slot).items()}
    assert found == {"left": 1, "mid": 2, "right": 3} and rows.done.read(slot)["action"] == 4
    rows.memory.close()


# --- what fits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, where", [("memory", "in memory"), ("shared", "in shared memory"), ("file", "on this disk")]
)
def test_what_does_not_fit_is_refused_with_a_size_that_would(monkeypatch, kind, where):
    monkeypatch.setattr(memory, "available", lambda: 10_000_000_000)
    monkeypatch.setattr(memory, "_disk", lambda folder: 10_000_000_000)
    memory.require(9_000_000_000, 1_000_000, kind)  # a tenth stays free
    with pytest.raises(UserError) as refused:
        memory.require(20_000_000_000, 1_000_000, kind)
    text = str(refused.value)
    assert f"1,000,000 items needs 20.0 GB, but only 10.0 GB are free {where}: 450,000 items would fit" in text
    assert ("--storage file" in text) is (kind != "file")
    memory.require(20_000 * 450_000, 450_000, kind)


def test_shared_memory_may_be_scarcer_than_memory(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 10_000_000_000)
    monkeypatch.setattr(memory, "_disk", lambda folder: 64_000_000)
    memory.require(100_000_000, 1_000, "memory")
    with pytest.raises(UserError, match=r"only 0\.1 GB are free in shared memory: 570 items would fit"):
        memory.require(100_000_000, 1_000, "shared")


@pytest.mark.parametrize("each", [1, 37, 28_224, 5_000_000])
@pytest.mark.parametrize("free", [50_000_000, 7_654_321_098])
def test_the_size_that_would_fit_does(monkeypatch, each, free):
    monkeypatch.setattr(memory, "available", lambda: free)
    size = 3 * free // each
    with pytest.raises(UserError) as refused:
        memory.require(each * size, size, "memory")
    fits = int(str(refused.value).split("are free in memory: ")[1].split(" items")[0].replace(",", ""))
    memory.require(each * fits, fits, "memory")
    with pytest.raises(UserError):
        memory.require(int(each * fits * 1.25) + each, int(fits * 1.25) + 1, "memory")


def test_this_machine_has_some_memory_and_not_without_end():
    assert 1 << 20 < memory.available() < 1 << 50
    memory.require(1 << 20, 10, "memory")
    with pytest.raises(UserError):
        memory.require(1 << 60, 10, "memory")


# --- compressed ---------------------------------------------------------------------------------------------------


def test_compressed_tables_give_the_same_samples():
    pytest.importorskip("lz4")
    plain, packed = (Table(BLANK, 20, prioritised(0.6), seed=3, compressed=compressed) for compressed in (False, True))
    assert_equal(run(plain), run(packed))
    assert_equal(run_rows(Rows(SPEC, 40)), run_rows(Rows(SPEC, 40, compressed=True)))


def test_compressed_tables_are_restored():
    pytest.importorskip("lz4")
    table, other = (Table(BLANK, 20, "uniform", "uniform", seed=seed, compressed=True) for seed in (1, 2))
    run(table)
    other.restore(table.state())
    assert_equal([table.sample(30)], [other.sample(30)])
    numbers = np.arange(100, 107)
    for each in (table, other):
        each.insert({"frame": frames(numbers), "n": numbers})
    assert_equal([table.sample(30)], [other.sample(30)])


def test_frames_that_do_not_compress_come_back_as_they_were():
    pytest.importorskip("lz4")
    noise = np.random.default_rng(0).integers(0, 256, (8, 20, 20), dtype=np.uint8)
    table = Table(BLANK, 8, "fifo", compressed=True, max_times_sampled=1)
    table.insert({"frame": noise, "n": np.arange(8)})
    assert np.array_equal(table.sample(8).items["frame"], noise)


def test_without_lz4_one_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4", None)
    with pytest.raises(UserError, match="pip install"):
        Table(BLANK, 20, compressed=True)


# --- drawn arrays belong to the caller ----------------------------------------------------------------------------

LARGE = {"frame": np.zeros((64, 64), np.float32)}  # 16 kB: from 64 items on the memory of a draw is used again


def large(numbers):
    return {"frame": np.ones((1, 64, 64), np.float32) * np.array(numbers, np.float32)[:, None, None]}


@pytest.mark.parametrize("count", [16, 64, 100])
def test_a_sample_that_is_kept_never_changes(count):
    table = Table(LARGE, 50)
    kept = []
    for start in range(0, 600, 20):
        table.insert(large(range(start, start + 20)))
        frame = table.sample(count).items["frame"]
        kept.append((frame, frame.copy()))
        if len(kept) == 8:
            kept.pop(start % 7)  # some are let go, in no order
        table.sample(count)
    assert len(kept) == 7
    assert all(np.array_equal(frame, copy) for frame, copy in kept)


@pytest.mark.parametrize(
    "look",
    [lambda a: a[3:5], lambda a: a.reshape(-1)[::7], lambda a: a.T, lambda a: a.view(np.uint8)[..., :9], memoryview],
)
def test_a_part_of_a_sample_that_is_kept_never_changes(look):
    table = Table(LARGE, 100)
    table.insert(large(range(100)))
    part = look(table.sample(64).items["frame"])
    before = np.array(part)
    for _ in range(20):
        table.sample(64)
    assert np.array_equal(part, before)


@pytest.mark.parametrize("name", ["obs", "next_obs"])
def test_either_half_of_transitions_that_share_frames_never_changes(name):
    rows = Rows(RowSpec(np.zeros((4, 40, 40), np.float32), stack=4), 120)
    slots = rows.take(100)
    rows.previous[slots[1:]] = slots[:-1]
    images = np.arange(100, dtype=np.float32)[:, None, None] * np.ones((1, 40, 40), np.float32)
    rows.seen.write(slots, {"obs": images, "first": np.zeros(100, bool), "#origin": np.zeros((100, 3))})
    table = Table(Signature.transition(rows.spec, {}, adjacent=True), 99, rows=rows)
    table.insert(Items(np.stack([slots[:-1], slots[1:]], axis=1), {}))
    kept = table.sample(64).items[name]
    before = kept.copy()
    for _ in range(20):
        table.sample(64)
    assert np.array_equal(kept, before)


def test_the_memory_of_samples_nobody_looks_at_is_used_again():
    table = Table(LARGE, 100)
    table.insert(large(range(100)))
    places = {table.sample(64).items["frame"].ctypes.data for _ in range(50)}
    assert len(places) == 1


def test_a_sample_may_be_written_to():
    table = Table(LARGE, 1)
    table.insert(large([5]))
    table.sample(100).items["frame"][:] = 9.0
    assert (table.sample(100).items["frame"] == 5.0).all()
