"""Bodies of node RPC, `hands.<node>.<verb>`: requests of operators to the agent of a node.

The bus is the only way to a node. A stream (logs, exec) is one request with many
replies, `Frame`s numbered from 1; the client acknowledges frames with `SessionInput`, and an agent that hears nothing
from it for half a minute ends the stream. Bytes are base64, as in all JSON here.
"""

from schemas.base import Wire
from schemas.jobs import ErrorDetail


class LogsAsk(Wire, frozen=True, kw_only=True):
    """`hands.<node>.logs`: output of a task. Answered by Frames."""

    #: whole id of the allocation.
    alloc_id: str
    task: str
    #: chosen by the client, 128 bits as 32 hex digits: names the stream in SessionInput.
    session: str
    #: stdout or stderr.
    stream: str = "stdout"
    #: continue with new output, until the task's allocation is over.
    follow: bool = False
    #: only so many lines from the end; 0: all that is kept, -1: nothing of it.
    tail: int = 0


class ExecAsk(Wire, frozen=True, kw_only=True):
    """`hands.<node>.exec`: run a command beside a task, with its isolation. Answered by Frames."""

    alloc_id: str
    task: str
    session: str
    command: tuple[str, ...]
    #: with a terminal of its own, of this size.
    tty: bool = False
    rows: int = 24
    columns: int = 80


class ActionAsk(Wire, frozen=True, kw_only=True):
    """`hands.<node>.action`: run an action of a task, whose command is in the job. Answered by Frames."""

    alloc_id: str
    #: name of the action.
    action: str
    session: str
    #: empty: the only one that has the action.
    task: str = ""
    #: with a terminal of its own, of this size.
    tty: bool = False
    rows: int = 24
    columns: int = 80


class SessionInput(Wire, frozen=True, kw_only=True):
    """`hands.<node>.session`: to a stream, at least every ten seconds. Answered by SessionAnswer."""

    session: str
    #: counts inputs from 1, so that one that is sent again is taken once; 0: there is no input.
    number: int = 0
    data: bytes = b""
    #: there is no more input.
    is_end: bool = False
    #: number of the last frame received; an agent sends only so many more.
    seen: int = 0
    #: new size of the terminal; 0: as before.
    rows: int = 0
    columns: int = 0
    #: end the stream.
    close: bool = False


class SessionAnswer(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """The answer to SessionInput, once its input was taken."""

    error: ErrorDetail | None = None


class Frame(Wire, frozen=True, kw_only=True):
    """A piece of a stream. The last one has `is_end`; an empty one is a keep-alive."""

    #: counts frames with data or an end from 1; 0: a keep-alive.
    number: int = 0
    #: 1 stdout, 2 stderr.
    source: int = 1
    data: bytes = b""
    is_end: bool = False
    #: of a command that ended.
    exit_code: int | None = None
    #: why it ended, after a failure.
    error: ErrorDetail | None = None


class FilesAsk(Wire, frozen=True, kw_only=True):
    """`hands.<node>.fs_list|fs_stat|fs_read`: a path inside the directory of an allocation. No link is followed."""

    alloc_id: str
    #: from the allocation's directory on: `alloc/logs`, `server/local/out.txt`; empty: the directory itself.
    path: str = ""
    #: fs_read: from this byte on, at most so many (0: as many as fit into an answer). fs_list: from this entry on.
    offset: int = 0
    limit: int = 0


class FileLine(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """A file of an allocation."""

    name: str
    #: file, directory, link or other (a pipe, a socket, a device: never opened).
    kind: str
    size: int = 0
    #: permissions, as in `ls -l`.
    mode: str = ""
    modified_ns: int = 0


class FilesAnswer(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """The answer to fs_list and fs_stat; of a directory by name."""

    files: tuple[FileLine, ...] = ()
    #: how many entries the directory has, as far as they were counted.
    total: int = 0
    error: ErrorDetail | None = None


class FilePart(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """The answer to fs_read: bytes of a file, from where it was asked."""

    data: bytes = b""
    #: size of the file now.
    size: int = 0
    error: ErrorDetail | None = None


class StatsAsk(Wire, frozen=True, kw_only=True):
    """`hands.<node>.stats`: current resource usage."""

    #: empty: everything on the node.
    alloc_id: str = ""
    #: also the last hour, of one allocation.
    history: bool = False


class TaskUse(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Current usage of a task, measured by its driver: all processes where the kernel counts them, else the first."""

    alloc_id: str
    task: str
    driver: str
    #: since its start, and as thousandths of a core over the last quarter second.
    cpu_ns: int = 0
    cpu_millicores: int = 0
    memory_bytes: int = 0
    #: why usage is unknown; empty: it is known.
    problem: str = ""
    #: counters since its start, and processes now; 0: none, or not counted by its driver here.
    memory_peak_bytes: int = 0
    throttled_ns: int = 0
    oom_kills: int = 0
    pids: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    #: what the job asks for; 0: not known.
    asked_cpu_mhz: int = 0
    asked_memory_mib: int = 0


class TaskHistory(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """Usage of a task over the last hour, sampled every ten seconds, in this life of its agent.

    Counts are by bucket: below 16 a bucket is a value; a bucket b above holds the values from
    (8 + b mod 8) << (b / 8 - 1), b / 8 rounded down, to below the first value of the next one.
    """

    alloc_id: str
    task: str
    samples: int = 0
    from_ns: int = 0
    to_ns: int = 0
    #: bucket, as text -> samples in it.
    cpu_millicores: dict[str, int] = {}
    memory_bytes: dict[str, int] = {}
    cpu_peak_millicores: int = 0
    memory_peak_bytes: int = 0
    throttled_ns: int = 0
    oom_kills: int = 0


class StatsAnswer(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """The answer to stats."""

    node_id: str = ""
    tasks: tuple[TaskUse, ...] = ()
    #: MiB that the directories of an allocation take, by its id.
    disk_mib: dict[str, int] = {}
    #: clock of a core, by which millicores are MHz; 0: not known.
    core_mhz: int = 0
    history: tuple[TaskHistory, ...] = ()
    error: ErrorDetail | None = None


class TaskAsk(Wire, frozen=True, kw_only=True):
    """`hands.<node>.restart|signal`: to the running tasks of an allocation."""

    alloc_id: str
    #: empty: all that run.
    task: str = ""
    #: signal: which one, by name.
    signal: str = ""


class TaskAnswer(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """The answer to restart and signal: the tasks it was sent to."""

    tasks: tuple[str, ...] = ()
    error: ErrorDetail | None = None
