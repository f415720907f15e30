"""Interruptions: if the user asks a run to stop, it ends after its current turn, with everything saved."""

import signal
from types import TracebackType
from typing import Any


class Interruption:
    """Inside it, Ctrl-C and SIGTERM only set `asked`; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.asked = False
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self.previous[number] = signal.signal(number, self._ask)
            except ValueError:  # not in the main thread: signals stay as they are
                break
        return self

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
