"""What the agent orders of a fetch helper, and what the helper answers."""

import msgspec


class FetchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact. The helper works in its current directory; the result is `out` there, a file or a directory."""

    source: str
    options: dict[str, str] = {}
    headers: dict[str, str] = {}
    mode: str = "any"
    insecure: bool = False
    #: name of the file where the destination is exactly that (mode file).
    file_name: str = "file"
    #: descriptor of the content where no server is asked: a local file, or one of the cache; -1: none.
    content_fd: int = -1
    #: the rights to work with; -1: those that it has.
    uid: int = -1
    gid: int = -1
    #: the helper dies with it.
    agent_pid: int
    needs_landlock: bool = False
    #: networks that the operator allows beside public and private ones, and hosts that are refused.
    allow: tuple[str, ...] = ()
    refused_hosts: tuple[str, ...] = ()
    bytes_max: int
    files_max: int
    stall_s: int = 60


class FetchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `reason` empty: `out` is whole."""

    reason: str = ""
    recoverable: bool = True
    #: of the content as it was fetched.
    sha256: str = ""
    is_directory: bool = False


class FetchRefused(Exception):
    """A fetch that cannot succeed. Not `recoverable`: another try would fail the same way."""

    def __init__(self, reason: str, *, recoverable: bool = False) -> None:
        super().__init__(reason)
        self.recoverable = recoverable
