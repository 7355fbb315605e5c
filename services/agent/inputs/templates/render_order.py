"""What the agent orders of a render helper, and what the helper answers: one line of JSON each."""

import msgspec


class RenderOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One template with all the data that does not change."""

    data: str = ""
    #: instead of `data`: a file of the task.
    source: bytes | None = None
    left_delimiter: str = ""
    right_delimiter: str = ""
    error_on_missing_key: bool = False
    #: patterns of functions that the node's operator denies.
    denied: tuple[str, ...] = ()
    #: `file` may be used.
    reads_files: bool = False
    #: the text is read as variables.
    is_env: bool = False
    env: dict[str, str] = {}
    now_ns: int = 0


class FilesGiven(msgspec.Struct, frozen=True, kw_only=True):
    """Files that the helper asked for: path -> content."""

    files: dict[str, bytes]


class RenderAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one pass: files that it lacks, a fault, or the text."""

    missing: tuple[str, ...] = ()
    fault: str = ""
    text: bytes = b""
    variables: dict[str, str] = {}
