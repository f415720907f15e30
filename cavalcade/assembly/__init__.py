"""Assembly: what a wiring is (`Wiring`), and the parts that an architecture builds a program from (`Parts`)."""

from cavalcade.assembly.origin import Origin
from cavalcade.assembly.parts import Parts
from cavalcade.assembly.table_memory import allocate, bytes_of, require_memory, storage_of
from cavalcade.assembly.wiring import CHOICES, Wiring

__all__ = ["CHOICES", "Origin", "Parts", "Wiring", "allocate", "bytes_of", "require_memory", "storage_of"]
