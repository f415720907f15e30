"""Updates made with others: equal to those of one learner where they should be, and what is dropped is counted."""

import itertools
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest

from cavalcade import backends, tree
from cavalcade.errors import Stopped, UserError
from cavalcade.experiment.experiment import Experiment, Settings
from cavalcade.learning.groups import REST, Range, Rule
from cavalcade.learning.updates import Alone
from cavalcade.learning.updates.allreduce import ByAllReduce, Meeting, Reduced
from cavalcade.learning.updates.descent import Descent, fresh, slices
from cavalcade.learning.updates.gloo import FEWEST, GlooAttendees, most_ahead
from cavalcade.learning.updates.hogwild import LockFree, SharedParams, Unlocked
from cavalcade.learning.updates.parameter_server import SNAPSHOT_EVERY, ByServers, Outliers, Pushed, Server
from cavalcade.optimiser import Optimiser
from tests.helpers.items import blank
from tests.helpers.leftovers import nothing_is_left  # noqa: F401
from tests.helpers.messages import by_message

SPAWN = multiprocessing.get_context("spawn")
DQN = {"hidden": (16,), "batch": 16, "updates_per_draw": 2, "replay_start": 32, "target_period": 7}
ON_POLICY = {"hidden": (16,), "unroll": 6, "normalise_observations": True}
PPO = {**ON_POLICY, "epochs": 3, "minibatches_per_epoch": 2}
CASES = {
    "dqn": ("dqn", DQN, 2),  # updates of a draw
    "prioritised dqn": ("dqn", {**DQN, "priority_exponent": 0.6}, 2),
    "a2c": ("a2c", ON_POLICY, 1),
    "ppo": ("ppo", PPO, 6),
    "ppo penalty": ("ppo", {**PPO, "surrogate": "penalty", "kl_rule": "heess"}, 6),
}
ENOUGH = 60  # updates: beyond those after which torch records, and not yet judged


def parts_of(case, backend="numpy", envs=4, **overrides):
    system, settings, _ = CASES[case]
    run = Settings(steps=10_000, seed=3, backend=backend, envs=envs)
    return Experiment.create(system, "CartPole-v1", run, {**settings, **overrides}).parts


def drawn(parts, seed):
    """Items with every field filled: some ends of episodes; the last row of an unroll is there for its value only."""
    rng, size = np.random.default_rng(seed), parts.experience.batch
    zeros = blank(parts.signature)
    items = tree.map(lambda leaf: rng.standard_normal((size, *leaf.shape)).astype(leaf.dtype), zeros)
    items["action"] = rng.integers(0, 2, items["action"].shape)
    items["discount"] = np.where(rng.random(items["discount"].shape) < 0.1, 0.0, 0.99).astype(np.float32)
    if "valid" in items:
        items["behaviour"] *= 0.3  # not too far from the policy that learns
        items["valid"] = np.ones_like(items["valid"])
        items["valid"][:, -1] = 0.0
        items["first"] = rng.random(items["first"].shape) < 0.15
    if parts.experience.store.correction is not None:
        items["weight"] = rng.uniform(0.5, 1.0, size).astype(np.float32)
    return items


def finish(work, *nodes):
    """Turns of an update and of the nodes that have a part in it; the metrics."""
    for _ in range(10_000):
        try:
            next(work)
        except StopIteration as done:
            return done.value
        for node in nodes:
            node.step()
    raise AssertionError("it does not end")


def finish_together(works, *nodes):
    works = list(works)
    for _ in range(10_000):
        works = [work for work in works if next(work, "ended") != "ended"]
        if not works:
            return
        for node in nodes:
            node.step()
    raise AssertionError("it does not end")


def assert_same(one, other):
    """Parameters, target network, normalisers and count, bit for bit; the optimiser may be a server's."""
    names = set(one.arrays) - {"optimiser"}
    one, other = one.state()["state"], other.state()["state"]
    for name in names:
        for a, b in zip(tree.leaves(one[name]), tree.leaves(other[name]), strict=True):
            assert np.array_equal(a, b), name


def params(learner):
    return learner.params()[0]


def started(target, *args):
    process = SPAWN.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def joined(*processes):
    for process in processes:
        process.join(90)
    found = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return found


