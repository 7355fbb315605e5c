"""What the agent orders of a fetch helper, and what the helper answers."""

import msgspec


class FetchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact. The result is `out` in the directory whose descriptor comes with it, a file or a directory.

    A second descriptor is the content, where no server is asked: a local file, or one of the cache.
    """

    source: str
    options: dict[str, str] = {}
    headers: dict[str, str] = {}
    mode: str = "any"
    insecure: bool = False
    #: name of the file where the destination is exactly that (mode file).
    file_name: str = "file"
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
