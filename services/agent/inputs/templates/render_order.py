"""What the agent orders of a render helper, and what the helper answers: one line of JSON each."""

import msgspec

from shared.gotemplate.data import NamedInstance, ServiceName


class DataGiven(msgspec.Struct, frozen=True, kw_only=True):
    """Data that the helper asked for, or is expected to ask for."""

    #: path -> content.
    files: dict[str, bytes] = {}
    #: variable of the task, or value of its node; None: it is not set.
    env: dict[str, str | None] = {}
    services: dict[str, tuple[NamedInstance, ...]] = {}
    #: the list of all services.
    names: tuple[ServiceName, ...] | None = None


class RenderOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One template, with the data that is known already."""

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
    now_ns: int = 0
    given: DataGiven = DataGiven()


class RenderAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one pass: data that it lacks, a fault, or the text."""

    #: files, variables and services that are missing; the empty name of a service is the list of all.
    files: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    #: all services that were read or are missing.
    read: tuple[str, ...] = ()
    fault: str = ""
    text: bytes = b""
    variables: dict[str, str] = {}
    #: it read the clock: the text as it would be at another time, always the same one.
    timeless: bytes | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing; it may be a fault."""
        return not (self.files or self.env or self.services)
