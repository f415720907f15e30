"""How far the runtimes scale, on paper: costs measured here, throughput predicted by a queueing model.

    python benchmarks/scale.py                                    measures, checks the model against real runs, predicts
    python benchmarks/scale.py --cores 64 --machines 64 --link 1.25e9 --faster 20
    python benchmarks/scale.py --no-check                         without the real runs

The model. Messages go round: an actor makes one (its environments and its policy, on a core of its own), it crosses the
network, the owner of the table takes it in and learns from it, and then there is room for another. Owner and links are
stations where one is served at a time, solved by exact mean-value analysis (Reiser and Lavenberg 1980). Seen from the
actors, of whom as many work as there are cores, they are one station whose speed depends on how many are there (Chandy,
Herzog and Woo 1975); what is left is a chain of births and deaths. Both steps are exact where times are exponential.
Real ones vary less, so waiting is overestimated; a simulation with whole batches and steady times stands beside it.
"""

import argparse
import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

ACTORS = [8 << i for i in range(10)]  # 8 to 4,096


# --- the model --------------------------------------------------------------------------------------------------------


def mean_values(demands: list[float], customers: int, think: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Throughput [customers + 1] and mean numbers at the stations [customers + 1, stations], for 0, 1, ... customers
    who go round between stations of these demands (seconds a visit, one at a time) and thinking (all at once)."""
    demand = np.asarray(demands, float)
    throughput, present = np.zeros(customers + 1), np.zeros((customers + 1, len(demand)))
    for n in range(1, customers + 1):
        residence = demand * (1.0 + present[n - 1])  # who arrives sees what there is on average without him
        throughput[n] = n / (think + residence.sum())
        present[n] = throughput[n] * residence
    return throughput, present


@dataclass(frozen=True)
class Flow:
    """A closed network in balance."""

    throughput: float  # messages/s
    under_way: float  # messages that actors are making
    present: tuple[float, ...]  # messages at each station


def flow(making: float, actors: int, cores: float, demands: list[float], room: int) -> Flow:
    """`room` messages go round; `actors` make one each in `making` core-seconds, on so many cores together (a fraction
    of one is one that is shared with something else)."""
    rest, present = mean_values(demands, room)
    j = np.arange(1, room + 1)
    rate = np.minimum(np.minimum(j, actors), cores) / making  # of messages made while there is room for j
    weight = np.cumsum(np.concatenate([[0.0], np.log(rest[room - j + 1]) - np.log(rate)]))
    chance = np.exp(weight - weight.max())
    chance /= chance.sum()  # [room + 1]: of room for 0, 1, ... messages
    throughput = float(chance[1:] @ rate)
    under_way = float(chance[1:] @ np.minimum(j, actors))
    return Flow(throughput, under_way, tuple(chance @ present[::-1]))


MADE, ARRIVED, IDLE = range(3)  # events: a message is made, it has crossed the link, its owner has nothing to do


def simulated(work: "Work", actors: int, link: float, room: int, seconds_of: Callable[[float], float]) -> float:
    """Messages/s of the same round trip, event by event: the learner waits for whole batches, and what it has drawn
    makes room at once. Every actor has a core; `seconds_of` a mean is one time with that mean."""
    events: list[tuple[float, int]] = [(0.0, IDLE)]
    idle_actors, free, link_free, queue, due = actors, float(room), 0.0, 0, 0.0
    began, done, last, busy = 0.0, 0, 20 * actors + 4_000, True
    while done < last:
        now, event = heapq.heappop(events)
        if event == MADE:
            idle_actors += 1
            link_free = max(link_free, now) + link
            heapq.heappush(events, (link_free, ARRIVED))
        elif event == ARRIVED:
            queue += 1
        else:
            busy = False
        if not busy and due >= 1.0 - 1e-9:
            due, free, busy = due - 1.0, free + 1.0 / work.updates, True
            heapq.heappush(events, (now + seconds_of(work.learning), IDLE))
        elif not busy and queue:
            queue, due, busy, done = queue - 1, due + work.updates, True, done + 1
            heapq.heappush(events, (now + seconds_of(work.table), IDLE))
            began = now if done == last // 2 else began
        while idle_actors and free >= 1.0 - 1e-9:
            idle_actors, free = idle_actors - 1, free - 1.0
            heapq.heappush(events, (now + seconds_of(work.making), MADE))
    return (last - last // 2) / (now - began)


# --- what goes round, and where ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """One message from an actor, and what follows from it. Seconds are those of one core."""

    name: str
    frames: float  # environment steps in it
    making: float  # seconds of the actor
    table: float  # seconds of the owner to take it in
    updates: float  # that follow from it
    learning: float  # seconds of the owner for each: draw, update, publish
    bytes: float
    params: float  # bytes
    slack: float = 2.0  # batches that may wait beside what actors are making
    own_rate: bool = False  # replay: the learner draws as fast as it can, and nobody waits for it

    def room(self, actors: int) -> int:
        """Messages that may be under way, waiting, or in the learner's hands: one of each actor, and the slack."""
        return max(1, round(actors + (self.slack + 1.0) / self.updates))


@dataclass(frozen=True)
class Place:
    """`machines` of 1: local processes and shared memory; more: a cluster on Ray, the owner on a machine of its own."""

    machines: int
    cores: float  # of each
    copy: float  # bytes/s of one core's memcpy
    link: float = 0.0  # bytes/s of a machine's network, each way
    call: float = 0.0  # seconds of a Ray call, round trip
    call_of_many: float = 0.0  # seconds that it occupies its receiver


@dataclass(frozen=True)
class Prediction:
    actors: int
    frames: float  # a second
    updates: float  # a second
    use: dict[str, float]  # shares of time
    bottleneck: str
    lag: float  # updates between the parameters an unroll was made with and its draw


@dataclass(frozen=True)
class Costs:
    """Of one message at one place."""

    making: float
    owner: dict[str, float]  # seconds of the owner, by what it does
    links: dict[str, float]

    @classmethod
    def of(cls, work: Work, place: Place) -> "Costs":
        learning = {} if work.own_rate else {"learner": work.updates * work.learning}
        if place.machines == 1:
            moved = 2 * work.bytes + (1.0 if work.own_rate else 1.0 + work.updates) * work.params
            return cls(work.making, {"table": work.table, **learning}, {"memory": moved / place.copy})
        fetches = min(1.0, place.machines * work.updates)  # a machine fetches a version once, for all its actors
        links = {"link in": work.bytes / place.link, "link out": fetches * work.params / place.link}
        owner = {"calls": place.call_of_many, "table": work.table, **learning}
        return cls(work.making + 2 * place.call, owner, links)


def predict(work: Work, actors: int, place: Place) -> Prediction:
    costs, room = Costs.of(work, place), work.room(actors)
    owner = sum(costs.owner.values())
    local, cores = place.machines == 1, place.machines * place.cores
    free = cores - (0.0 if local else 1.0)
    for _ in range(60 if local else 1):  # on one machine actors have the cores that the owner leaves them
        found = flow(costs.making, actors, max(free, 0.05), [owner, *costs.links.values()], room)
        used = 1.0 if work.own_rate else found.throughput * owner
        free = 0.5 * free + 0.5 * (cores - used) if local else free
    x, hands = found.throughput, min(actors, free)
    updates = max(0.0, 1.0 - x * owner) / work.learning if work.own_rate else x * work.updates
    use = {"actors": x * costs.making / hands}
    use |= {name: x * seconds for name, seconds in {**costs.owner, **costs.links}.items()}
    use["learner"] = updates * work.learning
    limits = {"cores" if actors > free else "actors": costs.making / hands, **costs.links}
    limits[max(costs.owner, key=lambda name: costs.owner[name])] = owner
    lag = max(0.0, (found.under_way + sum(found.present)) / x - owner) * updates
    return Prediction(actors, x * work.frames, updates, use, max(limits, key=lambda name: limits[name]), lag)


def simulate(work: Work, actors: int, place: Place) -> float | None:
    """Frames/s, where every actor has a core."""
    if actors + 1 > place.machines * place.cores or work.own_rate:
        return None
    costs = Costs.of(work, place)
    there = replace(work, making=costs.making, table=sum(costs.owner.values()) - work.updates * work.learning)
    room = round(actors + work.slack / work.updates)
    return work.frames * simulated(there, actors, max(costs.links.values()), room, nearly_constant(random.Random(0)))


def nearly_constant(rng: random.Random) -> Callable[[float], float]:
    return lambda mean: mean * rng.uniform(0.9, 1.1)


def exponential(rng: random.Random) -> Callable[[float], float]:
    return lambda mean: rng.expovariate(1.0 / mean) if mean else 0.0


def table(work: Work, place: Place) -> Iterator[str]:
    """Lines of a Markdown table."""
    rows = [predict(work, actors, place) for actors in ACTORS]
    yield f"| actors | frames/s | simulated | updates/s | lag | {' | '.join(rows[0].use)} | first bottleneck |"
    yield "| --- " * (6 + len(rows[0].use)) + "|"
    for row in rows:
        simulation = simulate(work, row.actors, place)
        again = "-" if simulation is None else f"{simulation:,.0f}"
        use = " | ".join(f"{share:.0%}" for share in row.use.values())
        yield (
            f"| {row.actors:,} | {row.frames:,.0f} | {again} | {row.updates:,.1f} | {row.lag:,.1f} | {use} | "
            f"{row.bottleneck} |"
        )


ASSUMPTIONS = """\
- Frames are environment steps; on Atari each is four of the emulator's.
- Seconds are processor time measured here, on one core, with nothing else in the caches than what belongs there; a
  cluster's cores are taken to be as fast as these.
- An actor sends one message for all its environments and then waits only for room. Room is enough for one message of
  every actor and {slack:g} batches beside; the settings' own queue would keep all but a few actors waiting
  (--queue-batches has to grow with the number of actors, and with it the lag).
- Ape-X twice: with the limiter, draws and inserts keep their ratio and the slower side makes the other wait; at its own
  rate (the paper's way) the learner has what time the table leaves, none if it comes to that, and how often a frame is
  replayed follows.
- Table and learner are one process and one core: what either uses, the other cannot.
- One machine: actors use the cores that the owner leaves, however many they are. Memory is one station with the speed
  of one core's memcpy.
- Lag: updates from the parameters an unroll was begun with until it is drawn; with replay, until it can be.
- Cluster: a message is one Ray call into the owner and crosses the owner's link once; parameters cross it once for each
  version and machine; an actor loses two round trips of a call for each message. Nothing fails, nobody starts.
- Times are independent and exponential in the model, within a tenth of their mean in the simulation."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=64, help="of a machine")
    parser.add_argument("--machines", type=int, default=64, help="of the cluster")
    parser.add_argument("--link", type=float, default=1.25e9, help="bytes/s of a machine's network")
    parser.add_argument("--faster", type=float, default=20.0, help="the second prediction's learner, as an accelerator")
    parser.add_argument("--no-check", action="store_true", help="do not compare with real runs")
    given = parser.parse_args()
    import scale_costs

    costs = scale_costs.Costs()
    works = costs.works()
    print("costs, microseconds of one core unless said otherwise:")
    for line in costs.lines:
        print(f"  {line}", flush=True)
    print("assumptions:\n" + ASSUMPTIONS.format(slack=works[0].slack))
    if not given.no_check:
        scale_costs.check(works[0], costs.copy)
    one = Place(1, given.cores, costs.copy)
    cluster = Place(given.machines, given.cores, costs.copy, given.link, costs.call, costs.call_of_many)
    for work in works:
        for speed in (1.0, given.faster):
            faster = replace(work, learning=work.learning / speed)
            learner = "the learner measured here" if speed == 1.0 else f"a learner {speed:g} times as fast"
            print(f"\n{work.name}, {learner}, one machine of {given.cores} cores:")
            print("\n".join(table(faster, one)))
            print(f"\n{work.name}, {learner}, Ray on {given.machines} machines of {given.cores} cores:")
            print("\n".join(table(faster, cluster)), flush=True)


if __name__ == "__main__":
    main()
