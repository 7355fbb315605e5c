"""What the agent orders of a render helper, and what the helper answers: one line of JSON each."""

from typing import Final, NamedTuple

import msgspec

from shared.gotemplate.data import NamedInstance, ServiceName, Variable, VaultSecret

#: Kinds of reads: the instances of a service, of no name all services; a variable that exists; whether one does.
SERVICE: Final = "service"
#: Begins the name of a service of which also the status of its checks is read; no service has such a name.
CHECKED: Final = "checked:"
VARIABLE: Final = "variable"
META: Final = "meta"
#: A secret of Vault, and the names of those below a path.
SECRET: Final = "secret"
SECRET_NAMES: Final = "secrets"


class DataRead(NamedTuple):
    """Data from outside of the task that a template reads."""

    kind: str
    name: str


class DataGiven(msgspec.Struct, frozen=True, kw_only=True):
    """Data that the helper asked for, or is expected to ask for."""

    #: path -> content.
    files: dict[str, bytes] = {}
    #: variable of the task, or value of its node; None: it is not set.
    env: dict[str, str | None] = {}
    services: dict[str, tuple[NamedInstance, ...]] = {}
    #: the list of all services.
    names: tuple[ServiceName, ...] | None = None
    #: path -> variable with its items.
    variables: dict[str, Variable] = {}
    #: path -> variable without its items; None: it does not exist.
    metas: dict[str, Variable | None] = {}
    #: path -> secret of Vault; names of those below a path.
    secrets: dict[str, VaultSecret] = {}
    secret_names: dict[str, tuple[str, ...]] = {}


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
    #: variables that it may read, where it reads any.
    readable: tuple[str, ...] = ()
    #: secrets of Vault may be read.
    has_vault: bool = False
    #: the text is read as variables.
    is_env: bool = False
    now_ns: int = 0
    given: DataGiven = DataGiven()


class RenderAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one pass: data that it lacks, a fault, or the text."""

    #: files, variables of the environment, services and variables that are missing.
    files: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    lacks: tuple[DataRead, ...] = ()
    #: what is missing in Nomad's words, with empty lists that are waited for.
    missing: tuple[str, ...] = ()
    #: items of variables decide what is missing: its name is not shown.
    is_secret: bool = False
    #: all that was read or is missing.
    read: tuple[DataRead, ...] = ()
    fault: str = ""
    text: bytes = b""
    variables: dict[str, str] = {}
    #: it read the clock: the text as it would be at another time, always the same one.
    timeless: bytes | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing; it may be a fault."""
        return not (self.files or self.env or self.lacks or self.missing)
