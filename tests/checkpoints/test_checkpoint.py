"""Checkpoints come back exactly, or are refused: never a third thing."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors.numpy import load_file

from cavalcade.checkpoints import checkpoint, disk
from cavalcade.errors import UserError

ROOT = Path(__file__).parents[2]  # children find the package from here even if it is not installed


def same(a, b) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        exact = isinstance(b, np.ndarray) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return exact and a.tobytes() == b.tobytes()  # bytes: NaN equals itself, -0.0 differs from 0.0
    if isinstance(a, float):
        return isinstance(b, float) and np.float64(a).tobytes() == np.float64(b).tobytes()
    return type(a) is type(b) and a == b


kinds = [npst.boolean_dtypes(), npst.integer_dtypes(endianness="?"), npst.floating_dtypes(endianness="?")]
kinds += [npst.complex_number_dtypes(), npst.datetime64_dtypes(), npst.unicode_string_dtypes(max_len=3)]
arrays = npst.arrays(st.one_of(kinds), npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
numbers = st.integers() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False) | st.just(float("nan"))
values = st.recursive(st.none() | st.booleans() | numbers | st.text(), lambda v: st.lists(v, max_size=3))
keys = st.text(max_size=3) | st.sampled_from(["$array", "$int", "a/b", "a", "b", "__metadata__", "$$x"])
trees = st.recursive(arrays | values, lambda tree: st.dictionaries(keys, tree, max_size=4), max_leaves=12)


@given(st.dictionaries(keys, trees, max_size=4))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_tree_comes_back_exactly(state):
    folder = Path(tempfile.mkdtemp())
    try:
        path = checkpoint.save(folder / "checkpoints", state, 7)
        loaded, step, notes = checkpoint.load_latest(folder / "checkpoints")
        assert same(state, loaded) and step == 7 and notes == []
        load_file(path / "arrays.safetensors")  # opens in the reader that everybody has
        json.loads((path / "state.json").read_bytes(), parse_constant=pytest.fail)  # strict JSON: no bare NaN
    finally:
        shutil.rmtree(folder)


def test_a_generator_continues_where_it_was(tmp_path):
    rng = np.random.default_rng(3)
    checkpoint.save(tmp_path, {"rng": rng.bit_generator.state}, 1)
    expected = rng.random(5)
    other = np.random.default_rng(0)
    other.bit_generator.state = checkpoint.load_latest(tmp_path)[0]["rng"]
    np.testing.assert_array_equal(other.random(5), expected)


def test_arrays_are_plain_safetensors_and_loaded_ones_are_writable(tmp_path):
    state = {"net": {"w": np.arange(6, dtype=np.float32).reshape(2, 3).T, "n": np.int64(4)}}
    path = checkpoint.save(tmp_path, state, 1)
    tensors = load_file(path / "arrays.safetensors")
    np.testing.assert_array_equal(tensors["net/w"], state["net"]["w"])
    assert tensors["net/n"] == 4
    checkpoint.load_latest(tmp_path)[0]["net"]["w"][0, 0] = 9


@pytest.mark.parametrize("bad", [(1, 2), object(), {1: 2}, np.array([None]), b"bytes", {1, 2}])
def test_what_cannot_be_kept_is_refused_by_name_before_anything_is_written(tmp_path, bad):
    with pytest.raises(UserError, match="part/bad"):
        checkpoint.save(tmp_path / "c", {"part": {"bad": bad}}, 1)
    assert not (tmp_path / "c").exists()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill(value: int, size: int = 1000) -> dict:
    return {"array": np.full(size, value), "value": value}


def test_only_the_newest_are_kept(tmp_path):
    for step in (10, 20, 30):
        checkpoint.save(tmp_path, fill(step), step, keep=2)
    assert names(tmp_path) == ["step-000000020", "step-000000030"]
    checkpoint.save(tmp_path, fill(40), 40, keep=1)
    assert names(tmp_path) == ["step-000000040"]


def test_going_back_discards_the_future_and_never_what_was_just_saved(tmp_path):
    for step in (10, 20, 30):
        checkpoint.save(tmp_path, fill(step), step, keep=3)
    checkpoint.save(tmp_path, fill(15), 15, keep=1)
    assert names(tmp_path) == ["step-000000015"]


def test_the_same_step_again_replaces(tmp_path):
    checkpoint.save(tmp_path, fill(1), 10)
    checkpoint.save(tmp_path, fill(2), 10)
    assert checkpoint.load_latest(tmp_path)[0]["value"] == 2 and names(tmp_path) == ["step-000000010"]


def test_a_replacement_that_never_arrived(tmp_path):
    path = checkpoint.save(tmp_path, fill(1), 10)
    path.rename(tmp_path / ".replaced-step-000000010")  # killed between the two renames
    assert checkpoint.load_latest(tmp_path)[0]["value"] == 1
    checkpoint.save(tmp_path, fill(2), 20)
    assert names(tmp_path) == ["step-000000010", "step-000000020"]


@pytest.mark.parametrize("name", ["arrays.safetensors", "state.json"])
@pytest.mark.parametrize("harm", ["truncate", "empty", "flip", "delete", "extend"])
def test_a_damaged_newest_is_refused_and_the_one_before_used(tmp_path, name, harm):
    checkpoint.save(tmp_path, fill(1), 10)
    file = checkpoint.save(tmp_path, fill(2), 20) / name
    data = bytearray(file.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
    file.write_bytes({"truncate": data[:-5], "empty": b"", "extend": data + b"x"}.get(harm, data))
    if harm == "delete":
        file.unlink()
    state, step, notes = checkpoint.load_latest(tmp_path)
    assert step == 10 and same(state, fill(1))
    assert len(notes) == 1 and "step-000000020" in notes[0]


def test_every_single_flipped_bit_of_the_json_is_noticed(tmp_path):
    file = checkpoint.save(tmp_path, {"rate": 0.5, "many": [1, 2, 3], "array": np.zeros(1)}, 1) / "state.json"
    whole = file.read_bytes()
    for position in range(len(whole)):
        data = bytearray(whole)
        data[position] ^= 1 << (position % 8)
        file.write_bytes(data)
        try:
            state, step, _ = checkpoint.load_latest(tmp_path)
        except UserError:
            continue
        # White space between values may change: the content may not.
        assert same(state, {"rate": 0.5, "many": [1, 2, 3], "array": np.zeros(1)}) and step == 1


def test_another_format_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    checkpoint.save(tmp_path, fill(1), 10)
    monkeypatch.undo()
    with pytest.raises(UserError, match="format 99"):
        checkpoint.load_latest(tmp_path)


def test_nothing_usable(tmp_path):
    with pytest.raises(UserError, match=str(tmp_path)):
        checkpoint.load_latest(tmp_path / "checkpoints")
    checkpoint.save(tmp_path, fill(1), 10)
    (tmp_path / "step-000000010" / "state.json").write_text("{")
    with pytest.raises(UserError, match=r"step-000000010 was refused"):
        checkpoint.load_latest(tmp_path)


def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, fill(1), 10)
    for moment in ("write_arrays", "_sha256_of", "sync_folder"):

        def interrupt(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(checkpoint, moment, interrupt)
            checkpoint.save(tmp_path, fill(2), 10)
        assert names(tmp_path) == ["step-000000010"] and checkpoint.load_latest(tmp_path)[0]["value"] == 1


FULL_DISK = """
import sys
from pathlib import Path
import numpy as np
from cavalcade.checkpoints import checkpoint
from cavalcade.errors import UserError
folder = Path(sys.argv[1]) / "checkpoints"
if sys.argv[2] == "limit":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
big = {"array": np.zeros(4 << 20, np.uint8)}
try:
    checkpoint.save(folder, big, 5)
