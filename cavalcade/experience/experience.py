"""What an algorithm learns from and where it waits, as one declaration. Actors fill it, architectures read it."""

from dataclasses import dataclass

from cavalcade.experience.item import Item
from cavalcade.experience.stores import Queue, Replay


@dataclass(frozen=True)
class Experience:
    item: Item
    store: Replay | Queue
    batch: int  # items of one update; for a queue 0 means one from each environment
    flush: int = 1  # items that an actor gathers before it sends them
    pull_every: int = 0  # steps of each environment between two looks for newer parameters; 0 looks whenever it may

    def patience(self, environments: int) -> int:
        """Steps after which an actor sends what it has gathered, be it less than `flush`: in so many, one item per step
        of each of its environments would have been enough."""
        return -(-self.flush // environments) - 1
