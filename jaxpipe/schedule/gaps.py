"""Where a device has time: the gaps between what it does already, and what still fits into them."""

import bisect
from collections.abc import Iterable


class Gaps:
    """The idle time of one device, of which `take` uses up parts.

    The time behind the last interval is a gap without end.
    """

    def __init__(self, busy: Iterable[tuple[float, float]], *, tie: float) -> None:
        """Starts with the gaps between what the device does already.

        Args:
            busy: Start and end of all of it, ascending.
            tie: Times closer than this are one.
        """
        self.tie = tie
        self.starts: list[float] = []
        self.ends: list[float] = []
        free_from = 0.0
        for start, end in busy:
            if start > free_from + tie:
                self.starts.append(free_from)
                self.ends.append(start)
            free_from = max(free_from, end)
        self.starts.append(free_from)
        self.ends.append(float("inf"))

    def take(
        self, duration: float, *, earliest: float, latest: float, from_right: bool = False
    ) -> float | None:
        """Uses up a part of the first gap that holds `duration` between two times.

        Args:
            duration: How long the part is.
            earliest: It starts no earlier.
            latest: It ends no later.
            from_right: Whether it ends as late in its gap as it can, instead of starting as early.

        Returns:
            When it starts; None if there is no such gap.

        Example:
            >>> gaps = Gaps([(1.0, 2.0), (5.0, 6.0)], tie=1e-9)
            >>> gaps.take(1.0, earliest=1.0, latest=5.0, from_right=True)
            4.0
            >>> gaps.take(2.0, earliest=0.0, latest=5.0), gaps.take(2.0, earliest=0.0, latest=5.0)
            (2.0, None)
        """
        place = bisect.bisect_left(self.ends, earliest + duration - self.tie)
        while place < len(self.starts):
            start = max(self.starts[place], earliest)
            if start + duration > latest + self.tie:
                return None
            until = min(self.ends[place], latest)
            if start + duration <= until + self.tie:
                if from_right and until < float("inf"):
                    start = max(start, until - duration)
                self._cut(place, start, start + duration)
                return start
            place += 1
        return None

    def _cut(self, place: int, start: float, end: float) -> None:
        rests = [
            (rest_start, rest_end)
            for rest_start, rest_end in ((self.starts[place], start), (end, self.ends[place]))
            if rest_end > rest_start + self.tie
        ]
        self.starts[place : place + 1] = [rest_start for rest_start, _ in rests]
        self.ends[place : place + 1] = [rest_end for _, rest_end in rests]
