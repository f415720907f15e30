"""The queueing model behind benchmarks/scale.py, against closed forms. Nothing is measured here."""

import importlib.util
import math
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

_PATH = Path(__file__).parent.parent / "benchmarks" / "scale.py"
_SPEC = importlib.util.spec_from_file_location("scale", _PATH)
scale = importlib.util.module_from_spec(_SPEC)
sys.modules["scale"] = scale  # dataclasses look there
_SPEC.loader.exec_module(scale)

WORK = scale.Work(
    "test", frames=1000, making=0.020, table=20e-6, updates=1.0, learning=6e-3, bytes=20_000, params=40_000
)
ONE = scale.Place(1, 64, 5e9)
CLUSTER = scale.Place(64, 64, 5e9, link=1.25e9, call=1e-3, call_of_many=3e-4)


def repairmen(n, demand, think):
    """One server and n customers who think: the machine repairman's closed form (M/M/1//N)."""
    ratio = demand / think
    idle = 1.0 / sum(math.factorial(n) / math.factorial(n - k) * ratio**k for k in range(n + 1))
    return (1.0 - idle) / demand


def test_one_station_and_no_thinking_is_always_busy():
    throughput, present = scale.mean_values([0.25], 3)
    assert throughput.tolist() == [0.0, 4.0, 4.0, 4.0]
    assert present[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("customers", [1, 2, 7, 100])
def test_equal_stations(customers):
    throughput, present = scale.mean_values([0.1, 0.1, 0.1], customers)
    assert throughput[-1] == pytest.approx(customers / (0.1 * (customers + 2)))
    assert present[-1].tolist() == pytest.approx([customers / 3] * 3)


@pytest.mark.parametrize("customers", [1, 2, 5, 20])
def test_the_machine_repairman(customers):
    throughput, _ = scale.mean_values([0.2], customers, think=1.0)
    assert throughput[-1] == pytest.approx(repairmen(customers, 0.2, 1.0))


def test_literal_numbers():
    """Two customers, demands 1 and 2, thinking 3: by hand."""
    throughput, present = scale.mean_values([1.0, 2.0], 2, think=3.0)
    assert throughput.tolist() == pytest.approx([0.0, 1 / 6, 2 / (3 + 7 / 6 + 2 * 4 / 3)])
    assert present[1].tolist() == pytest.approx([1 / 6, 1 / 3])


@pytest.mark.parametrize("actors", [1, 3, 12])
def test_actors_with_a_core_each_are_thinking_customers(actors):
    found = scale.flow(1.0, actors, actors, [0.2, 0.05], actors)
    throughput, present = scale.mean_values([0.2, 0.05], actors, think=1.0)
    assert found.throughput == pytest.approx(throughput[-1])
    assert found.present == pytest.approx(present[-1].tolist())


def test_one_core_for_all_is_a_station_like_any_other():
    found = scale.flow(1.0, 8, 1.0, [0.5, 0.25], 6)
    throughput, present = scale.mean_values([1.0, 0.5, 0.25], 6)
    assert found.throughput == pytest.approx(throughput[-1])
    assert found.under_way == pytest.approx(present[-1][0])


@pytest.mark.parametrize("room", [1, 2, 5, 30, 400])
@pytest.mark.parametrize(("actors", "cores"), [(1, 1.0), (4, 4.0), (4, 1.5), (300, 300.0)])
def test_bounds_and_littles_law(actors, cores, room):
    making, demands = 0.02, [0.004, 0.001]
    found = scale.flow(making, actors, cores, demands, room)
    servers = min(actors, cores)
    fastest = min(room / (making + sum(demands)), servers / making, 1.0 / max(demands))
    assert 0.3 * fastest < found.throughput <= fastest * (1 + 1e-9)
    assert found.under_way <= min(actors, room) + 1e-9
    # what is neither under way nor at a station is free room, of which there is some only if there are too few actors
    free = room - found.under_way - sum(found.present)
    assert free >= -1e-6 and (actors < room or free == pytest.approx(0.0, abs=1e-6))
    for demand, present in zip(demands, found.present):
        assert present >= found.throughput * demand - 1e-9, "who is served is there"


def test_more_of_anything_is_never_slower():
    speeds = [scale.flow(0.02, n, n, [0.003], n + 3).throughput for n in (1, 2, 4, 8, 16, 1024)]
    assert speeds == sorted(speeds)
    assert speeds[-1] == pytest.approx(1 / 0.003, rel=1e-6)
    rooms = [scale.flow(0.02, 8, 8, [0.003], room).throughput for room in (1, 2, 4, 8, 16, 64)]
    assert rooms == sorted(rooms)


def test_the_model_is_what_happens_with_exponential_times():
    """Event by event, with exponential times and a batch for every message, it comes to the same."""
    work = replace(WORK, making=1.0, table=0.0, learning=0.2)
    found = scale.simulated(work, 4, 0.0, 8, scale.exponential(random.Random(1)))
    assert found == pytest.approx(scale.flow(1.0, 4, 4, [0.2], 9).throughput, rel=0.03)


def test_a_simulation_of_constant_times_by_hand():
    """Three actors of 1 s, an owner of 0.5 s: the owner is the bottleneck; of 0.1 s: the actors are."""
    work = replace(WORK, making=1.0, table=0.0)
    slow = scale.simulated(replace(work, learning=0.5), 3, 0.0, 5, lambda mean: mean)
    fast = scale.simulated(replace(work, learning=0.1), 3, 0.0, 5, lambda mean: mean)
    assert slow == pytest.approx(2.0, rel=1e-3)
    assert fast == pytest.approx(3.0, rel=1e-2)
    link = scale.simulated(replace(work, learning=0.1), 3, 0.4, 5, lambda mean: mean)
    assert link == pytest.approx(2.5, rel=1e-2)


def test_batches_of_several_messages():
    """A batch of four messages takes 1 s; nothing else takes time: four messages a second."""
    work = replace(WORK, making=0.01, table=0.0, updates=0.25, learning=1.0)
    assert scale.simulated(work, 8, 0.0, 16, lambda mean: mean) == pytest.approx(4.0, rel=1e-2)


@pytest.mark.parametrize("place", [ONE, CLUSTER])
def test_predictions_use_nothing_more_than_wholly(place):
    for actors in scale.ACTORS:
        row = scale.predict(WORK, actors, place)
        assert all(0.0 <= share <= 1.0 + 1e-6 for share in row.use.values())
        owner = sum(row.use.get(name, 0.0) for name in ("calls", "table", "learner"))
        assert owner <= 1.0 + 1e-6, "table and learner are one process"
        assert row.updates == pytest.approx(row.frames / 1000)


def test_bottlenecks():
    assert scale.predict(WORK, 8, ONE).bottleneck == "learner"
    fast = replace(WORK, learning=1e-5)
    assert scale.predict(fast, 8, ONE).bottleneck == "actors"
    assert scale.predict(fast, 4096, ONE).bottleneck == "cores"
    assert scale.predict(fast, 4000, CLUSTER).bottleneck == "calls"
    assert scale.predict(replace(fast, bytes=10**7), 4000, CLUSTER).bottleneck == "link in"
    assert scale.predict(replace(fast, params=10**8), 4000, CLUSTER).bottleneck == "link out"


def test_saturated_throughput_is_the_bottlenecks():
    assert scale.predict(WORK, 4096, CLUSTER).frames == pytest.approx(1000 / (6e-3 + 20e-6 + 3e-4), rel=1e-3)
    two = scale.Place(1, 2.0, 5e9)
    assert scale.predict(WORK, 64, two).frames == pytest.approx(2 * 1000 / (0.020 + 6e-3 + 20e-6), rel=0.01)


def test_lag_of_one_actor_and_of_many():
    """Alone, an unroll of 20 ms lasts 20 ms / 20 ms a cycle = one update; saturated, all room is before the learner."""
    assert scale.predict(replace(WORK, learning=1e-5, params=0), 1, ONE).lag == pytest.approx(1.0, rel=0.01)
    assert scale.predict(WORK, 1024, CLUSTER).lag == pytest.approx(1024 + 3 - 1, rel=0.01)


def test_at_its_own_rate_the_learner_has_what_the_table_leaves():
    row = scale.predict(replace(WORK, own_rate=True), 8, ONE)
    assert row.frames == pytest.approx(8 * 1000 / 0.020, rel=0.01)
    assert row.updates == pytest.approx((1 - 400 * 20e-6) / 6e-3, rel=0.01)
