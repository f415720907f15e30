"""Draws for learners in other processes than the table, and from several tables (shards) as from one.

A `Drawer` in the process of each shard answers requests; `Draws` in the process of each learner asks all drawers. A
batch is made of one reply of each shard; new priorities go with the next request.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cavalcade import tree
from cavalcade.table import _core
from cavalcade.table.table import Sample, Table
from cavalcade.transport import Desk, Exchange, ServedDesk
from cavalcade.tree import Tree

NUMBERS = ("chosen", "share", "totals", "sizes", "given")  # arrays of `Draws` that decide the next draws
DRAWN = [name for name in Sample._fields if name != "weight"]  # shards send these; weights depend on the whole draw


class Drawer:
    """Worker in the process of a table that answers draws. `source`: the table, or a mixture with it."""

    def __init__(self, source: Any, table: Table, batch: int, lock_step: bool = False):
        """`table`: into which actors write the items. `batch`: the most items of one request. `lock_step`: drawn items
        keep their room until the learner asks again, which it does when it has learned from them and published."""
        self.source, self.table, self.lock_step = source, table, lock_step
        number, total = np.zeros((), np.int64), np.zeros(())
        revised = {"keys": np.zeros(batch, np.int64), "priority": np.zeros(batch, np.float32), "revised": number}
        request = {"number": number, "least": number, "most": number, **revised}
        self.exchange = Exchange(request, {"count": number, "size": number, "total": total, **blank(table, batch)})
        self.begun: dict[str, int] = {}  # by learner: the number of the last request whose priorities were applied
        self.held: dict[str, int] = {}  # by learner: drawn items that keep their room

    def step(self) -> bool:
        moved = False
        for desk in [desk for desk in self.exchange.desks if desk.waiting]:
            reply = self.draw(desk.name, desk.request)
            if reply is not None:
                desk.answer(reply)
                moved = True
        return moved

    def draw(self, learner: str, request: Tree) -> Tree | None:
        """A reply with `least` to `most` items (halving until the limiter agrees); None if fewer than `least` can be
        drawn. May be called again with the same request: its priorities are applied once."""
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
        """Give the room of the learner's last draw back, and keep that of `count` items."""
        if before := self.held.get(learner, 0):
            self.table.hold(-before)
        self.held[learner] = count
        if count:
            self.table.hold(count)

    def desk(self, name: str) -> "Beside":
        """A client for a learner in this process."""
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
    """A client in the drawer's process. It draws when it takes the reply, so nothing is ever on its way."""

    def __init__(self, drawer: Drawer, name: str):
        self.drawer, self.name = drawer, name
        self.request: Tree = {}

    def send(self, request: Tree) -> None:
        self.request = request

    def take(self) -> Tree | None:
        return self.drawer.draw(self.name, self.request)


class Draws:
    """A learner's side: draws from all shards as from one table, with the probabilities and weights of that table.

    For each item of a draw a shard is chosen in proportion to the sum of its items' shares (the number of its items if
    it draws uniformly), then the shard draws an item. The probability of an item is exactly that with which it was
    drawn: the shard's share at the choice times the item's share in the shard at the draw. So weights are right. The
    sums are one draw old: each shard sends its sum with its last reply, before new priorities and new items. So an item
    is drawn as often as in one table only up to the change of the shards' sums during one draw.

    A choice stands until its shard has replied, however long that takes: choosing again would favour shards that never
    wait. As all items of a draw may fall to one shard, the window of its limiter has to be wider than a draw.
    """

    def __init__(self, drawers: Sequence[Any], name: str, quotas: Sequence[int] = (), seed: Any = 0):
        """`quotas`: how many items of every draw each shard gives; if empty, shards are chosen by their sums."""
        self.clients = [drawer.desk(name) for drawer in drawers]
        self.quotas = quotas
        self.rng = np.random.default_rng(seed)
        self.number = 0  # of the last request
        self.asked: dict[int, Tree] = {}  # by shard: a request without a reply
        self.revised: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by shard: keys and priorities to be sent
        self.parts: list[Tree] = []  # replies that are no part of a batch yet
        self.chosen, self.share = np.zeros(0, np.int64), np.zeros(0)  # [B] shard of each item, and that shard's share
        # [shards] each: the sum of shares and the number of items at the last reply, and items drawn from it so far
        self.totals, self.sizes, self.given = np.zeros((3, len(drawers)))

    def sample(self, count: int, importance: float = 0.0) -> Sample | None:
        """A batch of `count` items; None while replies are missing. Before the first draw every shard is asked for 0
        items: it replies with its sum when it has the minimum size of its limiter."""
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
        weight = probability**-importance  # without the factor N ** -importance: the maximum has it too
        drawn |= {"probability": probability, "weight": (weight / weight.max()).astype(np.float32)}
        return Sample(**drawn)

    def _choose(self, count: int) -> None:
        """Choose a shard for each of `count` items, and ask the shards."""
        shards = len(self.clients)
        sums = self.totals if self.totals.any() else self.sizes  # if all priorities are zero a table draws uniformly
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
        """Ask a shard for `least` to `most` items, and send it the new priorities."""
        keys, priority = self.revised.pop(shard, (np.zeros(0, np.int64), np.zeros(0, np.float32)))
        self.number += 1
        revised = {"keys": keys, "priority": priority, "revised": len(keys)}
        self.asked[shard] = {"number": self.number, "least": least, "most": most, **revised}
        self.clients[shard].send(self.asked[shard])

    def _take(self) -> bool:
        """Take the replies that have come; returns whether there were any."""
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
        """Keep new priorities [M] for the next requests."""
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
        """Asks again what had no reply when the state was saved: a reply that was on its way then is lost."""
        self.rng.bit_generator.state = state["rng"]
        self.number, self.parts = state["number"], list(state["parts"])
        self.revised = {int(shard): tuple(pair) for shard, pair in state["revised"].items()}
        for name in NUMBERS:
            setattr(self, name, state[name].copy())
        self.asked = {int(shard): request for shard, request in state["asked"].items()}
        for shard, request in self.asked.items():
            self.clients[shard].send(request)


class QueueDraws(Draws):
    """Draws from queues as from one queue: takes the items that are there, and waits for no shard while others have
    items.

    The items that a batch lacks are asked of all shards in equal numbers; each gives as many of them as it has, but at
    least one. A shard without items replies when it gets one. Meanwhile the other shards are asked for the rest. Items
    that exceed the batch in the end begin the next one; they are at most as many as were asked for.
    """

    def sample(self, count: int, importance: float = 0.0) -> Sample | None:
        while (missing := count - sum(len(part["keys"]) for part in self.parts)) > 0:
            by_given = np.argsort(self.given, kind="stable").tolist()  # shards that gave least are asked for the rest
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
    """Zeros in the shapes of a draw of `batch` items, without weights."""
    signature = table.signature
    own = {
        name: np.zeros((batch, *np.shape(leaf)), np.asarray(leaf).dtype)
        for name, leaf in signature.flatten(signature.own).items()
    }
    items = signature.build(table.rows, np.zeros((batch, signature.length), np.int32), own)
    numbers, reals = np.zeros(batch, np.int64), np.zeros(batch)
    named = {"items": items, "keys": numbers, "probability": reals, "times_sampled": np.zeros(batch, np.int32)}
    return {**named, "age": numbers, "version": numbers, "made": reals}
