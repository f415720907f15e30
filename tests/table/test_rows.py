"""Rows that several tables share: what a sample shows of them, and when they are free again."""

import subprocess
import sys

import numpy as np
import pytest

from cavalcade.errors import UserError
from cavalcade.table import Items, Limiter, Rows, RowSpec, Signature, Table
from cavalcade.table.invariants import check
from cavalcade.table.rows import observed

FRAME = (2, 3)
OBS = {"image": np.zeros((20, 20), np.uint8), "speed": np.zeros(3, np.float32)}  # a large leaf and a small one
DONE = {"action": np.zeros((), np.int32), "reward": np.zeros((), np.float32)}
PLAIN, STACKED = RowSpec(OBS, DONE), RowSpec(np.zeros((4, *FRAME), np.uint8), DONE, stack=4)


def frames(steps):
    """[n, ...] the newest frame of each step; 0 is blank."""
    return np.array(steps, np.uint8)[:, None, None] * np.ones(FRAME, np.uint8)


class Writer:
    """Steps of one environment, numbered from 1 on, and beside the rows a plain list of what is in them."""

    def __init__(self, rows, name=0, table=None):
        self.rows, self.name, self.table = rows, name, table
        self.slots, self.episode = [0], [0]  # by step; step 0 is blank

    def step(self, count=1, first=False):
        """Rows for `count` steps; the first of them may begin an episode."""
        for _ in range(count):
            (slot,) = self.table.take_rows(1, self.name) if self.table else self.rows.take(1, self.name)
            number, index = len(self.slots), np.array([slot], np.int32)
            begins = first or number == 1
            if self.rows.spec.stack > 1:
                obs = {"obs": frames([number])}
                self.rows.previous[slot] = 0 if begins else self.slots[-1]
            else:
                obs = observed({"image": np.full((1, 20, 20), number), "speed": np.full((1, 3), -number)})
            self.rows.seen.write(index, {**obs, "first": np.array([begins]), "#origin": np.zeros((1, 3))})
            if self.rows.spec.done:
                zero = {name: np.zeros((1, *leaf.shape), leaf.dtype) for name, leaf in self.rows.spec.done.items()}
                self.rows.done.write(index, zero)
            self.episode.append(self.episode[-1] + begins)
            self.slots.append(int(slot))
            first = False
        return self

    def act(self, *steps):
        index = np.array([self.slots[step] for step in steps], np.int32)
        self.rows.done.write(index, {"action": np.array(steps), "reward": np.array(steps) * 0.5})
        return self

    def item(self, *steps):
        return np.array([[self.slots[step] for step in steps]], np.int32)

    def release(self, *steps):
        self.rows.release(self.item(*steps)[0])

    def stack(self, step):
        """[4, ...] frames of the step's episode, blank before it began."""
        wanted = [
            step - back if self.episode[max(step - back, 0)] == self.episode[step] else 0 for back in (3, 2, 1, 0)
        ]
        return frames(wanted)


def taken(rows):
    """Of the rows, without the blank one."""
    return set(np.flatnonzero(rows.refs > 0).tolist()) - {0}


def sequences(rows, length, size=8, sampler="fifo", **more):
    return Table(Signature.sequence(rows.spec, {"n": np.zeros((), np.int64)}, length), size, sampler, rows=rows, **more)


def transitions(rows, size=8, adjacent=False, sampler="fifo", **more):
    spec = RowSpec(rows.spec.obs, stack=rows.spec.stack)
    own = {"reward": np.zeros((), np.float32)}
    return Table(Signature.transition(spec, own, adjacent), size, sampler, rows=rows, **more)


def put(table, slots, number=0):
    name, dtype = ("n", np.int64) if "n" in table.signature.own else ("reward", np.float32)
    assert table.insert(Items(slots, {name: np.full(len(slots), number, dtype)}))


# --- when a row is free -------------------------------------------------------------------------------------------


def test_a_row_is_free_when_neither_its_writer_nor_an_item_of_any_table_needs_it():
    rows = Rows(PLAIN, 20)
    one, two, three = transitions(rows), sequences(rows, 3), transitions(rows)
    writer = Writer(rows).step(4)
    a, b, c, d = writer.slots[1:]
    put(one, writer.item(1, 2))
    put(two, writer.item(1, 2, 3))
    put(three, writer.item(2, 3))
    assert rows.vacant == 16 and taken(rows) == {a, b, c, d}
    writer.release(1, 2, 3, 4)
    assert rows.vacant == 17 and taken(rows) == {a, b, c}
    check(one, two, three)
    two.delete(two.key)
    assert taken(rows) == {a, b, c}  # a by one, b by one and three, c by three
    one.delete(one.key)
    assert taken(rows) == {b, c}
    check(one, two, three)
    three.delete(three.key)
    assert taken(rows) == set() and rows.vacant == 20
    check(one, two, three)


