"""Adders against what must have happened: true successors, right discounts, no item across episodes."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest

from cavalcade import tree
from cavalcade.backends.numpy_backend import acting as xp
from cavalcade.envs import make
from cavalcade.envs.adapter import VectorAdapter
from cavalcade.errors import UserError
from cavalcade.experience import Episode, NStep, Unroll, unroll
from cavalcade.ops import returns
from cavalcade.table import Rows, Table
from tests.helpers.items import materialise, table_rows
from tests.helpers.streams import MODES, Streams, reward_of, value_of

GAMMA = 0.9


def collect(item, mode, count=6, steps=400, longest=7, endings=(0, 1, 2), seed=0):
    """All items of a stream, as one tree [M, ...]."""
    environments = VectorAdapter(Streams(count, mode, longest, endings, seed), "streams", seed)
    table = table_for(item, environments.spec, count)
    adder = item.adder(table, count)
    obs = environments.reset()
    found = []
    for _ in range(steps):
        action = np.zeros(count, np.int64)
        step = environments.step(action)
        items = adder.add(obs, action, {}, {}, step)
        if items is not None:
            found.append(materialise(table, items))
        obs = step.observation
    return tree.map(lambda *parts: np.concatenate(parts), *found), adder


def table_for(item, spec, count, carry=None, size=1):
    """A table with just the rows that the environments' steps under way can need, and those of `size` items."""
    signature = item.signature(spec, carry or {}, {})
    return Table.queue(signature, size, rows=Rows(signature.rows, table_rows(item, signature.rows, size, count)))


def expected_n_step(obs, n, horizon=None):
    """(return, discount, how many steps) from an observation [4], written as the definition."""
    episode, step, ending, length = obs
    count = int(min(n, length - step, n if horizon is None else horizon))
    total = sum(GAMMA**k * reward_of(np.array([episode, step + k + 1, 0, 0])) for k in range(count))
    terminal = step + count == length and ending != 1
    return total, 0.0 if terminal else GAMMA**count, count


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 3, 5])
def test_n_step_items_are_the_definition(mode, n):
    items, _ = collect(NStep(n, GAMMA), mode)
    assert len(items["reward"]) > 1_000
    for obs, reward, discount, after in zip(items["obs"], items["reward"], items["discount"], items["next_obs"]):
        total, factor, count = expected_n_step(obs, n)
        assert after[0] == obs[0], "crossed an episode"
        assert after[1] == obs[1] + count, "not the true successor"
        np.testing.assert_allclose([reward, discount], [total, factor], atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 4])
def test_every_step_starts_exactly_one_n_step_item(mode, n):
    items, _ = collect(NStep(n, GAMMA), mode, steps=300)
    starts = list(map(tuple, items["obs"][:, :2]))
    assert len(set(starts)) == len(starts)
    last = max(episode for episode, _ in starts) - 12  # the newest episodes are still under way
    for obs in items["obs"]:
        if obs[0] < last:
            assert {(obs[0], float(s)) for s in range(int(obs[3]))} <= set(starts)


def estimates(unroll, length):
    """Each estimator over an unroll [T + 1, ...] of one column, with what the definition says."""
    reward, discount, valid = (unroll[k][:-1, None].astype(np.float64) for k in ("reward", "discount", "valid"))
    values = value_of(unroll["obs"])[:, None].astype(np.float64)
    arguments = (xp, reward, discount, values, valid)
    yield (
        "discounted",
        returns.discounted_returns(*arguments),
        lambda t, left: definition(unroll, t, left, left),
    )
    yield "n-step", returns.n_step_returns(*arguments, 3), lambda t, left: definition(unroll, t, 3, left)
    gae = returns.gae(*arguments, 1.0) + values[:-1]
    yield "gae(1)", gae, lambda t, left: definition(unroll, t, left, left)
    one_step = returns.gae(*arguments, 0.0) + values[:-1]
    yield "gae(0)", one_step, lambda t, left: definition(unroll, t, 1, left)
    yield (
        "gae(0.7)",
        returns.gae(*arguments, 0.7) + values[:-1],
        lambda t, left: mixture(unroll, t, 0.7, left),
    )
    yield "td(0.7)", returns.td_lambda(*arguments, 0.7), lambda t, left: mixture(unroll, t, 0.7, left)
    targets, _ = returns.vtrace(*arguments, np.zeros_like(reward))
    yield "v-trace", targets, lambda t, left: definition(unroll, t, left, left)


