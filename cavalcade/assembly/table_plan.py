"""How large a table has to be, so that nobody ever waits for room that cannot come.

Items: whoever inserts sends several at a time, whoever draws takes a batch; between the two there must be room for
both. Rows: each belongs to an item of the table, to a writer of the table's own process that has it under way, or to a
writer elsewhere, which is granted its rows beforehand, whether it uses them or not.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from cavalcade.assembly.wiring import Wiring
from cavalcade.experience import Experience, Sizes
from cavalcade.table import POSTED, Signature


@dataclass(frozen=True)
class TablePlan:
    experience: Experience  # with its batch in items
    signature: Signature
    envs: int  # environments of each actor
    actors: int  # that make the table's items
    elsewhere: int  # writers in other processes; 0: all write from the table's own
    seats: int  # of actors, at each writer elsewhere or at all writers here: what each holds for their environments

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
        """`one_process`: the whole program runs in one. `shard`: the table is one of several that are drawn from as
        one, and `actors` are those that were dealt out to it."""
        elsewhere, seats = _writing(wiring, actors, one_process, shard)
        return cls(experience, signature, envs, actors, elsewhere, seats)

    # --- items --------------------------------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> Sizes:
        return self.experience.store.plan(self.experience.batch, self.envs, self.actors, self.at_once)

    @property
    def items(self) -> int:
        return self.sizes.queue + self.sizes.replay

    @property
    def at_once(self) -> int:
        """Items that an actor may send together: all that one step finishes, and what it has gathered before."""
        return self.envs * self.experience.item.at_once + self.experience.flush - 1

    # --- rows ---------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        item, rows = self.experience.item, self.signature.rows
        kept = item.rows_needed(rows, self.sizes.queue, True) + item.rows_needed(rows, self.sizes.replay, False)
        return kept + (self.elsewhere * self.writer_rows if self.elsewhere else self._under_way)

    @property
    def _under_way(self) -> int:
        patience = self.experience.patience(self.envs)
        return self.experience.item.rows_under_way(self.signature.rows, self.envs * self.seats, patience)

    @property
    def writer_rows(self) -> int:
        """Rows that a writer elsewhere is granted: what it may hold, and as many again, so that it need not wait for
        those that are on their way back. A quarter of all may be missing: rows are granted many at a time."""
        return 2 * self._under_way + 64

    @property
    def writer_items(self) -> int:
        """Items that may be on their way from a writer elsewhere: all that it may have been promised room for, or be
        sent at once."""
        return max(POSTED, self.sizes.queue, self.at_once)

    @property
    def bytes(self) -> int:
        return self.rows * self.signature.rows.bytes + self.items * self.signature.item_bytes


def _writing(wiring: Wiring, actors: int, one_process: bool, shard: bool) -> tuple[int, int]:
    """Writers in other processes than the table, and seats at each of them (or here, if there are none)."""
    if wiring.acting == "local":
        return (0, actors) if one_process or wiring.together else (actors, 1)
    central, moving = wiring.predictors or wiring.learners, wiring.adjust_every > 0
    if one_process:
        return 0, central * actors if moving else actors  # who went elsewhere leaves a seat behind
    alone = wiring.experience == "bundled" or (wiring.experience == "shared" and wiring.learners == 1)
    if alone and not wiring.predictors:  # predictor, table and learner share a process
        return 0, actors
    # each is granted rows, even one that nobody asks; all actors of a shard, or that move, may come to one of them
    return central, actors if moving or shard else ceil(actors / central)
