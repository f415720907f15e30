"""How large a table has to be, so that nobody ever waits for room that cannot come.

Items: a writer sends several at a time and a learner draws a batch, so there must be room for both at once. Rows: each
belongs to an item of the table, to unfinished items of a writer in the table's process, or to a writer in another
process, which is granted its rows beforehand, whether it uses them or not.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from cavalcade.assembly.wiring import Wiring
from cavalcade.experience import Experience, Sizes
from cavalcade.table import POSTED, Signature


@dataclass(frozen=True)
class TablePlan:
    """The sizes of one table, in items, rows and bytes."""

    experience: Experience  # its batch is in items, never 0
    signature: Signature
    envs: int  # environments of each actor
    actors: int  # whose items go into this table
    elsewhere: int  # writers in other processes; 0 if all write from the table's process
    seats: int  # of actors: at each writer elsewhere, or, if there are none, at all writers here together

    @classmethod
    def of(
        cls,
        experience: Experience,
        signature: Signature,
        envs: int,
        actors: int,
        wiring: Wiring,
        one_process: bool = True,
        shard: bool = False,
    ) -> "TablePlan":
        """The plan for a table under this wiring. `one_process`: the whole program runs in one process. `shard`: the
        table is one of several that are drawn from as one, and `actors` counts those that write to it."""
        elsewhere, seats = _writing(wiring, actors, one_process, shard)
        return cls(experience, signature, envs, actors, elsewhere, seats)

    # --- items --------------------------------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> Sizes:
        return self.experience.store.plan(self.experience.batch, self.envs, self.actors, self.at_once)

    @property
    def items(self) -> int:
        """Items that the table can hold, in queue and replay together."""
        return self.sizes.queue + self.sizes.replay

    @property
    def at_once(self) -> int:
        """Items that an actor may send together: all that one step finishes, and fewer than `flush` from before."""
        return self.envs * self.experience.item.at_once + self.experience.flush - 1

    # --- rows ---------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Rows of the whole table: those of its items, and those that writers hold."""
        item, rows = self.experience.item, self.signature.rows
        kept = item.rows_needed(rows, self.sizes.queue, True) + item.rows_needed(rows, self.sizes.replay, False)
        return kept + (self.elsewhere * self.writer_rows if self.elsewhere else self._under_way)

    @property
    def _under_way(self) -> int:
        """Rows that the items under way of one writer elsewhere, or of all writers here, can refer to."""
        patience = self.experience.patience(self.envs)
        return self.experience.item.rows_under_way(self.signature.rows, self.envs * self.seats, patience)

    @property
    def writer_rows(self) -> int:
        """Rows that a writer elsewhere is granted: those it may hold, and as many again, so that it need not wait for
        rows on their way back to it. Up to a quarter may be missing, because rows are granted many at a time."""
        return 2 * self._under_way + 64

    @property
    def writer_items(self) -> int:
        """Items that may be on their way from a writer elsewhere: as many as it can be promised room for, or as it may
        send at once."""
        return max(POSTED, self.sizes.queue, self.at_once)

    @property
    def bytes(self) -> int:
        return self.rows * self.signature.rows.bytes + self.items * self.signature.item_bytes


def _writing(wiring: Wiring, actors: int, one_process: bool, shard: bool) -> tuple[int, int]:
    """Writers in other processes than the table, and the seats at each of them (if there are none: the seats here)."""
    if wiring.acting == "local":
        return (0, actors) if one_process or wiring.together else (actors, 1)
    central, moving = wiring.predictors or wiring.learners, wiring.adjust_every > 0
    if one_process:
        return 0, central * actors if moving else actors  # a worker that moves leaves a seat behind
    alone = wiring.experience == "bundled" or (wiring.experience == "shared" and wiring.learners == 1)
    if alone and not wiring.predictors:  # predictor, table and learner share a process
        return 0, actors
    # Every predictor is granted rows, even if nobody asks it. If actors move, or the table is a shard, all of the
    # table's actors may be guests of one predictor.
    return central, actors if moving or shard else ceil(actors / central)