# --- parameter server ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize("case", CASES)
def test_servers_with_one_learner_make_the_updates_it_would_make_alone(case, backend, shards):
    parts = parts_of(case, backend)
    alone, learner = parts.learner(), parts.learner()
    servers = [Server(parts.learner, index, shards) for index in range(shards)]
    updates = ByServers("learner")(learner, servers)
    for seed in range(-(-ENOUGH // CASES[case][2])):
        items = drawn(parts, seed)
        metrics = alone.update(items)
        found = finish(updates.update(items), *servers)
        assert_same(learner, alone)
        assert found == pytest.approx(metrics, rel=1e-4, abs=1e-5)
        if alone.priorities is not None:
            np.testing.assert_allclose(learner.priorities, alone.priorities, atol=1e-6)
    assert learner.updates >= ENOUGH and [server.version for server in servers] == [learner.updates] * shards
    assert not np.array_equal(params(learner), params(parts.learner()))
    if "target" in learner.arrays:
        assert not np.array_equal(learner.state()["state"]["target"], params(parts.learner()))
    assert updates.counted() == {"dropped_outlying": 0.0}


@pytest.mark.parametrize("backend", ["torch", "jax", "numpy"])
@pytest.mark.parametrize("name", ["adagrad", "centred-rmsprop"])
def test_a_slice_and_shared_arrays_descend_as_a_learner_does(name, backend):
    """As servers and hogwild use it, with the arrays left where they are."""
    library, settings = backends.load(backend), Optimiser(name, 0.1, 0.01, 0.9)
    start = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    gradients = np.random.default_rng(1).standard_normal((5, 100)).astype(np.float32)
    optimiser, vector = library.optimiser(settings), library.vector(start)
    state = optimiser.init(vector)
    rules = [Rule(library, settings, [Range(REST, 0, 100)]).of_slice(part) for part in slices(100, 2)]
    arrays = [fresh(library, rule, start[part]) for rule, part in zip(rules, slices(100, 2))]
    descents = [Descent(library, rule, part) for rule, part in zip(rules, arrays)]
    for gradient in gradients:
        vector, state = optimiser.update(library.vector(gradient), state, vector)
        for descent, part in zip(descents, slices(100, 2)):
            descent.apply(gradient[part])
    found = np.concatenate([part["params"] for part in arrays])
    np.testing.assert_allclose(found, library.to_numpy(vector), rtol=1e-6, atol=1e-6)
    assert np.abs(found - start).max() > 0.1


def test_a_server_computes_with_jax_too():
    parts = parts_of("dqn", "jax")
    alone, learner = parts.learner(), parts.learner()
    servers = [Server(parts.learner, index, 2) for index in range(2)]
    updates = Pushed(learner, "learner", servers)
    for seed in range(5):
        alone.update(drawn(parts, seed))
        finish(updates.update(drawn(parts, seed)), *servers)
    np.testing.assert_allclose(params(learner), params(alone), atol=1e-5)
    assert learner.updates == alone.updates == 10


def test_slices_cover_the_vector_once():
    for size, count in [(1000, 1), (1000, 3), (64, 2), (65, 2), (5, 4), (6400, 7)]:
        covered = np.concatenate([np.arange(size)[part] for part in slices(size, count)])
        assert covered.tolist() == list(range(size)) and len(slices(size, count)) == count
    assert slices(1000, 2) == [slice(0, 512), slice(512, 1000)]


def ask(server, client, gradient, version, push=True):
    client.send({"gradient": gradient, "version": version, "push": push})
    while (reply := client.take()) is None:
        assert server.step()
    return np.copy(reply["params"]), int(reply["version"])


def test_stale_gradients_are_dropped_and_counted():
    server = Server(parts_of("dqn").learner, max_staleness=3)
    client = server.desk("learner")
    start, version = ask(server, client, 0.0, 0, push=False)
    gradient = np.ones_like(start)
    for expected in range(1, 6):
        moved, version = ask(server, client, gradient, version)
        assert version == expected
    kept, same = ask(server, client, gradient, 1)  # made with parameters of four updates ago
    assert same == 5 and np.array_equal(kept, moved)
    assert not np.array_equal(ask(server, client, gradient, 2)[0], moved), "three are not too many"
    assert server.report()["counted"] == {"dropped_stale": 1.0, "rollbacks": 0.0}
    assert server.report()["counted"] == {"dropped_stale": 0.0, "rollbacks": 0.0}


@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.filterwarnings("ignore:overflow")
def test_a_server_whose_numbers_overflow_goes_back_to_its_snapshot(backend):
    server = Server(parts_of("dqn", backend, anneal=False).learner)
    client, version = server.desk("learner"), 0
    for number in range(SNAPSHOT_EVERY + 5):
        moved, version = ask(server, client, np.full_like(server.arrays["params"], 0.1), version)
        if number == SNAPSHOT_EVERY - 1:
            good = moved
    assert not np.array_equal(moved, good)
    poisoned = np.full_like(good, np.nan)
    for wild in (poisoned, np.full_like(good, 1e30)):  # the second only overflows the mean square
        found, version = ask(server, client, wild, version)
        assert np.array_equal(found, good) and server.descent.finite()
    assert server.report()["counted"]["rollbacks"] == 2.0 and version == SNAPSHOT_EVERY + 7
    assert not np.array_equal(ask(server, client, np.ones_like(good), version)[0], good), "it learns on"


def test_a_gradient_that_is_no_number_is_not_sent():
    parts = parts_of("dqn")
    server, learner = Server(parts.learner), parts.learner()
    updates = Pushed(learner, "learner", [server])
    items = drawn(parts, 0)
    items["reward"][3] = np.nan  # of the first of two minibatches
    finish(updates.update(items), server)
    assert server.version == 1 and np.isfinite(params(learner)).all()
    assert updates.counted() == {"dropped_outlying": 1.0} and updates.counted() == {"dropped_outlying": 0.0}
    assert server.report()["counted"]["rollbacks"] == 0.0


def test_outlying_losses_are_dropped_and_noise_is_not():
    rng = np.random.default_rng(0)
    normal, longer_tail = (rng.normal(mean, 1.0, 20_000) for mean in (0.0, 5.0)), rng.exponential(1.0, 20_000)
    for losses, share in [*((each, 0.02) for each in normal), (longer_tail, 0.04)]:
        judge = Outliers(3.0)
        dropped = [judge.outlying(loss, 1.0) for loss in losses]
        assert 0 < sum(dropped) == judge.dropped < share * 20_000
    judge = Outliers(3.0)
    for loss in rng.normal(5.0, 1.0, 1_000):
        judge.outlying(loss, 1.0)
    before = judge.dropped
    for wild in (30.0, -30.0, np.inf, np.nan):
        assert judge.outlying(wild, 1.0)
        assert not judge.outlying(5.0, 1.0)
    assert judge.outlying(5.0, np.inf) and judge.outlying(5.0, np.nan), "a loss whose gradient overflows"
    assert judge.dropped - before == 6


def test_nothing_is_judged_before_enough_was_seen():
    judge = Outliers(3.0)
    assert not any(judge.outlying(loss, 1.0) for loss in [1.0] * 50 + [100.0] + [1.0] * 49)
    assert judge.outlying(100.0, 1.0)


def test_losses_that_stay_high_become_the_rule():
    """From a constant loss there is no deviation at all: without this nothing would ever be learned again."""
    judge = Outliers(3.0)
    assert not any(judge.outlying(0.0, 1.0) for _ in range(200))
    assert [judge.outlying(1.0, 1.0) for _ in range(40)] == [True] * 20 + [False] * 20


def test_a_learner_that_comes_late_begins_with_the_servers_parameters():
    parts = parts_of("dqn")
    server, first, late = Server(parts.learner), parts.learner(), parts.learner()
    updates = [Pushed(first, "learner/0", [server]), Pushed(late, "learner/1", [server])]
    for seed in range(5):
        finish(updates[0].update(drawn(parts, seed)), server)
    kept = server.state()
    finish(updates[1].update(drawn(parts, 5)), server)
    assert late.updates == server.version == 12
    assert np.array_equal(params(late), server.arrays["params"])
    other = Server(parts.learner)
    other.restore(kept)
    twin = parts.learner()
    finish(Pushed(twin, "learner/2", [other]).update(drawn(parts, 5)), other)
    assert_same(twin, late)


def push_from_afar(address, make, draws, path):
    learner = make()
    updates = Pushed(learner, "learner", [address.connect()])
    for items in draws:
        work = updates.update(items)
        while next(work, "ended") != "ended":
            pass
    np.save(path, params(learner))


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_a_server_in_another_process_gives_the_same_bits(backend, tmp_path):
    parts = parts_of("ppo", backend)
    draws = [drawn(parts, seed) for seed in range(5)]
    server, alone = Server(parts.learner), parts.learner()
    for items in draws:
        alone.update(items)
    process = started(push_from_afar, server.share("learner").address, parts.learner, draws, tmp_path / "found.npy")
    end = time.monotonic() + 90
    while process.is_alive() and time.monotonic() < end:
        if not server.step():
            server.exchange.bell.rest(server.exchange.bell.rung(), 0.001)
    assert joined(process) == [0]
    assert np.array_equal(np.load(tmp_path / "found.npy"), params(alone)) and server.version == 30
    server.close()


def test_messages_do_where_no_memory_is_shared():
    parts = parts_of("ppo")
    alone, learner, server = parts.learner(), parts.learner(), Server(parts.learner)
    updates = Pushed(learner, "learner", [by_message(server.serve("learner"))])
    meeting = Meeting(parts.learner, 2, drop=1)
    pair = [parts.learner(), parts.learner()]
    reduced = [
        ByAllReduce(f"learner/{n}")(one, [by_message(meeting.serve(f"learner/{n}"))]) for n, one in enumerate(pair)
    ]
    for seed in range(3):
        alone.update(drawn(parts, seed))
        finish(updates.update(drawn(parts, seed)), server)
        finish_together([each.update(drawn(parts, (seed, n))) for n, each in enumerate(reduced)], meeting)
    assert_same(learner, alone)
    assert pair[0].updates > 0
    meeting.close()


# --- all-reduce ---------------------------------------------------------------------------------------------------


def replicas(parts, count, drop=0, summed=False):
    meeting = Meeting(parts.learner, count, drop)
    learners = [parts.learner() for _ in range(count)]
    return meeting, learners, [Reduced(one, f"learner/{n}", meeting, summed) for n, one in enumerate(learners)]


@pytest.mark.parametrize("backend, count", [("torch", 2), ("torch", 4), ("numpy", 2), ("numpy", 4), ("jax", 2)])
@pytest.mark.parametrize("case", ["dqn", "a2c", "impala"])
def test_parts_of_a_batch_give_the_gradient_of_all_of_it(case, backend, count):
    """With a rate of one, no clipping and no normalisers the parameters move by the gradient itself."""
    plain = {"optimiser_name": "sgd", "learning_rate": 1.0, "anneal": False, "max_gradient_norm": 0.0}
    if case == "dqn":
        plain |= {"batch": 32, "updates_per_draw": 1}
    else:
        plain |= {"unroll": 6, "hidden": (16,), "normalise_observations": False, "normalise_rewards": False}
    if case == "impala":
        plain |= {"batch": 8, "summed": True}
        run = Settings(steps=10_000, seed=3, backend=backend, envs=8)
        parts = Experiment.create("impala", "CartPole-v1", run, plain).parts
    else:
        parts = parts_of(case, backend, envs=8, **plain)
    items = drawn(parts, 0)
    rows = np.array_split(np.arange(len(items["action"])), count)
    alone = parts.learner()
    start = params(alone)
    alone.update(items)
    meeting, learners, updates = replicas(parts, count, summed=case == "impala")
    finish_together([one.update(tree.take(items, part)) for one, part in zip(updates, rows)], meeting)
    gradient = params(alone) - start
    assert np.abs(gradient).max() > 1e-2
    for learner in learners:
        np.testing.assert_allclose(params(learner) - start, gradient, atol=1e-6 * max(1.0, np.abs(gradient).max()))
        assert_same(learner, learners[0])


@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize("case", ["dqn", "a2c", "ppo penalty"])
def test_learners_that_update_together_stay_equal(case, backend):
    parts = parts_of(case, backend)
    meeting, learners, updates = replicas(parts, 3)
    draws = -(-ENOUGH // CASES[case][2])
    for seed in range(draws):
        finish_together([one.update(drawn(parts, (seed, n))) for n, one in enumerate(updates)], meeting)
        for learner in learners[1:]:
            assert_same(learner, learners[0])
    assert learners[0].updates == meeting.round == draws * CASES[case][2]
    assert [one.counted() for one in updates] == [{"dropped_late": 0.0}] * 3


def test_learners_that_begin_apart_agree_on_who_has_come_furthest():
    parts = parts_of("ppo", "torch")
    meeting, learners, updates = replicas(parts, 2)
    for seed in range(3):
        learners[1].update(drawn(parts, seed))
    finish_together([one.update(drawn(parts, (9, n))) for n, one in enumerate(updates)], meeting)
    assert learners[0].updates == 24
    kept = [learner.state()["state"] for learner in learners]
    assert all(np.array_equal(*pair) for pair in zip(*map(tree.leaves, kept))), "optimiser and all"


def turns(updates, parts, naps):
    """Draw and update without end, one `next` a turn; before each update so many turns pass."""
    for seed in itertools.count():
        for _ in range(naps):
            yield
        yield from updates.update(drawn(parts, (seed, naps)))


def test_who_is_late_is_left_out_and_catches_up():
    parts = parts_of("dqn")
    meeting, learners, updates = replicas(parts, 3, drop=1)
    running = [turns(one, parts, naps) for one, naps in zip(updates, (0, 1, 20))]
    while meeting.round < 60:
        for one in running:
            next(one)
            meeting.step()
        ahead = [meeting.round - learner.updates for learner in learners]
        assert min(ahead) >= 0 and max(ahead) <= FEWEST
        gone = {learner.updates: learner for learner in learners}
        for learner in learners:
            assert_same(learner, gone[learner.updates])
    for one, learner in zip(running, learners):
        while learner.updates < 60:
            next(one)
            meeting.step()
    for learner in learners:
        assert learner.updates == 60
        assert_same(learner, learners[0])
    late = updates[2].counted()["dropped_late"]
    assert late == 5.0 and updates[0].counted() == {"dropped_late": 0.0}


def test_who_has_missed_as_much_as_a_draw_draws_anew():
    """A draw has two updates; of the slow one's the first comes five rounds late, and no second is made."""
    parts = parts_of("dqn")
    meeting, learners, updates = replicas(parts, 3, drop=1)
    draws = []

    def slowly():
        for seed in range(3):
            while meeting.round < learners[2].updates + 5:
                yield
            draws.append((yield from updates[2].update(drawn(parts, seed))))

    updates[0].agreed = updates[1].agreed = updates[2].agreed = True  # they begin alike
    running, slow = [turns(one, parts, 3) for one in updates[:2]], slowly()
    for _ in range(400):
        for one in (*running, slow):
            next(one, None)
            meeting.step()
    assert len(draws) == 3 and updates[2].counted() == {"dropped_late": 3.0}
    assert learners[2].updates >= 15, "with what it missed"


def test_how_far_ahead_one_may_get_depends_on_what_is_kept():
    assert [most_ahead(size) for size in (9_000, 1_000_000, 10_000_000)] == [512, 16, 8]


def test_nobody_runs_away_from_a_learner_that_hangs():
    parts = parts_of("dqn")
    meeting, learners, updates = replicas(parts, 3, drop=1)
    running = [turns(one, parts, 0) for one in updates]
    for turn in range(400):
        for one in running if turn < 8 else running[:2]:
            next(one)
            meeting.step()
    ahead = learners[0].updates - learners[2].updates
    assert ahead == FEWEST == 8
    for _ in range(400):
        for one in running:
            next(one)
            meeting.step()
    assert learners[2].updates > learners[0].updates - FEWEST > 20


def test_at_least_one_gradient_has_to_be_left():
    with pytest.raises(UserError, match="at least one"):
        Meeting(parts_of("dqn").learner, 2, drop=2)


def test_an_update_with_others_that_diverges_is_told():
    parts = parts_of("a2c")
    meeting, _, updates = replicas(parts, 2)
    items = drawn(parts, 0)
    items["reward"][:] = np.nan
    with pytest.raises(UserError, match="learning-rate"):
        finish_together([one.update(items) for one in updates], meeting)


# --- all-reduce between processes ---------------------------------------------------------------------------------


def contribution(rank, number, size):
    return np.random.default_rng((rank, number)).standard_normal(size).astype(np.float32)


def soon(work):
    while True:
        try:
            next(work)
            time.sleep(0.0005)
        except StopIteration as done:
            return done.value


def sit(address, rounds, nap, folder):
    """Take part in so many rounds, each time after a nap; write what came out."""
    attendee, rank, taken = address.connect(), address.rank, []
    agreed = soon(attendee.agree(100 + rank, np.full(10, float(rank), np.float32)))
    try:
        while len(taken) < rounds:
            time.sleep(nap)
            attendee.post(contribution(rank, len(taken), address.size))
            more = True
            while more:
                while (got := attendee.take()) is None:
                    time.sleep(0.0005)
                mean, more = got
                taken.append(mean)
            (folder / f"begun-{rank}").touch()
    except Stopped:
        os._exit(7)
    np.savez(folder / f"{rank}.tmp.npz", agreed=agreed, means=taken[:rounds], late=attendee.late)
    os.rename(folder / f"{rank}.tmp.npz", folder / f"{rank}.npz")
    while len(list(folder.glob("?.npz"))) < address.learners:  # whoever leaves first takes the group with him
        time.sleep(0.01)


def sat(tmp_path, naps, drop, rounds=40, size=1000):
    """What each of several processes found."""
    attendees = GlooAttendees(size, len(naps), drop)
    processes = [started(sit, attendees.share("learner").address, rounds, nap, tmp_path) for nap in naps]
    assert joined(*processes) == [0] * len(naps)
    attendees.close()
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(len(naps))]
    for one in found:
        assert one["agreed"].tolist() == [len(naps) - 1.0] * 10, "of whoever has come furthest"
        assert np.array_equal(one["means"], found[0]["means"]), "all have the same bits"
    return found


@pytest.mark.parametrize("count", [2, 3])
def test_processes_take_the_mean_of_their_gradients(count, tmp_path):
    found = sat(tmp_path, [0.0] * count, drop=0)
    for number, mean in enumerate(found[0]["means"]):
        expected = np.mean([contribution(rank, number, 1000) for rank in range(count)], axis=0)
        np.testing.assert_allclose(mean, expected, atol=1e-6)
    assert [int(one["late"]) for one in found] == [0] * count


def test_a_process_that_sleeps_is_left_out(tmp_path):
    found = sat(tmp_path, [0.0, 0.0, 0.1], drop=1)
    sizes = []
    for number, mean in enumerate(found[0]["means"]):
        vectors = [contribution(rank, number, 1000) for rank in range(3)]
        subsets = [list(members) for n in (2, 3) for members in itertools.combinations(range(3), n)]
        fits = [m for m in subsets if np.allclose(np.mean([vectors[i] for i in m], axis=0), mean, atol=1e-6)]
        assert len(fits) == 1, "the mean of at least two gradients, all made for this round"
        sizes.append(fits[0])
    assert sizes.count([0, 1]) > 20, "most rounds did not wait for the one that sleeps"
    assert int(found[2]["late"]) >= 3


@pytest.mark.parametrize("drop", [0, 1])
def test_learners_are_told_when_one_of_them_is_killed(drop, tmp_path):
    attendees = GlooAttendees(100, 3, drop)
    processes = [started(sit, attendees.share("learner").address, 10**9, 0.001, tmp_path) for _ in range(3)]
    while len(list(tmp_path.glob("begun-*"))) < 3:
        assert all(process.is_alive() for process in processes)
        time.sleep(0.01)
    os.kill(processes[1].pid, signal.SIGKILL)
    assert joined(*processes) == [7, -signal.SIGKILL, 7]
    attendees.close()


def test_no_more_processes_than_learners():
    attendees = GlooAttendees(10, 1, 0)
    attendees.share("learner/0")
    with pytest.raises(UserError, match="one learner more"):
        attendees.share("learner/1")


def reduce_from_afar(address, make, draws, path):
    learner = make()
    updates = ByAllReduce("learner")(learner, [address.connect()])
    for items in draws:
        soon(updates.update(items))
    np.save(path, params(learner))
    while len(list(path.parent.glob("?.npy"))) < 2:
        time.sleep(0.01)


def test_learners_in_processes_make_the_updates_that_they_make_in_one(tmp_path):
    parts = parts_of("ppo")
    draws = [[drawn(parts, (seed, n)) for seed in range(4)] for n in range(2)]
    meeting, learners, updates = replicas(parts, 2)
    for pair in zip(*draws):
        finish_together([one.update(items) for one, items in zip(updates, pair)], meeting)
    elsewhere = Meeting(parts.learner, 2)
    addresses = [elsewhere.share(f"learner/{n}").address for n in range(2)]
    paths = [tmp_path / f"{n}.npy" for n in range(2)]
    each = zip(addresses, draws, paths)
    assert joined(*[started(reduce_from_afar, a, parts.learner, d, p) for a, d, p in each]) == [0, 0]
    elsewhere.close()
    for path in paths:
        assert np.array_equal(np.load(path), params(learners[0]))


# --- lock-free ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize("case", CASES)
def test_lock_free_with_one_learner_is_that_learner_alone(case, backend):
    parts = parts_of(case, backend)
    alone, learner, shared = parts.learner(), parts.learner(), SharedParams(parts.learner)
    updates = Unlocked()(learner, [shared])
    for seed in range(-(-ENOUGH // CASES[case][2])):
        alone.update(drawn(parts, seed))
        finish(updates.update(drawn(parts, seed)))
        assert_same(learner, alone)
    assert int(shared.arrays["version"][0]) == alone.updates >= ENOUGH
    shared.close()


def test_lock_free_keeps_what_is_no_number_out():
    parts = parts_of("a2c")
    shared = SharedParams(parts.learner)
    items = drawn(parts, 0)
    items["reward"][:] = np.nan
    with pytest.raises(UserError, match="learning-rate"):
        finish(LockFree(parts.learner(), shared).update(items))
    assert np.array_equal(shared.arrays["params"], params(parts.learner()))
    shared.close()


def test_shared_parameters_are_kept_and_put_back():
    parts = parts_of("dqn")
    shared, other = SharedParams(parts.learner), SharedParams(parts.learner)
    finish(LockFree(parts.learner(), shared).update(drawn(parts, 0)))
    other.restore(shared.state())
    assert np.array_equal(other.arrays["params"], shared.arrays["params"]) and other.arrays["version"][0] == 2
    shared.close()
    other.close()


def change_together(address, make, draws, begin, path):
    learner = make()
    updates = LockFree(learner, address.connect())
    start, jumps, before = params(learner), 0, 0
    begin.wait(60)
    for number in range(400):  # of two updates each
        for _ in updates.update(draws[number % len(draws)]):
            pass
        jumps += learner.updates - before > 2
        before = learner.updates
    np.savez(path, updates=learner.updates, jumps=jumps, params=params(learner), start=start)


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_two_processes_change_the_same_parameters_without_a_lock(backend, tmp_path):
    parts = parts_of("dqn", backend)
    shared, begin = SharedParams(parts.learner), SPAWN.Barrier(2)
    draws = [[drawn(parts, (seed, n)) for seed in range(8)] for n in range(2)]
    paths = [tmp_path / f"{n}.npz" for n in range(2)]
    address = shared.share("learner/0").address
    processes = [started(change_together, address, parts.learner, d, begin, p) for d, p in zip(draws, paths)]
    assert joined(*processes) == [0, 0]
    version, last = int(shared.arrays["version"][0]), shared.arrays["params"]
    assert 800 < version <= 1_600 and np.isfinite(last).all()
    found = [np.load(path) for path in paths]
    for one in found:
        assert one["jumps"] > 10, "it saw the other's updates between its own"
        assert np.abs(one["params"] - one["start"]).max() > 1e-2
    assert any(np.array_equal(one["params"], last) for one in found), "whoever was last has all"
    shared.close()


def test_alone_is_the_learner_itself():
    parts = parts_of("ppo")
    alone, learner = parts.learner(), parts.learner()
    updates = Alone()(learner, [])
    assert finish(updates.update(drawn(parts, 0))) == alone.update(drawn(parts, 0)) and updates.counted() == {}
    assert_same(learner, alone)
