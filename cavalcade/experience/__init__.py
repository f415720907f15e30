"""Experience: what an algorithm learns from (items), how it is made out of environment steps (adders over a stream of
rows), and where it waits (stores). An algorithm declares it; actors, tables and architectures ask it."""

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
