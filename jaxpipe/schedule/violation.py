"""What is wrong with a schedule, where, and what would repair it."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Violation:
    """One broken rule.

    Attributes:
        device: The row where it is broken; None where it concerns the schedule as a whole.
        column: The cell of that row; None where it concerns the row as a whole.
        problem: What is wrong.
        hint: What would repair it.
    """

    device: int | None = None
    column: int | None = None
    problem: str
    hint: str

    def __str__(self) -> str:
        place = "schedule" if self.device is None else f"device {self.device}"
        column = "" if self.column is None else f", column {self.column}"
        return f"{place}{column}: {self.problem}; {self.hint}"


class ScheduleError(ValueError):
    """A schedule breaks rules.

    Attributes:
        violations: All of them.
    """

    def __init__(self, name: str, violations: list[Violation]) -> None:
        self.violations = tuple(violations)
        count = "1 violation" if len(violations) == 1 else f"{len(violations)} violations"
        lines = "\n".join(f"  {violation}" for violation in violations)
        super().__init__(
            f"schedule {name!r} has {count} (devices and columns counted from 0):\n{lines}"
        )
