"""Assembly: what a row of the table of architectures is, and the parts that a program is built from."""

from cavalcade.assembly.origin import Origin
from cavalcade.assembly.parts import Parts
from cavalcade.assembly.row import CHOICES, Row

__all__ = ["CHOICES", "Origin", "Parts", "Row"]
