"""What the tasks of a node used in one minute: published by its agent, kept for a day in the stream USAGE."""

from schemas.base import Wire


class UsageMinute(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """`usage.<node>`: one minute of a node, by task; all columns have the same length. A minute may be missing."""

    node_id: str
    #: of the first second of the minute, since 1970, by the clock of the node.
    at_s: int = 0
    #: shown ids of allocations.
    allocs: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    #: measurements in the minute, ten seconds apart.
    samples: tuple[int, ...] = ()
    #: of one core, in thousandths: the mean, and the largest between two measurements.
    cpu_millicores: tuple[int, ...] = ()
    cpu_peak_millicores: tuple[int, ...] = ()
    #: the largest that was measured.
    memory_bytes: tuple[int, ...] = ()
    throttled_ms: tuple[int, ...] = ()
    oom_kills: tuple[int, ...] = ()
