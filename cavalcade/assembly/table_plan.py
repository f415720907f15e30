"""How large a table has to be, so that nobody ever waits for room that cannot come.

Items: whoever inserts sends several at a time, whoever draws takes a batch; between the two there must be room for
both. Rows: each belongs to an item of the table, to a writer of the table's own process that has it under way, or to a
writer elsewhere, which is granted its rows beforehand, whether it uses them or not.
"""

from dataclasses import dataclass
from math import ceil, gcd

from cavalcade.assembly.row import Row
from cavalcade.experience import adders
from cavalcade.experience.declared import Experience, NStep, Replay, Unroll
from cavalcade.table import Signature
from cavalcade.table.table import POSTED


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
        row: Row,
        one_process: bool = True,
        shard: bool = False,
    ) -> "TablePlan":
        """`one_process`: the whole program runs in one. `shard`: the table is one of several that are drawn from as
        one, and `actors` are those that were dealt out to it."""
        elsewhere, seats = _writing(row, actors, one_process, shard)
        return cls(experience, signature, envs, actors, elsewhere, seats)

    # --- items --------------------------------------------------------------------------------------------------------

    @property
    def queue_size(self) -> int:
        """Items that may wait to be drawn once: the batches asked for, and as long as less than a batch is there, room
        for what an actor sends at once."""
        batch, store = self.experience.batch, self.experience.store
        if isinstance(store, Replay):
            return 0
        unit = 1 if store.replay_share else gcd(batch, self.envs)  # what waits is a multiple of it
        return max(store.batches * batch, batch - unit + self.envs)

    @property
    def replay_size(self) -> int:
        """Items that may be there to be drawn again, with what comes in between two removals."""
        store = self.experience.store
        if not isinstance(store, Replay):
            return store.replay_size if store.replay_share else 0
        if not store.trim_every:
            return store.size
        drawn = store.trim_every * self.experience.batch + 2 * self.slack
        return store.size + ceil(drawn / store.samples_per_insert) + self.actors * self.at_once

    @property
    def at_once(self) -> int:
        """Items that an actor may send together: of an environment all n steps before an end, or two unrolls that
        overlap; and what it has gathered before."""
        item = self.experience.item
        of_each = item.n if isinstance(item, NStep) else 2 if isinstance(item, Unroll) and item.period else 1
        return self.envs * of_each + self.experience.flush - 1

    @property
    def slack(self) -> float:
        """Draws of a replay by which learning may be ahead or behind: what is asked for, and at least what comes in one
        piece."""
        store = self.experience.store
        assert isinstance(store, Replay)
        ratio = store.samples_per_insert
        return max(self.experience.batch, ratio * self.at_once, ratio * store.start * store.tolerance, 1.0)

    # --- rows ---------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        item, rows = self.experience.item, self.signature.rows
        kept = adders.rows_of_items(item, rows, self.queue_size, True)
        kept += adders.rows_of_items(item, rows, self.replay_size, False)
        return kept + (self.elsewhere * self.writer_rows if self.elsewhere else self._under_way)

    @property
    def _under_way(self) -> int:
        patience = self.experience.patience(self.envs)
        return adders.rows_under_way(self.experience.item, self.signature.rows, self.envs * self.seats, patience)

    @property
    def writer_rows(self) -> int:
        """Rows that a writer elsewhere is granted: what it may hold, and as many again, so that it need not wait for
        those that are on their way back. A quarter of all may be missing: rows are granted many at a time."""
        return 2 * self._under_way + 64

    @property
    def writer_items(self) -> int:
        """Items that may be on their way from a writer elsewhere: all that it may have been promised room for, or be
        sent at once."""
        return max(POSTED, self.queue_size, self.at_once)

    @property
    def bytes(self) -> int:
        items = self.queue_size + self.replay_size
        return self.rows * self.signature.rows.bytes + items * self.signature.item_bytes


def _writing(row: Row, actors: int, one_process: bool, shard: bool) -> tuple[int, int]:
    """Writers in other processes than the table, and seats at each of them (or here, if there are none)."""
    if row.acting == "local":
        return (0, actors) if one_process or row.together else (actors, 1)
    central, moving = row.predictors or row.learners, row.adjust_every > 0
    if one_process:
        return 0, central * actors if moving else actors  # who went elsewhere leaves a seat behind
    beside = not row.predictors and (row.experience == "bundled" or (row.experience == "shared" and row.learners == 1))
    if beside:
        return 0, actors
    # each is granted rows, even one that nobody asks; all actors of a shard, or that move, may come to one of them
    return central, actors if moving or shard else ceil(actors / central)
