"""Job files as the command line reads them: the file, its variables, what it reads itself; `job validate` and `init`.

Decides where `file()` may look (the folder of the job file, and below), what `uuidv4()` draws from (a new seed for each
reading) and how faults are told. What a job file means is shared/jobspec's matter.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from services.cli import lines
from services.cli.output import CliError, Output

if TYPE_CHECKING:
    from shared.jobspec.load import Loaded

STDIN = "-"
EXAMPLE = Path(__file__).with_name("example.nomad.hcl")
_EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> Path:
    """Find an example: beside this file where Caravan is installed, else in the checkout."""
    installed = Path(__file__).with_name(name)
    return installed if installed.exists() else _EXAMPLES / name


def read(file: str, *, var: Sequence[str], var_file: Sequence[str]) -> "Loaded":
    """Read a job file with its variables; faults are in the answer. Raises CliError for wrong options, OSError."""
    from shared.jobspec.load import load_file

    content = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    folder = Path() if file == STDIN else Path(file).parent
    return load_file(
        content,
        "stdin" if file == STDIN else file,
        variables=_variables(var),
        var_files=[(name, Path(name).read_bytes()) for name in var_file],
        env=dict(os.environ),
        read_file=_reader(folder),
        seed=os.urandom(16).hex(),
    )


def read_valid(out: Output, file: str, *, var: Sequence[str], var_file: Sequence[str]) -> "Loaded":
    """Read a job file that shall be used. Raises CliError with the first fault; the others are told before."""
    loaded = read(file, var=var, var_file=var_file)
    if loaded.errors:
        first = loaded.errors[0]
        for error in loaded.errors[1:]:
            out.note(f"caravan: {lines.of_error(error)}")
        raise CliError(first.code, first.message, path=first.path, file=first.file, line=first.line)
    return loaded


def validate(out: Output, *, file: str, var: Sequence[str], var_file: Sequence[str]) -> int:
    """Check a job file without a bus."""
    loaded = read(file, var=var, var_file=var_file)
    ok = not loaded.errors
    errors = [{"path": e.path, "line": e.line, "message": e.message} for e in loaded.errors]
    out.result({"ok": ok, "job": loaded.job_id, "warnings": loaded.warnings, "errors": errors})
    for error in loaded.errors:
        out.line(lines.of_error(error), "red")
    for warning in loaded.warnings:
        out.line(f"warning: {warning}", "yellow")
    if ok:
        out.line(f"{file}: job {loaded.job_id} is valid", "green")
    return 0 if ok else 1


def init(out: Output, *, file: str) -> int:
    """Write the example; a file that is there stays."""
    try:
        with Path(file).open("x", encoding="utf-8") as made:
            made.write(EXAMPLE.read_text(encoding="utf-8"))
    except FileExistsError:
        raise CliError("conflict", "is there already, and stays as it is", file=file) from None
    out.result({"file": file})
    out.line(f"wrote {file}; next: caravan job plan {file}, then caravan job run {file}")
    return 0


def _variables(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise CliError("usage", f"--var {one!r}: NAME=VALUE is wanted")
        found[name.strip()] = value
    return found


def _reader(folder: Path) -> Callable[[str], bytes]:
    """What answers `file()`: only what lies in the job file's folder or below."""
    top = folder.resolve()

    def read_file(name: str) -> bytes:
        path = (top / Path(name).expanduser()).resolve()
        if not path.is_relative_to(top):
            raise ValueError(f"{name!r} lies outside the folder of the job file")
        return path.read_bytes()

    return read_file
