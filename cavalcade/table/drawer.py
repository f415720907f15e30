"""Draws for learners in other processes than the table, and from several tables as from one.

A `Drawer` beside each table answers requests; `Draws` beside each learner asks all of them. A batch is one reply of
each shard, and new priorities go with the next request.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.table import _core
from cavalcade.table.table import Sample, Table
from cavalcade.transport import Desk, Exchange, ServedDesk
from cavalcade.tree import Tree

NUMBERS = ("chosen", "share", "totals", "sizes", "given")  # arrays that decide the next draws
DRAWN = [name for name in Sample._fields if name != "weight"]  # what shards send; weights need the whole draw


class Drawer:
    """Worker beside a table. `source` is the table, or several drawn from as one."""

    def __init__(self, source: Any, table: Table, batch: int, lock_step: bool = False):
        """`table`: where the items that are drawn were written. `batch`: the most that are asked for at once.
        `lock_step`: what is drawn keeps its room until the learner asks again, which it does when it has published
        what it learned from it."""
        self.source, self.table, self.lock_step = source, table, lock_step
        number, total = np.zeros((), np.int64), np.zeros(())
        revised = {"keys": np.zeros(batch, np.int64), "priority": np.zeros(batch, np.float32), "revised": number}
        request = {"number": number, "least": number, "most": number, **revised}
        self.exchange = Exchange(request, {"count": number, "size": number, "total": total, **blank(table, batch)})
        self.begun: dict[str, int] = {}  # by learner: the request whose priorities have been taken
        self.held: dict[str, int] = {}  # by learner: items that keep their room

    def step(self) -> bool:
        moved = False
        for desk in [desk for desk in self.exchange.desks if desk.waiting]:
            reply = self.draw(desk.name, desk.request)
            if reply is not None:
                desk.answer(reply)
                moved = True
        return moved

    def draw(self, learner: str, request: Tree) -> Tree | None:
        """From `least` to `most` items, as many as there are; None as long as there are fewer. Asked again, a request
        is the same."""
        if self.begun.get(learner) != int(request["number"]):
            self.begun[learner] = int(request["number"])
            revised = int(request["revised"])
            if revised:
                self.source.update_priorities(*(np.copy(request[name][:revised]) for name in ("keys", "priority")))
            self._hold(learner, 0)
        least, count = int(request["least"]), int(request["most"])
        while count > least and not self.source.can_sample(count):
            count = max(least, count // 2)
        if not self.source.can_sample(count):
            return None
        drawn = self.source.sample(count)._asdict() if count else {}
        if self.lock_step:
            self._hold(learner, count)
        about = {"count": count, "size": len(self.source), "total": _core.total(self.table.core)}
        return {**about, **{name: drawn[name] for name in DRAWN if drawn}}

    def _hold(self, learner: str, count: int) -> None:
        if before := self.held.get(learner, 0):
            self.table.hold(-before)
        self.held[learner] = count
        if count:
            self.table.hold(count)

    def desk(self, name: str) -> "Beside":
        return Beside(self, name)

    def share(self, consumer: str) -> Desk:
        return self.exchange.share(consumer)

    def serve(self, consumer: str) -> ServedDesk:
        return self.exchange.serve(consumer)

    def state(self) -> dict:
        return {"begun": dict(self.begun), "held": dict(self.held)}

    def restore(self, state: dict) -> None:
        self.begun = dict(state["begun"])
        for learner, count in state["held"].items():
            self._hold(learner, count)

    def close(self) -> None:
        self.exchange.close()


class Beside:
    """A client in the drawer's process: it draws when it looks for the reply, so nothing is ever on its way."""

    def __init__(self, drawer: Drawer, name: str):
        self.drawer, self.name = drawer, name
        self.request: Tree = {}

    def send(self, request: Tree) -> None:
        self.request = request

    def take(self) -> Tree | None:
        return self.drawer.draw(self.name, self.request)