def definition(unroll, t, n, left):
    obs = unroll["obs"][t]
    total, factor, count = expected_n_step(obs, n, left)
    successor = np.array([obs[0], obs[1] + count, 0, 0])
    return total + factor * value_of(successor)


def mixture(unroll, t, decay, left):
    """The lambda-return as the weighted sum of n-step returns."""
    obs = unroll["obs"][t]
    longest = int(min(obs[3] - obs[1], left))
    weights = [(1 - decay) * decay**k for k in range(longest - 1)] + [decay ** (longest - 1)]
    return sum(w * definition(unroll, t, n + 1, left) for n, w in enumerate(weights))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("endings", [(0,), (1,), (2,), (0, 1, 2)], ids=["terminal", "truncated", "both", "mixed"])
@pytest.mark.parametrize("longest", [1, 9], ids=["length-one", "longer"])
def test_every_return_estimator_equals_the_closed_form(mode, endings, longest):
    length = 8
    items, _ = collect(Unroll(length, GAMMA), mode, count=4, steps=160, longest=longest, endings=endings)
    checked = 0
    for column in range(len(items["reward"])):
        unroll = tree.map(lambda leaf, c=column: leaf[c], items)
        rows = np.flatnonzero(unroll["valid"])
        for name, found, expected in estimates(unroll, length):
            for t in rows:
                left = steps_left(unroll, t)
                np.testing.assert_allclose(found[t, 0], expected(t, left), atol=1e-5, err_msg=f"{name} at row {t}")
                checked += 1
    assert checked > 1_000


def steps_left(unroll, t):
    """How many transitions of the same episode the unroll holds from row t on."""
    count = 0
    while (
        t + count < len(unroll["valid"])
        and unroll["valid"][t + count]
        and unroll["obs"][t + count][0] == unroll["obs"][t][0]
    ):
        count += 1
    return count


@pytest.mark.parametrize("item", [Unroll(12, GAMMA), Unroll(6, GAMMA, 1), Unroll(8, GAMMA, 3)], ids=str)
@pytest.mark.parametrize("longest", [1, 7])
@pytest.mark.parametrize("mode", MODES)
def test_every_step_is_in_an_unroll_wherever_episodes_are_cut(mode, longest, item):
    """Episodes of one to seven steps that end in all ways; those of one step take two rows each. Without overlap every
    step is in one unroll, and with it in no less than one."""
    steps, count = 240, 5
    items, adder = collect(item, mode, count=count, steps=steps, longest=longest)
    kept = [tuple(row[:2]) for row in items["obs"][items["valid"] > 0]]
    assert item.period or len(set(kept)) == len(kept), "a step is stored twice"
    if mode != MODES[0]:  # there, steps are spent on resets
        under_way = adder.windows[0].steps if adder.windows else 0
        assert len(set(kept)) >= (steps - under_way) * count
        assert item.period or len(kept) == (steps - under_way) * count


