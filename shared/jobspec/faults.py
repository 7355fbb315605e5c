"""Faults: what is wrong with a job, each with its path, all at once up to a limit."""

from schemas.jobs import ErrorDetail

#: Told at once; a file with more wrong says so.
FAULTS_MAX = 100


class Faults:
    """Collects what is wrong, with its path; the first FAULTS_MAX are kept."""

    def __init__(self) -> None:
        self.found: list[ErrorDetail] = []

    def add(self, path: str, message: str) -> None:
        """Note one fault."""
        if len(self.found) < FAULTS_MAX:
            self.found.append(ErrorDetail(code="invalid", message=message, path=path))

    def within(self, path: str, field: str, value: int, bounds: tuple[int, int]) -> None:
        """Note a number outside its bounds, both included."""
        if not bounds[0] <= value <= bounds[1]:
            self.add(path + field, f"must be {bounds[0]} to {bounds[1]}, was {value}")
