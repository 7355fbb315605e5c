"""The errors of a job, each with its path, up to a limit; and the bounds that several blocks share."""

from schemas.base import SECOND_NS
from schemas.jobs import ErrorDetail
from shared.durations import write_duration

#: Errors reported at once.
ERRORS_MAX = 100
#: Allocations one job may want; a count of a billion is a slip, not a wish.
JOB_COUNT_MAX = 1_000_000
#: Ten years: sums of log times and durations stay below int64.
DURATION_NS_MAX = 10 * 366 * 86_400 * SECOND_NS


class ErrorList:
    """Collects errors with their paths; the first ERRORS_MAX are kept."""

    def __init__(self) -> None:
        self.found: list[ErrorDetail] = []
        #: parts that are not built: no error where the submitter does without them.
        self.unbuilt: list[ErrorDetail] = []
        #: regular expressions of the job's constraints and affinities, so far.
        self.patterns: set[str] = set()

    @property
    def is_full(self) -> bool:
        """Whether further errors are dropped, so that checks that cost much can be left out."""
        return len(self.found) >= ERRORS_MAX

    def add(self, path: str, message: str) -> None:
        """Record an error."""
        if not self.is_full:
            self.found.append(ErrorDetail(code="invalid", message=message, path=path))

    def add_unbuilt(self, path: str, message: str) -> None:
        """Record a part that is not built."""
        if len(self.unbuilt) < ERRORS_MAX:
            self.unbuilt.append(ErrorDetail(code="invalid", message=message, path=path))

    def within(self, path: str, field: str, value: int, bounds: tuple[int, int]) -> None:
        """Record an error for a number outside its bounds (inclusive)."""
        if not bounds[0] <= value <= bounds[1]:
            self.add(path + field, f"must be {bounds[0]} to {bounds[1]}, was {value}")

    def within_span(self, path: str, field: str, value_ns: int, bounds_ns: tuple[int, int]) -> None:
        """Record an error for a duration outside its bounds (inclusive), all written as in job files."""
        if not bounds_ns[0] <= value_ns <= bounds_ns[1]:
            least, most, was = (write_duration(one) for one in (*bounds_ns, value_ns))
            self.add(path + field, f"must be {least} to {most}, was {was}")
