"""What a run says while it trains: `metrics.jsonl` for programs, lines of progress for people."""

import json
import math
import pathlib
import shutil
import sys
import time
from types import TracebackType
from typing import Self, TextIO


def bits_per_byte(loss: float) -> float:
    """The loss in bits: tokens are bytes, so nothing else needs to be known.

    Example:
        >>> round(bits_per_byte(math.log(256)), 6)
        8.0
    """
    return loss / math.log(2)


class MetricsFile:
    """`metrics.jsonl`: one object a line, each with the `step` it was measured at.

    Args:
        path: The file; it is created if missing.
        last_step: Lines of later steps are dropped. A run that was killed has gone on past its
            last checkpoint, and resuming repeats those steps.
    """

    def __init__(self, path: pathlib.Path, *, last_step: int) -> None:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = [line for line in lines if _step_of(line) <= last_step]
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, **values: float) -> None:
        """Adds a line, so that it is in the file when this returns."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return math.inf  # the half line of a run that was killed


class Clock:
    """How fast the steps go, without what is done between them."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """What came since the last lap is not measured."""
        self._num_steps = 0
        self._started = time.perf_counter()

    def count(self) -> None:
        """Another step has been sent off."""
        self._num_steps += 1

    def lap(self) -> float:
        """Seconds per step since the last lap or restart; the steps must have ended."""
        seconds = (time.perf_counter() - self._started) / self._num_steps
        self.restart()
        return seconds


class Progress:
    """Lines of progress; on a terminal each replaces the one before.

    Args:
        num_steps: Steps of the run.
        stream: Where to write; None for the standard output.
    """

    def __init__(self, *, num_steps: int, stream: TextIO | None = None) -> None:
        self._num_steps = num_steps
        self._stream = sys.stdout if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._open_length = 0

    def update(
        self,
        step: int,
        *,
        loss: float,
        tokens_per_second: float,
        learning_rate: float,
        seconds_left: float,
    ) -> None:
        """Shows where the run is."""
        width = len(str(self._num_steps))
        line = (
            f"step {step:{width}}/{self._num_steps}  loss {loss:.3f}"
            f"  {bits_per_byte(loss):.3f} bits/byte  {tokens_per_second:,.0f} tok/s"
            f"  lr {learning_rate:.1e}  {duration(seconds_left)} left"
        )
        if self._is_terminal:
            # A line that wraps could not be replaced.
            line = line[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + line.ljust(self._open_length))
            self._open_length = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """Shows something that stays."""
        if self._open_length:
            self._stream.write("\n")
            self._open_length = 0
        self._stream.write(text + "\n")
        self._stream.flush()


def duration(seconds: float) -> str:
    """Seconds for people.

    Example:
        >>> duration(7.4), duration(205), duration(7500)
        ('7s', '3m25s', '2h05m')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
