"""One step of a role: the time it runs at and the effects it collects, in order.

A role makes one `Step` for each call of `step` and passes it down; every method that has an effect calls `emit`. No
effect is kept in the role itself, so an exception in the middle of a step leaves nothing for the next one.
"""

from shared.core.runtime.messages import Effect


class Step:
    """Time and effects of one step. In loops over many items bind `emit = step.emit` first."""

    __slots__ = ("effects", "emit", "now_ns", "steady_ns")

    def __init__(self, now_ns: int, steady_ns: int = 0) -> None:
        #: wall clock, ns since 1970.
        self.now_ns = now_ns
        #: wall clock without its steps backwards: for pauses, resends and leases.
        self.steady_ns = steady_ns
        self.effects: list[Effect] = []
        self.emit = self.effects.append
