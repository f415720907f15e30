"""The only thing between acting and learning: a store with a sampler, a remover, a size and a limiter."""

from cavalcade.errors import Stopped
from cavalcade.table.limiter import Limiter
from cavalcade.table.rows import Rows, RowSpec
from cavalcade.table.selectors import Selector, prioritised
from cavalcade.table.signature import Items, Signature
from cavalcade.table.table import Sample, Table

__all__ = ["Items", "Limiter", "RowSpec", "Rows", "Sample", "Selector", "Signature", "Stopped", "Table", "prioritised"]
