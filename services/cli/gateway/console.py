"""`caravan ui`: open the console, signed in by a one-time code; or serve it on an archive until Ctrl-C."""

import os
import sys
import webbrowser
from importlib import import_module
from pathlib import Path

import msgspec

from services.cli import global_options
from services.cli.gateway.http import gateway_url, request
from services.cli.runtime.bus_client import run_interruptible
from services.cli.runtime.output import CliError, CommandOutput


class ConsoleResult(msgspec.Struct, frozen=True):
    """`ui --json`. `url`: signs in once, within ten minutes."""

    url: str


def open_console(out: CommandOutput, *, port: int, print_only: bool) -> int:
    """Draw a code and open the console, or print its address."""
    if global_options.export_dir():
        return _serve_archive(out, global_options.export_dir(), port=port, print_only=print_only)
    if port:
        raise CliError(
            "usage", "--port is for an archive (--from-file): a cluster's gateway has one"
        )
    answer = request("POST", "/v1/caravan/code")
    if answer.status != 200:
        text = answer.body.decode("utf-8", "replace").strip()
        raise CliError("refused", f"the gateway answered {answer.status}: {text}")
    code = msgspec.json.decode(answer.body)["code"]
    # Behind the # it is sent to no server.
    _show(out, f"{gateway_url()}/ui/#/login?code={code}", print_only=print_only)
    return 0


def _serve_archive(out: CommandOutput, folder: str, *, port: int, print_only: bool) -> int:
    """Serve the console on an export until Ctrl-C. Raises CliError, ConfigInvalid."""
    # Imported here: it brings a database along; and by name, as roles are.
    from services.cli.runtime.export_client import open_export
    from shared.archive.segments import ArchiveInvalid
    from shared.extras import require

    require("starlette")
    require("uvicorn")
    reading = open_export(folder)
    for problem in reading.problems:
        out.note(problem)

    def announce(text: str) -> None:
        if text.startswith("http"):
            _show(out, text, print_only=print_only)
            out.note("the console shows this archive until Ctrl-C")
        else:
            out.note(text)

    module = import_module("services.gateway.archive")
    try:
        run_interruptible(module.serve(Path(folder), reading, port=port, announce=announce))
    except ArchiveInvalid as err:
        raise CliError(err.code, str(err), file=err.path or folder) from err
    return 0


def _show(out: CommandOutput, url: str, *, print_only: bool) -> None:
    out.result(ConsoleResult(url))
    out.line(url)
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if not print_only and sys.stdout.isatty() and (has_display or sys.platform == "darwin"):
        webbrowser.open(url)
