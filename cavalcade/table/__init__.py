"""The table, where experience waits between acting and learning: it has a sampler, a remover, a size and a limiter."""

from cavalcade.errors import Stopped
from cavalcade.table.drawer import Drawer, Draws, QueueDraws
from cavalcade.table.limiter import Limiter
from cavalcade.table.mixture import Mixture
from cavalcade.table.rows import ORIGIN, Rows, RowSpec, observed
from cavalcade.table.selectors import Selector, prioritised
from cavalcade.table.signature import Items, Signature
from cavalcade.table.store import NEXT
from cavalcade.table.table import POSTED, Sample, Table

__all__ = [
    "NEXT",
    "ORIGIN",
    "POSTED",
    "Drawer",
    "Draws",
    "Items",
    "Limiter",
    "Mixture",
    "QueueDraws",
    "RowSpec",
    "Rows",
    "Sample",
    "Selector",
    "Signature",
    "Stopped",
    "Table",
    "observed",
    "prioritised",
]