except UserError as error:
    assert "The disk is full" in str(error) and "no earlier checkpoint" in str(error), error
else:
    sys.exit("a full disk went unnoticed at the first checkpoint")
for step in (10, 20):
    checkpoint.save(folder, {"value": step, "array": np.full(1000, step)}, step)
for step in (20, 30):
    try:
        checkpoint.save(folder, big, step)
    except UserError as error:
        assert "The disk is full" in str(error), error
        assert "nothing was lost: the last checkpoint is step-000000020" in str(error), error
    else:
        sys.exit("a full disk went unnoticed")
    assert sorted(p.name for p in folder.iterdir()) == ["step-000000010", "step-000000020"]
    state, at, notes = checkpoint.load_latest(folder)
    assert at == state["value"] == 20 and (state["array"] == 20).all() and not notes
"""


def test_a_file_size_limit_is_a_full_disk(tmp_path):
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path), "limit"], check=True, cwd=ROOT)


def test_a_disk_that_is_really_full(tmp_path):
    # In a mount namespace of its own, so that the small disk vanishes with the process.
    inside = f'mount -t tmpfs -o size=1m tmpfs "{tmp_path}" && '
    if subprocess.run(["unshare", "-m", "sh", "-c", inside + "true"], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    script = [sys.executable, "-c", FULL_DISK, str(tmp_path), "disk"]
    subprocess.run(["unshare", "-m", "sh", "-c", inside + '"$@"', "sh", *script], check=True, cwd=ROOT)


SAVE_FOREVER = """
import sys
from itertools import count
from pathlib import Path
import numpy as np
from cavalcade.checkpoints import checkpoint
for step in count(int(sys.argv[2])):
    for attempt in (0, 1):  # each step twice, so that replacing is interrupted as well
        state = {"value": step, "array": np.full(300_000, step), "more": {"array": np.full((3, 5), step)}}
        checkpoint.save(Path(sys.argv[1]), state, step)
        print(step, flush=True)
"""


def test_kill_9_while_saving_always_leaves_the_last_finished_checkpoint(tmp_path):
    rng = random.Random(0)
    reached = 0
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOREVER, str(tmp_path), str(reached)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        child.stdout.readline()
        try:
            child.wait(rng.uniform(0.0, 0.1))
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
        said = [int(line) for line in child.stdout.read().split()]
        child.wait()
        state, step, notes = checkpoint.load_latest(tmp_path)
        assert notes == [] and step >= max(said, default=reached)
        assert same(state["array"], np.full(300_000, step)) and state["value"] == step
        reached = step
    checkpoint.save(tmp_path, fill(1), reached + 1)
    assert not [name for name in names(tmp_path) if name.startswith(".")]  # leftovers are swept up


def test_whole_files_are_replaced_at_once(tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    disk.write_atomically(file, b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "sync_file", fail)
    with pytest.raises(OSError) as caught:
        disk.write_atomically(file, b"new")
    assert disk.is_disk_full(caught.value)
    assert file.read_bytes() == b"old" and names(tmp_path) == ["config.json"]


def test_what_was_saved_after_the_step_that_a_run_goes_on_from_is_forgotten(tmp_path):
    """Of a checkpoint in two parts one may be missing; the other would be kept in the place of one that is whole."""
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, {"step": step}, step)
    checkpoint.forget_later(tmp_path, 2)
    checkpoint.save(tmp_path, {"step": 4}, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000002", "step-000000004"]
