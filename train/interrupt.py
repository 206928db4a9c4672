"""Ctrl-C that finishes the step first."""

import signal
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Within `with Interrupt() as interrupt:` the first Ctrl-C or SIGTERM only sets a flag.

    The second one ends the process at once, whatever it is doing: Python's own handler would wait
    for a compilation to end.

    Attributes:
        received: The signal that came, or None.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    @property
    def exit_status(self) -> int:
        """What a shell expects of a program that ended because of the signal: 128 + its number."""
        assert self.received is not None, "there is no status without a signal"
        return 128 + self.received

    def __enter__(self) -> Self:
        self._usual = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._usual.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
