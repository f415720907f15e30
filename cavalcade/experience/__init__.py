"""Experience: items, which an algorithm learns from; adders, which make items out of environment steps (a stream of
rows); and stores, where items wait. An algorithm declares its experience; actors, tables and architectures ask it."""

from cavalcade.experience.episode import Episode
from cavalcade.experience.experience import Experience
from cavalcade.experience.item import Adder, Item
from cavalcade.experience.nstep import NStep
from cavalcade.experience.outcome import Outcome
from cavalcade.experience.stores import SMALLEST_PRIORITY, Queue, Replay, Sizes
from cavalcade.experience.unroll import Unroll

__all__ = [
    "SMALLEST_PRIORITY",
    "Adder",
    "Episode",
    "Experience",
    "Item",
    "NStep",
    "Outcome",
    "Queue",
    "Replay",
    "Sizes",
    "Unroll",
]
