"""`caravan context`: buses with names, one file each in $XDG_CONFIG_HOME/caravan/contexts.

Decides which bus is meant when nobody says: `--context`, else CARAVAN_NATS_URL, else the context in use, else the
newest `caravan up` of this user, else port 4222 here. A password stands in a file of its own, never in a context.
"""

import os
import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from services.cli.output import CliError, Column, Output

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SCHEMES = ("nats", "tls", "ws", "wss")


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """One bus. Without `user` the server decides who we are."""

    name: str = ""
    url: str
    user: str = ""
    password_file: str = ""

    def password(self) -> str:
        """Read the password. Raises CliError when its file cannot be read."""
        if not self.password_file:
            return ""
        try:
            return Path(self.password_file).expanduser().read_text(encoding="utf-8").strip()
        except OSError as err:
            text = f"password of context {self.name!r}: {err.strerror or err}"
            raise CliError("config", text, file=self.password_file) from err


def folder() -> Path:
    """Where the files are."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "caravan"


def find(name: str) -> Context:
    """Read one context. Raises CliError `config`, naming those that there are."""
    path = _path(name)
    try:
        with path.open("rb") as file:
            return msgspec.convert({**tomllib.load(file), "name": name}, Context)
    except FileNotFoundError:
        known = ", ".join(names()) or "none; `caravan context add` makes one"
        raise CliError("config", f"no context {name!r}, there are: {known}") from None
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as err:
        raise CliError("config", f"context {name!r}: {err}", file=str(path)) from err


def names() -> list[str]:
    """Names of all contexts, sorted."""
    return sorted(path.stem for path in (folder() / "contexts").glob("*.toml"))


def current() -> str:
    """Name of the context in use; empty: none was chosen."""
    try:
        return (folder() / "context").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def add(out: Output, *, name: str, url: str, user: str, password_file: str) -> int:
    """Write a context; the first one is used from now on."""
    if not _NAME.fullmatch(name):
        raise CliError("usage", f"{name!r} is no name: letters, digits, dots, dashes, underscores")
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise CliError("usage", f"{url!r} is no bus: nats://host:4222")
    if parts.password:
        text = "a URL in a context holds no password: use --user and --password-file"
        raise CliError("usage", text)
    is_first = not names()
    lines = {"url": url, "user": user}
    if password_file:
        lines["password_file"] = str(Path(password_file).expanduser().absolute())
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{key} = {_quoted(value)}\n" for key, value in lines.items() if value)
    path.write_text(text, encoding="utf-8")
    if is_first:
        _choose(name)
    out.result({"name": name, "url": url, "file": str(path)})
    out.line(f"context {name}: {url}" + (", in use" if is_first else ""))
    return 0


def use(out: Output, *, name: str) -> int:
    """Talk to this bus from now on."""
    found = find(name)
    _choose(name)
    out.result({"name": name, "url": found.url})
    out.line(f"context {name}: {found.url}")
    return 0


def list_all(out: Output) -> int:
    """List all contexts."""
    used, found = current(), [find(name) for name in names()]
    shown = [msgspec.structs.asdict(one) for one in found]
    out.result({"contexts": shown, "current": used})
    rows = [("*" if one.name == used else "", one.name, one.url, one.user) for one in found]
    out.table([Column(""), Column("NAME"), Column("BUS"), Column("USER", 1)], rows)
    if not found:
        out.line("no contexts; `caravan context add NAME URL` makes one", "dim")
    return 0


def remove(out: Output, *, name: str) -> int:
    """Forget a context."""
    find(name)
    _path(name).unlink()
    if current() == name:
        (folder() / "context").unlink(missing_ok=True)
    out.result({"name": name})
    out.line(f"context {name}: forgotten")
    return 0


def _choose(name: str) -> None:
    folder().mkdir(parents=True, exist_ok=True)
    (folder() / "context").write_text(f"{name}\n", encoding="utf-8")


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise CliError("config", f"no context {name!r}")
    return folder() / "contexts" / f"{name}.toml"


def _quoted(value: str) -> str:
    """A TOML string; JSON's escapes are TOML's."""
    return msgspec.json.encode(value).decode()
