"""Where the table of some parts lies, and whether it fits there."""

from typing import TYPE_CHECKING, Any

from cavalcade.errors import UserError
from cavalcade.table import Rows
from cavalcade.transport import Memory, require

if TYPE_CHECKING:
    from cavalcade.assembly.parts import Parts


def storage_of(x: "Parts") -> str:
    """memory, file or compressed. `storage` is for replay; a queue is small and always lies in memory."""
    return x.storage if x.plan.sizes.replay else "memory"


def bytes_of(x: "Parts") -> int:
    """Bytes of all tables of the run together."""
    if x.part is None and x.wiring.experience == "shards":
        return sum(x.of_shard(k).plan.bytes for k in range(x.wiring.shards))
    if x.wiring.experience == "bundled":
        return x.wiring.learners * x.of_one_learner.plan.bytes
    return x.plan.bytes


def require_memory(x: "Parts", needed: int) -> None:
    """Refuse tables of `needed` bytes that do not fit into memory or onto the disk. Compressed ones are not checked:
    how much smaller frames become is not known beforehand."""
    storage = storage_of(x)
    if x.writers == "beside" and storage != "memory":
        raise UserError(f"--storage {x.storage} needs --runtime inprocess: other processes write to memory only.")
    if storage != "compressed":
        require(needed, x.plan.items, "shared" if x.writers == "beside" else storage)


def allocate(x: "Parts") -> dict[str, Any]:
    """The memory of the items and rows of one table, as keyword arguments of `Table`."""
    require_memory(x, x.plan.bytes)
    storage, plan = storage_of(x), x.plan
    compressed = storage == "compressed"
    memory = Memory("shared" if x.writers == "beside" else "memory" if compressed else storage)
    rows = Rows(x.signature.rows, plan.rows, memory, compressed)
    where = {"rows": rows, "memory": memory, "compressed": compressed}
    return {**where, "writer_rows": plan.writer_rows, "writer_items": plan.writer_items}