def test_a_row_with_an_item_outlives_its_writer_and_a_row_with_a_writer_outlives_its_items():
    rows = Rows(PLAIN, 5)
    table, writer = transitions(rows, max_times_sampled=1), Writer(rows).step(3)
    put(table, writer.item(1, 2))
    writer.release(1)
    assert taken(rows) == set(writer.slots[1:])
    assert table.sample(1).items["obs"]["speed"].tolist() == [[-1.0] * 3]  # and with that the item has gone
    assert taken(rows) == set(writer.slots[2:])
    writer.release(2, 2, 3)  # once more changes nothing
    assert rows.vacant == 5
    check(table)


def test_rows_are_taken_again_only_when_they_are_free():
    rows = Rows(PLAIN, 4)
    table, writer = transitions(rows), Writer(rows).step(4)
    assert rows.take(1) is None
    put(table, writer.item(1, 2))
    writer.release(1, 2, 3)
    assert rows.take(2) is None and rows.vacant == 1, "a refused request takes nothing"
    assert rows.take(1).tolist() == [writer.slots[3]]
    table.delete(table.key)
    assert set(rows.take(2).tolist()) == {writer.slots[1], writer.slots[2]}
    check(table)


def test_what_a_dead_writer_held_is_free_but_for_what_items_hold():
    rows = Rows(PLAIN, 10)
    table, dead, alive = transitions(rows), Writer(rows, 0).step(4), Writer(rows, 1).step(2)
    put(table, dead.item(1, 2))
    assert rows.reclaim(0) == 4 and taken(rows) == {*dead.slots[1:3], *alive.slots[1:]}
    assert rows.reclaim(0) == 0 and rows.reclaim(7) == 0
    check(table)
    table.delete(table.key)
    assert taken(rows) == set(alive.slots[1:])
    assert rows.reclaim(1) == 2 and rows.vacant == 10


def test_where_rows_run_out_before_items_do_the_oldest_items_go():
    rows = Rows(PLAIN, 6)
    table = transitions(rows, size=100)
    writer = Writer(rows, table=table)
    for last in range(2, 40):
        writer.step(1 if last > 2 else 2)
        put(table, writer.item(last - 1, last), last)
        writer.release(last - 1)
        table.check()
        assert len(table) == min(last - 1, 5)
    assert table.sample(1).items["reward"] == 35.0
    assert table.limiter.inserts - table.limiter.deletes == 5


def test_writers_that_hold_all_rows_are_told_so():
    table = transitions(Rows(PLAIN, 3))
    table.take_rows(3)
    with pytest.raises(UserError, match="rows are in use"):
        table.take_rows(1)


def test_items_of_one_insert_that_push_each_other_out_leave_their_rows():
    rows = Rows(PLAIN, 30)
    table, writer = transitions(rows, size=2), Writer(rows).step(9)
    put(table, np.concatenate([writer.item(step, step + 1) for step in range(1, 9)]))
    writer.release(*range(1, 10))
    assert taken(rows) == set(writer.slots[7:])
    check(table)


# --- stacks -------------------------------------------------------------------------------------------------------


def test_a_stack_keeps_its_older_frames_and_no_older_ones():
    rows = Rows(STACKED, 20)
    table, writer = transitions(rows, adjacent=True), Writer(rows).step(8)
    put(table, writer.item(6, 7))
    writer.release(*range(1, 9))
    assert taken(rows) == set(writer.slots[3:8])  # 3 to 6, and 7
    check(table)
    table.delete(table.key)
    assert rows.vacant == 20


def test_a_row_that_is_taken_again_has_no_older_frame_of_its_last_life():
    rows = Rows(STACKED, 3)
    writer = Writer(rows).step(3)
    writer.release(1, 2, 3)
    assert sorted(rows.take(3).tolist()) == sorted(writer.slots[1:])
    assert not rows.previous.any()