class Draws:
    """A learner's side: draws from all shards as from one table, with the probabilities and weights of that one.

    For each item of a draw a shard is chosen in proportion to the sum of its shares (the number of its items if it
    draws uniformly), then the shard draws. What is exact: that choice is really made with the shares that enter the
    probability, and the shard draws with its priorities of that moment; so the probability of an item is the one with
    which it was drawn, and weights are right for what was done. What is not: the sums are those that each shard sent
    with its last reply, before the new priorities and before what came in since. An item is therefore drawn as often
    as in one table, up to what a shard's sum has moved against the others' in one draw.

    A choice stands until it is served, however long its shard waits: to choose again would favour those that never do.
    As all of a draw may fall to one shard, its limiter's window has to be wider than a draw.
    """

    def __init__(self, drawers: Sequence[Any], name: str, quotas: Sequence[int] = (), seed: Any = 0):
        """`quotas`: items of every draw that each shard gives; without them shards are chosen by their sums."""
        self.clients = [drawer.desk(name) for drawer in drawers]
        self.quotas = quotas
        self.rng = np.random.default_rng(seed)
        self.number = 0  # of the last request
        self.asked: dict[int, Tree] = {}  # by shard: a request without a reply
        self.revised: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by shard: keys and priorities to be sent
        self.parts: list[Tree] = []  # what came and was not given on
        self.chosen, self.share = np.zeros(0, np.int64), np.zeros(0)  # shards of the draw, and their shares
        self.totals, self.sizes, self.given = np.zeros((3, len(drawers)))  # sums, items, and items given so far

    def sample(self, count: int, importance: float = 0.0) -> Sample | None:
        """`count` items; None as long as some of them have not come. Before the first draw every shard is asked for no
        items: it replies, with its sum, when it has as many as its limiter wants."""
        while not self.parts or self.asked:
            if not self.asked:
                self._choose(count)
            self._take()
            if self.asked:
                return None
        parts, self.parts = self.parts, []
        places = [np.flatnonzero(self.chosen == int(part["keys"][0]) % len(self.clients)) for part in parts]
        drawn = parts[0] if len(parts) == 1 else tree.placed(parts, places)
        probability = drawn["probability"] * self.share
        weight = probability**-importance  # times N ** -importance, with N all items; the maximum cancels it
        drawn |= {"probability": probability, "weight": (weight / weight.max()).astype(np.float32)}
        return Sample(**drawn)

    def _choose(self, count: int) -> None:
        shards = len(self.clients)
        sums = self.totals if self.totals.any() else self.sizes  # priorities of zero: a table then draws uniformly
        if self.quotas:
            share, self.chosen = np.array(self.quotas) / sum(self.quotas), np.repeat(np.arange(shards), self.quotas)
        elif sums.any():
            share = sums / sums.sum()
            self.chosen = self.rng.choice(shards, count, p=share)
        else:
            share, self.chosen = sums, np.zeros(0, np.int64)
        self.share = share[self.chosen]
        for shard, items in enumerate(np.bincount(self.chosen, minlength=shards).tolist()):
            self._ask(shard, items, items)

    def _ask(self, shard: int, least: int, most: int) -> None:
        keys, priority = self.revised.pop(shard, (np.zeros(0, np.int64), np.zeros(0, np.float32)))
        self.number += 1
        revised = {"keys": keys, "priority": priority, "revised": len(keys)}
        self.asked[shard] = {"number": self.number, "least": least, "most": most, **revised}
        self.clients[shard].send(self.asked[shard])

    def _take(self) -> bool:
        """Whether anything has come."""
        before = len(self.asked)
        for shard in list(self.asked):
            reply = self.clients[shard].take()
            if reply is not None:
                del self.asked[shard]
                self.totals[shard], self.sizes[shard] = reply["total"], reply["size"]
                if count := int(reply["count"]):
                    self.given[shard] += count
                    part = {name: tree.map(lambda leaf, n=count: np.copy(leaf[:n]), reply[name]) for name in DRAWN}
                    self.parts.append({**part, "keys": part["keys"] * len(self.clients) + shard})
        return len(self.asked) < before

    def update_priorities(self, keys: np.ndarray, priority: np.ndarray) -> None:
        """Told with the next request."""
        inner, shard = np.divmod(np.asarray(keys, np.int64), len(self.clients))
        at = [shard == number for number in range(len(self.clients))]
        self.revised = {number: (inner[here], priority[here]) for number, here in enumerate(at) if here.any()}

    def account(self) -> str:
        return f"waits for {', '.join(f'shard {shard}' for shard in self.asked) or 'nobody'}"

    def state(self) -> dict:
        return {
            "rng": self.rng.bit_generator.state,
            "number": self.number,
            "asked": {str(shard): request for shard, request in self.asked.items()},
            "revised": {str(shard): list(pair) for shard, pair in self.revised.items()},
            "parts": list(self.parts),
            **{name: getattr(self, name).copy() for name in NUMBERS},
        }

    def restore(self, state: dict) -> None:
        """What was asked is asked again: a reply that was on its way is lost."""
        self.rng.bit_generator.state = state["rng"]
        self.number, self.parts = state["number"], list(state["parts"])
        self.revised = {int(shard): tuple(pair) for shard, pair in state["revised"].items()}
        for name in NUMBERS:
            setattr(self, name, state[name].copy())
        self.asked = {int(shard): request for shard, request in state["asked"].items()}
        for shard, request in self.asked.items():
            self.clients[shard].send(request)


class QueueDraws(Draws):
    """The same for queues, which are drawn from once: takes what is there, and waits for no shard as long as others
    have something.

    What is missing is asked of all shards alike, of each as much as it has of that. A shard that has nothing replies
    when something comes; meanwhile the others are asked for the rest, and what then comes too much begins the next
    batch: at most what was asked for.
    """

    def sample(self, count: int, importance: float = 0.0) -> Sample | None:
        while (missing := count - sum(len(part["keys"]) for part in self.parts)) > 0:
            by_given = np.argsort(self.given, kind="stable").tolist()  # the rest falls to who gave least
            idle = [shard for shard in by_given if shard not in self.asked]
            for place, shard in enumerate(idle):
                if most := (missing + len(idle) - 1 - place) // len(idle):
                    self._ask(shard, 1, most)
            if not self._take():
                return None
        whole = tree.joined(self.parts)
        self.parts = [tree.take(whole, slice(count, None))] if missing < 0 else []
        return Sample(**tree.take(whole, slice(count)), weight=np.ones(count, np.float32))


def blank(table: Table, batch: int) -> Tree:
    """Zeros in the shape of a draw."""
    signature = table.signature
    own = {
        name: np.zeros((batch, *np.shape(leaf)), np.asarray(leaf).dtype)
        for name, leaf in signature.flatten(signature.own).items()
    }
    items = signature.build(table.rows, np.zeros((batch, signature.length), np.int32), own)
    numbers, reals = np.zeros(batch, np.int64), np.zeros(batch)
    named = {"items": items, "keys": numbers, "probability": reals, "times_sampled": np.zeros(batch, np.int32)}
    return {**named, "age": numbers, "version": numbers, "made": reals}
