"""Holds what environments give against what they declare and what Gymnasium asks of them.

This costs more than the guard in `sentinel.py`, which looks at every step. So every step is inspected in the first
episodes of each environment, when a mistake is most likely to show, and later one of many.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym

from cavalcade.envs import protocol
from cavalcade.envs.fitting import Fitting, Misfit
from cavalcade.envs.protocol import Place
from cavalcade.errors import BadEnvironment

FIRST_EPISODES = 2  # of every environment, in which every step is inspected
FIRST_STEPS = 1_000  # after which that ends where episodes are long
EVERY = 199  # steps between two later inspections: a prime, so that all steps of episodes of one length have their turn


class Inspector:
    def __init__(self, environment: str, space: gym.Space, place: Place) -> None:
        self._environment, self._place = environment, place
        self._fitting = Fitting(space)
        self._wait = self._inspected = 0
        self.remarks: dict[str, str] = {}  # on what is out of its bounds, once for each field

    def due(self) -> bool:
        """Asked once in every step: whether it is to be inspected."""
        self._wait -= 1
        return self._wait <= 0

    def wait(self, episodes: int) -> None:
        """After an inspection; `episodes` is what every environment has finished."""
        self._inspected += 1
        self._wait = 1 if episodes < FIRST_EPISODES and self._inspected < FIRST_STEPS else EVERY

    def check_reset(self, result: Any, row: int, episode: int) -> None:
        """What a single environment began its episode with."""
        protocol.check_reset(result, self._environment, self._place, row)
        if episode <= FIRST_EPISODES or episode % EVERY == 0:
            self.check_rows([result[0]], [row])

    def check_steps(self, results: Sequence[Any]) -> None:
        """What single environments returned, one result each."""
        for row, result in enumerate(results):
            protocol.check_step(result, self._environment, self._place, row)
        self.check_rows([result[0] for result in results], range(len(results)))

    def check_rows(self, observations: Sequence[Any], rows: Sequence[int]) -> None:
        """Observations of these single environments."""
        if rows:
            self._require(self._fitting.of_rows(observations), rows)

    def check_batch(self, batch: Any, rows: Sequence[int]) -> None:
        """Observations of these environments of a vector environment."""
        self._require(self._fitting.of_batch(batch, len(rows)), rows)

    def _require(self, misfits: Iterable[Misfit], rows: Sequence[int]) -> None:
        for misfit in misfits:
            if misfit.harmless and misfit.field in self.remarks:
                continue
            sentence = misfit.sentence(self._environment, self._place(rows[misfit.row]))
            if not misfit.harmless:
                raise BadEnvironment(sentence)
            self.remarks[misfit.field] = sentence
