"""Which items an algorithm learns from and where they wait, as one declaration that actors and architectures read."""

from dataclasses import dataclass

from cavalcade.experience.item import Item
from cavalcade.experience.stores import Queue, Replay


@dataclass(frozen=True)
class Experience:
    """What an algorithm declares."""

    item: Item
    store: Replay | Queue
    batch: int  # items of one draw; for a queue 0 means one from each environment
    flush: int = 1  # items that an actor gathers in its outbox before it sends them
    pull_every: int = 0  # steps between two looks of an actor for newer params; 0: at every step where it may look

    def patience(self, environments: int) -> int:
        """Steps that the oldest item in an actor's outbox may wait; then all are sent, even if fewer than `flush`. In
        so many steps `environments` environments would have made `flush` items, at one item a step each."""
        return -(-self.flush // environments) - 1