@pytest.mark.parametrize("adjacent", [True, False])
def test_stacks_of_transitions_are_rebuilt(adjacent):
    rows = Rows(STACKED, 60)
    table = transitions(rows, 40, adjacent, max_times_sampled=1)
    writer = Writer(rows).step(6).step(2, first=True).step(12, first=True)
    reach = 1 if adjacent else 3
    pairs = [(step, step + reach) for step in range(1, 20 - reach)]
    pairs = [(a, b) for a, b in pairs if writer.episode[a] == writer.episode[b]]
    put(table, np.concatenate([writer.item(*pair) for pair in pairs]))
    check(table)
    for a, b in pairs:
        found = table.sample(1).items
        assert np.array_equal(found["obs"], writer.stack(a)[None])
        assert np.array_equal(found["next_obs"], writer.stack(b)[None])


def test_stacks_of_sequences_are_rebuilt_across_the_beginning_of_an_episode():
    rows = Rows(STACKED, 40)
    table, writer = sequences(rows, 5, max_times_sampled=1), Writer(rows).step(6).step(6, first=True)
    spans = [range(start, start + 5) for start in (1, 4, 8)]
    put(table, np.concatenate([writer.item(*span) for span in spans]))
    items = table.sample(3).items
    assert np.array_equal(items["obs"], np.stack([[writer.stack(step) for step in span] for span in spans]))
    assert items["first"].tolist() == [[step in (1, 7) for step in span] for span in spans]


def test_a_batch_of_stacks_is_each_item_of_its_own():
    rows = Rows(STACKED, 40)
    table, writer = transitions(rows, 20, adjacent=True, sampler="uniform"), Writer(rows).step(15)
    for step in range(1, 15):
        put(table, writer.item(step, step + 1), step)
    found = table.sample(64).items
    steps = found["reward"].astype(int).tolist()
    assert len(set(steps)) > 5
    assert np.array_equal(found["obs"], np.stack([writer.stack(step) for step in steps]))
    assert np.array_equal(found["next_obs"], np.stack([writer.stack(step + 1) for step in steps]))


# --- sequences ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [PLAIN, STACKED], ids=["plain", "stacked"])
def test_the_last_row_of_a_sequence_shows_nothing_of_what_was_done_even_when_it_was(spec):
    rows = Rows(spec, 20)
    table, writer = sequences(rows, 4), Writer(rows).step(7).act(1, 2, 3)
    put(table, writer.item(1, 2, 3, 4))
    for _ in range(2):
        items = table.sample(1).items
        assert items["action"].tolist() == [[1, 2, 3, 0]]
        assert items["reward"].tolist() == [[0.5, 1.0, 1.5, 0.0]]
        writer.act(4, 5, 6)
    put(table, writer.item(4, 5, 6, 7))
    table.delete(table.key[:1])
    assert table.sample(1).items["action"].tolist() == [[4, 5, 6, 0]], "the next item shows it"


def test_the_blank_row_fills_short_sequences():
    rows = Rows(PLAIN, 20)
    table, writer = sequences(rows, 5, max_times_sampled=1), Writer(rows).step(4).act(1, 2, 3, 4)
    put(table, np.concatenate([writer.item(1, 2, 3, 0, 0), writer.item(2, 3, 4, 0, 0), writer.item(1, 0, 0, 0, 0)]))
    check(table)
    items = table.sample(3).items
    assert items["obs"]["image"][..., 19, 19].tolist() == [[1, 2, 3, 0, 0], [2, 3, 4, 0, 0], [1, 0, 0, 0, 0]]
    assert items["obs"]["speed"][..., 2].tolist() == [[-1, -2, -3, 0, 0], [-2, -3, -4, 0, 0], [-1, 0, 0, 0, 0]]
    assert items["action"].tolist() == [[1, 2, 0, 0, 0], [2, 3, 0, 0, 0], [0] * 5], "the last row's is not theirs"
    assert items["first"].tolist() == [[True, *[False] * 4], [False] * 5, [True, *[False] * 4]]


# --- kept and restored --------------------------------------------------------------------------------------------


