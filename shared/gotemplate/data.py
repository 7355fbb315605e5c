"""What a template reads from outside, through the caller: the engine itself has no clock, file or network."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec


class NamedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One instance, as `nomadService` lists it. `status` and `meta` are set where its checks were asked for."""

    id: str = ""
    name: str = ""
    node: str = ""
    address: str = ""
    port: int = 0
    datacenter: str = ""
    tags: tuple[str, ...] = ()
    job_id: str = ""
    alloc_id: str = ""
    #: of its checks: passing, warning, critical, pending, unknown.
    status: str = ""
    meta: Mapping[str, str] = {}


class ServiceName(msgspec.Struct, frozen=True):
    """One service, as `nomadServices` lists it."""

    name: str
    tags: tuple[str, ...] = ()


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable with its items, as `nomadVar` returns it."""

    path: str
    items: Mapping[str, str] = {}
    namespace: str = "default"
    create_index: int = 0
    modify_index: int = 0
    #: log time; 0: not known.
    create_ns: int = 0
    modify_ns: int = 0

    def __repr__(self) -> str:
        """Name it without its items: a text of it may reach a log."""
        return f"Variable({self.path!r}, {self.modify_index})"


class VaultSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret of Vault, as `secret` returns it. `lease_s` 0: it has no lease, or a lease without an end."""

    path: str
    #: JSON values.
    data: Mapping[str, Any] = {}
    lease_id: str = ""
    lease_s: int = 0
    is_renewable: bool = False

    def __repr__(self) -> str:
        """Name it without its data: a text of it may reach a log."""
        return f"VaultSecret({self.path!r})"


class TemplateData(Protocol):
    """Where a template gets its data. None: it is not known yet, and the pass notes it as missing.

    Each method may raise TemplateError: the data can never be had.
    """

    def env(self, name: str) -> str | None:
        """Read a variable of the task's environment; None: it is not set."""

    def file(self, path: str) -> str | None:
        """Read a file of the task."""

    def now_ns(self) -> int:
        """Return the time that `timestamp` prints."""
        raise NotImplementedError

    def service(self, name: str, *, checked: bool = False) -> Sequence[NamedInstance] | None:
        """List the instances of a service, whatever their checks say.

        `checked`: with the status of their checks, and so another list whenever one of these changes.
        """

    def services(self) -> Sequence[ServiceName] | None:
        """List all services."""

    def variable(self, path: str) -> Variable | None:
        """Read a variable."""

    def variable_exists(self, path: str) -> bool | None:
        """Return whether a variable exists."""

    def variables(self, prefix: str) -> Sequence[Variable] | None:
        """List the variables below a prefix; their items are not read."""

    def secret(self, path: str) -> VaultSecret | None:
        """Read a secret of Vault; one that does not exist is not known yet."""

    def secret_names(self, path: str) -> Sequence[str] | None:
        """List the names of secrets of Vault below a path."""
