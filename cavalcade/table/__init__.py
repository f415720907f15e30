"""The only thing between acting and learning: a store with a sampler, a remover, a size and a limiter."""

from cavalcade.table.limiter import Limiter
from cavalcade.table.table import Sample, Table

__all__ = ["Limiter", "Sample", "Table"]