def test_tables_that_share_rows_are_restored_together():
    def make():
        rows = Rows(STACKED, 40)
        return rows, transitions(rows, 6, adjacent=True, sampler="uniform"), sequences(rows, 4, 4, sampler="uniform")

    rows, *tables = make()
    writer = Writer(rows).step(20, first=True)
    for start in range(1, 15):
        put(tables[0], writer.item(start, start + 1), start)
        put(tables[1], writer.act(start).item(*range(start, start + 4)), start)
        writer.release(start)
    others, *copies = make()
    for table, copy in zip(tables, copies):
        copy.restore(table.state())
    check(*copies)
    for table, copy in zip(tables, copies):
        one, other = table.sample(16).items, copy.sample(16).items
        assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
        copy.delete(copy.key)
    assert others.reclaim(0) == 6 and others.vacant == 40


# --- what a signature is ------------------------------------------------------------------------------------------


def test_a_transition_is_one_however_much_its_rows_hold():
    rows = Rows(PLAIN, 5)
    table = Table(Signature.transition(PLAIN, {}), 4, rows=rows)
    table.insert(Items(Writer(rows).step(2).item(1, 2), {}))
    items = table.sample(1).items
    assert items.keys() == {"obs", "next_obs"}
    assert items["obs"]["speed"].tolist() == [[-1.0] * 3] and items["next_obs"]["speed"].tolist() == [[-2.0] * 3]


def test_a_sequence_of_two_is_no_transition():
    rows = Rows(RowSpec(OBS), 5)
    table = Table(Signature.sequence(rows.spec, {}, 2), 4, rows=rows)
    table.insert(Items(Writer(rows).step(2).item(1, 2), {}))
    items = table.sample(1).items
    assert items.keys() == {"obs", "first"} and items["obs"]["speed"].shape == (1, 2, 3)


def test_rows_that_do_not_exist_are_refused():
    """In a process of its own, because what is not refused is written to."""
    code = """if True:
        import numpy as np
        from cavalcade.table import Items, Rows, RowSpec, Signature, Table
        rows = Rows(RowSpec(np.zeros(3)), 5)
        table = Table(Signature.sequence(rows.spec, {}, 3), 4, rows=rows)
        taken = rows.take(2).tolist()
        for slot in (-1, 6, 2**30):
            try:
                table.insert(Items(np.array([[*taken, slot]], np.int32), {}))
            except ValueError:
                continue
            raise SystemExit(f"row {slot} was accepted")
        assert len(table) == 0 and rows.refs[taken].tolist() == [1, 1]
        table.check()
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_rows_that_nobody_holds_are_refused():
    """They could be taken by a writer while the item refers to them."""
    rows = Rows(PLAIN, 5)
    table, writer = transitions(rows), Writer(rows).step(3)
    writer.release(3)
    with pytest.raises(ValueError, match="nobody holds"):
        put(table, writer.item(2, 3))
    assert len(table) == 0 and rows.vacant == 3
    check(table)


# --- any sequence of operations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_counted_right_whatever_two_writers_and_three_tables_do(stack, seed):
    spec = STACKED if stack > 1 else PLAIN
    rows, chance = Rows(spec, 60), np.random.default_rng(seed)
    tables = [
        transitions(rows, 6, adjacent=True),
        sequences(rows, 4, 3, limiter=Limiter.at_least(1)),
        sequences(rows, 3, 4, remover="uniform", overflow=2),
    ]
    writers, held = [Writer(rows, name) for name in range(2)], [[], []]
    for _ in range(400):
        which = int(chance.integers(2))
        writer, mine = writers[which], held[which]
        number = len(writer.slots)
        if rows.vacant and len(mine) < 8 and chance.random() < 0.5:
            writer.step(first=chance.random() < 0.15)
            mine.append(number)
        elif len(mine) == 8:
            writer.release(*mine[:2])
            del mine[:2]
        table = tables[chance.integers(3)]
        if len(mine) >= 7 and chance.random() < 0.5:  # its stacks reach 3 frames back, and the writer holds them
            put(table, writer.item(*mine[-table.signature.length :]))
        elif chance.random() < 0.2:
            table.delete(chance.permutation(table.key)[:2])
        elif chance.random() < 0.2:
            table.trim()
        check(*tables)
        needed = set()
        for table in tables:
            for slot in table.slots[table.key >= 0].reshape(-1).tolist():
                for _ in range(stack):
                    needed.add(slot)
                    slot = int(rows.previous[slot])
        for writer, mine in zip(writers, held):
            needed |= {writer.slots[step] for step in mine}
        assert taken(rows) == needed - {0} and rows.vacant == 60 - len(needed - {0})
    assert rows.ends[0] > 60, "rows were taken more than once"
