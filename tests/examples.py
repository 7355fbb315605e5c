"""Examples of a property: all in the full tier, from its seed; fewer, and always the same, in the gate."""

from hypothesis import settings

from tests.not_tested import is_full


def examples(full: int, gate: int | None = None) -> settings:
    """Settings of one property: `full` examples, or `gate` where that is given and the run is the gate.

    A deadline would make a timing a test.
    """
    count = full if is_full() or gate is None else gate
    return settings(deadline=None, derandomize=not is_full(), max_examples=count)
