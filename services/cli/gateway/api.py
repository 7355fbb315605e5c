"""`caravan operator api`: one HTTP request to the gateway, with the login of the selected context."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from services.cli.gateway.http import request
from services.cli.runtime.output import CliError, CommandOutput

_FAILED = 400


class ApiResult(msgspec.Struct, frozen=True):
    """`operator api --json`. `body`: JSON as it is, else a text."""

    status: int
    body: msgspec.Raw


def send(out: CommandOutput, *, path: str, method: str, data: str, header: Sequence[str]) -> int:
    """Send one request and print its answer's body; fails where the status is 400 or above."""
    body = _body(data)
    chosen = method or ("PUT" if body else "GET")
    answer = request(chosen.upper(), path, body, map(_header, header))
    try:
        msgspec.json.decode(answer.body)
        raw = msgspec.Raw(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raw = msgspec.Raw(msgspec.json.encode(answer.body.decode("utf-8", "replace")))
    out.result(ApiResult(answer.status, raw))
    out.line(answer.body.decode("utf-8", "replace").rstrip("\n"))
    return 1 if answer.status >= _FAILED else 0


def _body(data: str) -> bytes:
    """The text itself, @FILE, or - for standard input. Raises CliError."""
    if data == "-":
        return sys.stdin.buffer.read()
    if not data.startswith("@"):
        return data.encode()
    try:
        return Path(data[1:]).read_bytes()
    except OSError as err:
        raise CliError("usage", f"-d {data}: {err.strerror}", file=data[1:]) from err


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise CliError("usage", f"--header must be NAME: VALUE, not {text!r}")
    return name.strip(), value.strip()
