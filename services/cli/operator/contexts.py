"""`caravan context add|use|list|env|rm`."""

import shlex
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from services.cli.runtime.contexts import (
    Context,
    context_names,
    current_context,
    delete_context,
    is_context_name,
    known_contexts,
    read_context,
    select,
    set_current_context,
    write_context,
)
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.nats_client import redacted_url, url_with_login

_SCHEMES = ("nats", "tls", "ws", "wss")


class ContextAddResult(msgspec.Struct, frozen=True):
    """`context add --json`."""

    name: str
    url: str
    file: str


class ContextUseResult(msgspec.Struct, frozen=True):
    """`context use --json`."""

    name: str
    url: str


class ContextListResult(msgspec.Struct, frozen=True):
    """`context list --json`. `reason`: why `url`, of the context `selected` if it has a name, is in force."""

    contexts: list[Context]
    current: str
    selected: str
    url: str
    reason: str


class ContextEnvResult(msgspec.Struct, frozen=True):
    """`context env --json`. The URL holds a password."""

    name: str
    url: str


class ContextRemoveResult(msgspec.Struct, frozen=True):
    """`context rm --json`."""

    name: str


def add(out: CommandOutput, *, name: str, url: str, user: str, password_file: str) -> int:
    """Save a context; the first one becomes the current one."""
    if not is_context_name(name):
        text = f"invalid name {name!r}: use letters, digits, dots, dashes and underscores"
        raise CliError("usage", text)
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise CliError("usage", f"{url!r} is not a bus URL like nats://host:4222")
    if parts.password:
        raise CliError(
            "usage", "the URL must not contain a password; use --user and --password-file"
        )
    is_first = not context_names()
    secret = str(Path(password_file).expanduser().absolute()) if password_file else ""
    path = write_context(Context(name=name, url=url, user=user, password_file=secret))
    if is_first:
        set_current_context(name)
    out.result(ContextAddResult(name, url, str(path)))
    out.line(f"context {name}: {url}" + (", now current" if is_first else ""))
    return 0


def use(out: CommandOutput, *, name: str) -> int:
    """Set the current context."""
    found = read_context(name)
    if found.cluster_id:
        text = f"{name} is a running `caravan up` and not saved; use --context {name}, or"
        raise CliError("usage", f'{text} eval "$(caravan context env {name})"')
    set_current_context(name)
    out.result(ContextUseResult(name, found.url))
    out.line(f"context {name}: {found.url}")
    return 0


def list_all(out: CommandOutput) -> int:
    """List saved contexts and running clusters; mark the one in force with the reason."""
    found, chosen = known_contexts(), select()
    used = chosen.context
    url = redacted_url(used.url)
    out.result(ContextListResult(found, current_context(), used.name, url, chosen.reason))
    rows = [
        ("*" if one.name == used.name else "", one.name, one.url, one.user, _kind(one))
        for one in found
    ]
    out.table("|NAME|BUS|USER|KIND", rows)
    if not found:
        out.line("no contexts; add one with `caravan context add NAME URL`", "dim")
    name = f"context {used.name}, " if used.name else ""
    out.line(f"in force: {name}{url} ({_REASONS.get(chosen.reason, chosen.reason)})")
    if not chosen.is_chosen and len(found) > 1:
        out.line("commands that change a cluster require a choice: --context NAME")
    return 0


_REASONS = {
    "newest `caravan up`": "the newest `caravan up` of this user",
    "default": "no context, no CARAVAN_NATS_URL, no `caravan up` of this user",
    "current context": "the current context",
}


def _kind(one: Context) -> str:
    return "caravan up" if one.cluster_id else "saved"


def env(out: CommandOutput, *, name: str) -> int:
    """Print the line that gives a shell the bus and its login."""
    found = read_context(name) if name else select().context
    user, password = found.login()
    url = url_with_login(found.url, user, password) if user else found.url
    out.result(ContextEnvResult(found.name, url))
    out.line(f"export CARAVAN_NATS_URL={shlex.quote(url)}")
    return 0


def remove(out: CommandOutput, *, name: str) -> int:
    """Delete a context."""
    delete_context(name)
    out.result(ContextRemoveResult(name))
    out.line(f"context {name}: deleted")
    return 0
