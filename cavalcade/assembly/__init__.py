"""Assembly: what a wiring is, and the parts that a program is built from."""

from cavalcade.assembly.origin import Origin
from cavalcade.assembly.parts import Parts
from cavalcade.assembly.wiring import CHOICES, Wiring

__all__ = ["CHOICES", "Origin", "Parts", "Wiring"]
