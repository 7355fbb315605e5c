"""Lines of the output of a task, sent by its node's agent to the stream LOGS, never in the log."""

from schemas.base import Wire


class ShippedLogs(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """`logs.<node>.<alloc>.<task>`: lines of one output, in order.

    A line of more than 8 KiB, and one that is not complete yet, comes in parts: each text has its line feed where it
    ends the line. The bytes of an output are counted from its beginning on: what a message repeats of earlier ones has
    the same offset, and a message without a gap begins where the one before ends.
    """

    node_id: str
    job_id: str = ""
    group: str = ""
    alloc_id: str
    task: str
    #: stdout or stderr.
    stream: str = ""
    #: when the agent read them, milliseconds since 1970, by the clock of the node.
    at_ms: int = 0
    #: bytes of this output before the first line, those that were lost among them.
    offset: int = 0
    #: bytes before the first line that were not sent: about so many, where their files are gone.
    lost: int = 0
    #: bytes that are not UTF-8 are replaced.
    lines: tuple[str, ...] = ()
    #: of each line in the output, in bytes.
    sizes: tuple[int, ...] = ()