@pytest.mark.parametrize("item", [Unroll(12, GAMMA), Unroll(5, GAMMA, 2)], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_steps_written_together_give_what_each_written_alone_gives(mode, item, monkeypatch):
    """Items and the origins of their rows, for environments some of which end in every step."""
    found = []
    for at_once in (1, 4, 32):
        monkeypatch.setattr(unroll, "AT_ONCE", at_once)
        environments = VectorAdapter(Streams(6, mode), "streams", 0)
        table = table_for(item, environments.spec, 6)
        adder, kept = item.adder(table, 6), []
        obs = environments.reset()
        for number in range(120):
            action = np.full(6, number % 2)
            step = environments.step(action)
            items = adder.add(obs, action, {}, {}, step)
            if items is not None:
                kept.append((materialise(table, items), table.rows.seen.read(items.rows, names=("#origin",))))
            obs = step.observation
        assert adder.unwritten < at_once
        found.append(kept)
    alone, *others = found
    assert len(alone) >= 10
    for together in others:
        assert len(together) == len(alone)
        for one, other in zip(alone, together):
            for mine, theirs in zip(one, other):
                tree.map(np.testing.assert_array_equal, mine, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_a_million_steps_and_nothing_crosses_an_episode(mode):
    """Per mode 200,000 steps through each adder with lengths from one up; with three modes over a million."""
    count, steps = 1_000, 200
    items, _ = collect(NStep(3, GAMMA), mode, count=count, steps=steps, longest=30)
    assert len(items["reward"]) > 150_000
    np.testing.assert_array_equal(items["obs"][:, 0], items["next_obs"][:, 0])
    moved = items["next_obs"][:, 1] - items["obs"][:, 1]
    np.testing.assert_array_equal(moved, np.minimum(3, items["obs"][:, 3] - items["obs"][:, 1]))

    items, _ = collect(Unroll(16, GAMMA), mode, count=count, steps=steps, longest=30, seed=1)
    before, after, valid = items["obs"][:, :-1], items["obs"][:, 1:], items["valid"][:, :-1] > 0
    goes_on = valid & (items["discount"][:, :-1] > 0)  # after a true end the next row is a new episode, never used
    np.testing.assert_array_equal(before[goes_on][:, 0], after[goes_on][:, 0])
    np.testing.assert_array_equal(before[goes_on][:, 1] + 1, after[goes_on][:, 1])
    assert (items["valid"][:, -1] == 0).all(), "the last row is only for bootstrapping"
    at_end = before[..., 1] + 1 == before[..., 3]
    true_end = at_end & (before[..., 2] != 1)
    np.testing.assert_array_equal((items["discount"][:, :-1] == 0)[valid], true_end[valid])


@pytest.mark.parametrize("item", [NStep(3, GAMMA), Unroll(8, GAMMA), Unroll(8, GAMMA, 4), Episode(20, GAMMA)], ids=str)
def test_a_restored_adder_goes_on_exactly(item):
    environments = VectorAdapter(Streams(4, MODES[1]), "streams", 0)
    tables = [table_for(item, environments.spec, 4) for _ in range(2)]
    one, two = (item.adder(table, 4) for table in tables)
    obs = environments.reset()
    for t in range(60):
        if t == 29:
            two.restore(one.state())
            tables[1].restore(tables[0].state())
        action = np.full(4, t % 2)
        step = environments.step(action)
        left = one.add(obs, action, {}, {}, step)
        if t >= 29:
            right = two.add(obs, action, {}, {}, step)
            assert (left is None) == (right is None)
            if left is not None:
                found = [materialise(table, items) for table, items in zip(tables, (left, right))]
                tree.map(np.testing.assert_array_equal, *found)
        obs = step.observation


def test_the_first_flag_marks_episode_starts_and_carry_is_the_one_before_the_unroll():
    environments = VectorAdapter(Streams(3, MODES[1], 5), "streams", 0)
    table = table_for(Unroll(6, GAMMA), environments.spec, 3, {"hidden": np.zeros(2, np.float32)})
    adder = Unroll(6, GAMMA).adder(table, 3)
    obs = environments.reset()
    begun, lengths = 0, set()
    for t in range(40):
        carry = {"hidden": np.full((3, 2), t, np.float32)}
        step = environments.step(np.zeros(3, np.int64))
        items = adder.add(obs, np.zeros(3, np.int64), {}, carry, step)
        if items is not None:
            items = materialise(table, items)
            assert (items["carry"]["hidden"] == begun).all()
            lengths.add(t + 1 - begun)
            begun = t + 1
            rows = items["valid"] > 0
            np.testing.assert_array_equal(items["first"][rows], items["obs"][rows][:, 1] == 0)
        obs = step.observation
    assert max(lengths) <= 6 and len(lengths) > 1, "those in which an episode was cut short end earlier"


@pytest.mark.parametrize("mode", MODES)
def test_overlapping_unrolls_share_their_rows(mode):
    """Unrolls of 8 begun every 4 steps hold every step twice, and every observation lies in the table once."""
    length, period, count = 8, 4, 3
    environments = VectorAdapter(Streams(count, mode, 50, (0,), 0), "streams", 0)
    item = Unroll(length, GAMMA, period)
    table = table_for(item, environments.spec, count, size=200)
    adder = item.adder(table, count)
    obs, found, seen = environments.reset(), [], 0
    for _ in range(80):
        step = environments.step(np.zeros(count, np.int64))
        items = adder.add(obs, np.zeros(count, np.int64), {}, {}, step)
        seen += int(np.count_nonzero(step.valid)) + int(np.count_nonzero(step.first))
        if items is not None:
            assert table.insert(items)
            found.append(materialise(table, items))
        obs = step.observation
    unrolls = tree.map(lambda *parts: np.concatenate(parts), *found)
    kept = [tuple(row[:2]) for row in unrolls["obs"][unrolls["valid"] > 0]]
    assert max(kept.count(row) for row in set(kept)) == length // period
    assert table.rows.count - 1 - table.rows.vacant <= seen + count
    table.check()


@pytest.mark.parametrize("mode", MODES)
def test_episodes_are_whole_and_long_ones_come_in_pieces(mode):
    length, count = 6, 4
    items, _ = collect(Episode(length, GAMMA), mode, count=count, steps=300, longest=10)
    pieces = 0
    for rows, valid, discount in zip(items["obs"], items["valid"], items["discount"]):
        steps = int(valid.sum())
        assert valid[:steps].all() and not valid[steps:].any() and steps <= length
        assert (rows[: steps + 1, 0] == rows[0, 0]).all(), "an item holds one episode"
        np.testing.assert_array_equal(rows[: steps + 1, 1], rows[0, 1] + np.arange(steps + 1))
        assert not rows[steps + 1 :].any(), "the rest is blank"
        ended = rows[steps, 1] == rows[0, 3]
        assert ended or steps == length
        assert (discount[steps - 1] == 0) == (ended and rows[0, 2] != 1), "zero at a true end only"
        pieces += rows[0, 1] > 0
    assert pieces > 20 and len(items["obs"]) > 100


def test_frames_of_stacks_are_stored_once_and_rebuilt(tmp_path):
    """Against the observations themselves, across episode ends, for both kinds of item."""

    def stacked():
        return gym.wrappers.FrameStackObservation(gym.make("CartPole-v1", max_episode_steps=9), 4)

    for item in (NStep(1, GAMMA), NStep(3, GAMMA), Unroll(5, GAMMA), Episode(20, GAMMA)):
        environments = make(stacked, 3, seed=1)
        assert environments.spec.frames == 4
        table = table_for(item, environments.spec, 3, size=100)
        adder = item.adder(table, 3)
        obs, seen = environments.reset(), set()
        for _ in range(60):
            action = np.random.default_rng(0).integers(0, 2, 3)
            step = environments.step(action)
            seen |= {stack.tobytes() for stack in (*obs, *step.next_observation)}
            items = adder.add(obs, action, {}, {}, step)
            if items is not None:
                found = materialise(table, items)
                stacks = found["obs"][found["valid"] > 0] if "valid" in found else found["obs"]
                for stack in (*stacks, *found.get("next_obs", ())):
                    assert stack.tobytes() in seen
                assert table.insert(items) or (table.sample(len(table)) and table.insert(items))
            obs = step.observation
        assert table.rows.seen.shapes["obs"][0] == (4,), "a row holds one frame"
        table.check()
        environments.close()


def test_observations_that_are_no_stacks_are_not_taken_for_some():
    environments = VectorAdapter(Streams(2, MODES[1]), "streams", 0)
    spec = dataclasses.replace(environments.spec, frames=4)
    table = table_for(NStep(1, GAMMA), spec, 2)
    adder = NStep(1, GAMMA).adder(table, 2)
    obs = environments.reset()
    with pytest.raises(UserError, match="stacks of 4 frames"):
        for _ in range(5):
            step = environments.step(np.zeros(2, np.int64))
            adder.add(obs, np.zeros(2, np.int64), {}, {}, step)
            obs = step.observation
