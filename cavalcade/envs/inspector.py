"""Compares what environments give with the space they declare and with what Gymnasium asks of them.

An inspection costs more than the guard in `sentinel.py`, which looks at every step. So every step is inspected in the
first episodes of each environment, when a mistake is most likely to show, and later one step of `EVERY`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym

from cavalcade.envs import protocol
from cavalcade.envs.fitting import Fitting, Misfit
from cavalcade.envs.protocol import Place
from cavalcade.errors import BadEnvironment

FIRST_EPISODES = 2  # of every environment, in which every step is inspected
FIRST_STEPS = 1_000  # after which this ends, where episodes are long
EVERY = 199  # steps between two later inspections: a prime, so that all steps of episodes of one length have their turn


class Inspector:
    """Inspects steps when they are due; raises on a misfit, or keeps a remark if it is harmless."""

    def __init__(self, environment: str, space: gym.Space, place: Place) -> None:
        self._environment, self._place = environment, place
        self._fitting = Fitting(space)
        self._wait = self._inspected = 0
        self.remarks: dict[str, str] = {}  # field -> sentence on a value out of its bounds

    def due(self) -> bool:
        """Whether to inspect this step. Call it once in every step: it counts them."""
        self._wait -= 1
        return self._wait <= 0

    def wait(self, episodes: int) -> None:
        """Call it after an inspection: sets when the next is due. `episodes`: that every environment has finished."""
        self._inspected += 1
        self._wait = 1 if episodes < FIRST_EPISODES and self._inspected < FIRST_STEPS else EVERY

    def check_reset(self, result: Any, row: int, episode: int) -> None:
        """Check what `reset` of a single environment returned, in some episodes its observation too."""
        protocol.check_reset(result, self._environment, self._place, row)
        if episode <= FIRST_EPISODES or episode % EVERY == 0:
            self.check_rows([result[0]], [row])

    def check_steps(self, results: Sequence[Any]) -> None:
        """Check what `step` of single environments returned, one result each."""
        for row, result in enumerate(results):
            protocol.check_step(result, self._environment, self._place, row)
        self.check_rows([result[0] for result in results], range(len(results)))

    def check_rows(self, observations: Sequence[Any], rows: Sequence[int]) -> None:
        """Check observations of single environments; `rows` are the environments' numbers."""
        if rows:
            self._require(self._fitting.of_rows(observations), rows)

    def check_batch(self, batch: Any, rows: Sequence[int]) -> None:
        """Check batched observations of a vector environment; `rows` are the environments' numbers."""
        self._require(self._fitting.of_batch(batch, len(rows)), rows)

    def _require(self, misfits: Iterable[Misfit], rows: Sequence[int]) -> None:
        """Raise on the first misfit that is not harmless; of harmless ones keep the first of each field."""
        for misfit in misfits:
            if misfit.harmless and misfit.field in self.remarks:
                continue
            sentence = misfit.sentence(self._environment, self._place(rows[misfit.row]))
            if not misfit.harmless:
                raise BadEnvironment(sentence)
            self.remarks[misfit.field] = sentence
