"""Contexts: named buses, one file each in $XDG_CONFIG_HOME/caravan/contexts, and each `caravan up` of this user.

The bus is that of `--context`, else CARAVAN_NATS_URL, else the current context, else the newest `caravan up` of this
user, else port 4222 of this machine. Where a URL has no user and password, they are those of the context at its
address. A password is kept in a file of its own, never in a context.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import msgspec

from services.cli import global_options
from services.cli.runtime import local_clusters
from services.cli.runtime.local_clusters import LocalClusterRecord, bus_addresses
from services.cli.runtime.output import CliError
from shared.bus.connection.nats_client import redacted_url, url_login
from shared.bus.server import accounts

DEFAULT_URL = "nats://127.0.0.1:4222"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """One bus. `user` and password may also be in the URL that was given for one command."""

    name: str = ""
    url: str
    user: str = ""
    password_file: str = ""
    #: of a running `caravan up`; empty: only the bus knows.
    cluster_id: str = ""

    def login(self) -> tuple[str, str]:
        """User and password; empty without. Raises CliError when the password's file cannot be read."""
        if not self.user:
            return url_login(self.url)
        return self.user, self._password()

    def _password(self) -> str:
        if not self.password_file:
            return ""
        try:
            return Path(self.password_file).expanduser().read_text(encoding="utf-8").strip()
        except OSError as err:
            text = f"password of context {self.name!r}: {err.strerror or err}"
            raise CliError("config", text, file=self.password_file) from err


def config_folder() -> Path:
    """The folder of the configuration files."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "caravan"


def read_context(name: str) -> Context:
    """Read one context. Raises CliError `config`, naming the known ones."""
    path = _path(name)
    try:
        with path.open("rb") as file:
            return msgspec.convert({**tomllib.load(file), "name": name}, Context)
    except FileNotFoundError:
        running = running_contexts()
        for one in running:
            if one.name == name:
                return one
        names = [*context_names(), *(one.name for one in running)]
        known = ", ".join(names) or "none (add one with `caravan context add`)"
        raise CliError("config", f"no context {name!r}; known: {known}") from None
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as err:
        raise CliError("config", f"context {name!r}: {err}", file=str(path)) from err


def context_names() -> list[str]:
    """Names of all contexts, sorted."""
    return sorted(path.stem for path in (config_folder() / "contexts").glob("*.toml"))


def running_contexts() -> list[Context]:
    """One for each running `caravan up` of this user, the newest last."""
    return [_of_running(up) for up in local_clusters.running_clusters()]


def known_contexts() -> list[Context]:
    """The saved contexts, then the running clusters without a saved name. Raises CliError."""
    saved = [read_context(name) for name in context_names()]
    names = {one.name for one in saved}
    return [*saved, *(one for one in running_contexts() if one.name not in names)]


class Selection(NamedTuple):
    """The context that is in force, and why."""

    context: Context
    reason: str
    #: whether this user said so; the newest `caravan up` is only a guess.
    is_chosen: bool = True


def select() -> Selection:
    """Find the bus and the user of this command. Raises CliError for an unreadable context."""
    if global_options.context_name():
        return Selection(read_context(global_options.context_name()), "--context")
    given = os.environ.get("CARAVAN_NATS_URL")
    if given:
        return Selection(_at_url(given), "CARAVAN_NATS_URL")
    used = current_context()
    if used:
        return Selection(read_context(used), "current context")
    running = running_contexts()
    if running:
        return Selection(running[-1], "newest `caravan up`", is_chosen=False)
    return Selection(Context(url=DEFAULT_URL), "default", is_chosen=False)


def require_choice() -> Selection:
    """Find the bus of a command that changes something: among several, none is guessed. Raises CliError `ambiguous`."""
    found = select()
    if found.is_chosen:
        return found
    known = known_contexts()
    if len({bus_addresses(one.url) for one in known}) < 2:
        return found
    listed = ", ".join(f"{one.name} ({redacted_url(one.url)})" for one in known)
    text = f"several clusters are known and none is selected: {listed}"
    raise CliError("ambiguous", f"{text}; add --context NAME, or set CARAVAN_NATS_URL")


def _at_url(url: str) -> Context:
    """The context at this address, or the address alone; a login in the URL goes first."""
    at = bus_addresses(url)
    found = next((one for one in reversed(known_contexts()) if bus_addresses(one.url) == at), None)
    if any(url_login(url)):
        same = found if found is not None and found.user == url_login(url)[0] else None
        name, cluster_id = (same.name, same.cluster_id) if same is not None else ("", "")
        return Context(url=url, name=name, cluster_id=cluster_id)
    return found if found is not None else Context(url=url)


def _of_running(up: LocalClusterRecord) -> Context:
    port = next(iter(bus_addresses(up.url)))[1]
    return Context(
        name=f"up-{port}",
        url=up.url,
        user=accounts.PUBLIC,
        password_file=str(local_clusters.password_file(Path(up.data_dir))),
        cluster_id=up.cluster_id,
    )


def current_context() -> str:
    """Name of the current context; empty: none."""
    try:
        return (config_folder() / "context").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def write_context(context: Context) -> Path:
    """Write a context; returns its file."""
    path = _path(context.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"url": context.url, "user": context.user, "password_file": context.password_file}
    # JSON's escapes are TOML's.
    lines = (
        f"{key} = {msgspec.json.encode(value).decode()}\n" for key, value in values.items() if value
    )
    path.write_text("".join(lines), encoding="utf-8")
    return path


def delete_context(name: str) -> None:
    """Delete a context. Raises CliError."""
    if read_context(name).cluster_id:
        raise CliError("usage", f"{name} is a running `caravan up`, it is removed when that ends")
    _path(name).unlink()
    if current_context() == name:
        (config_folder() / "context").unlink(missing_ok=True)


def set_current_context(name: str) -> None:
    """Make a context the current one."""
    config_folder().mkdir(parents=True, exist_ok=True)
    (config_folder() / "context").write_text(f"{name}\n", encoding="utf-8")


def is_context_name(name: str) -> bool:
    """Whether a context may have this name."""
    return bool(_NAME.fullmatch(name))


def _path(name: str) -> Path:
    if not is_context_name(name):
        raise CliError("config", f"no context {name!r}")
    return config_folder() / "contexts" / f"{name}.toml"
