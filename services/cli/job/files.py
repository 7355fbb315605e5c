"""Reads job files and their variables; `caravan job validate` and `job init`.

`file()` may read only the folder of the job file and below; `uuidv4()` draws from a new seed on each reading.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, Unpack

import msgspec

from services.cli.runtime import tables
from services.cli.runtime.output import CliError, CommandOutput, parse_pairs

if TYPE_CHECKING:
    from shared.jobspec.files.load import LoadedJobFile

STDIN = "-"
EXAMPLE_PATH = Path(__file__).with_name("example.nomad.hcl")
_EXAMPLES = Path(__file__).parents[3] / "examples"


class JobFileOptions(TypedDict):
    """The options of every command that reads a job file."""

    var: Sequence[str]
    var_file: Sequence[str]
    accept_unbuilt: NotRequired[bool]
    accept_unknown: NotRequired[bool]


class JobFileError(msgspec.Struct, frozen=True):
    """One error of a job file."""

    path: str
    line: int
    message: str


class ValidateResult(msgspec.Struct, frozen=True):
    """`job validate --json`."""

    ok: bool
    job: str
    warnings: tuple[str, ...]
    errors: list[JobFileError]


class InitResult(msgspec.Struct, frozen=True):
    """`job init --json`."""

    file: str


def example_path(name: str) -> Path:
    """Find an example: beside this file if Caravan is installed, else in the checkout."""
    installed = Path(__file__).with_name(name)
    return installed if installed.exists() else _EXAMPLES / name


def read_job_file(file: str, **options: Unpack[JobFileOptions]) -> "LoadedJobFile":
    """Read a job file with its variables; errors are in the result. Raises CliError for wrong options, OSError."""
    from shared.jobspec.files.load import load_file

    content = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    folder = Path() if file == STDIN else Path(file).parent
    return load_file(
        content,
        "stdin" if file == STDIN else file,
        variables=parse_pairs(options["var"], "--var"),
        var_files=[(name, Path(name).read_bytes()) for name in options["var_file"]],
        env=dict(os.environ),
        read_file=_file_reader(folder),
        seed=os.urandom(16).hex(),
        accept=[name for name, value in options.items() if value and name.startswith("accept_")],
    )


def read_valid_job_file(
    out: CommandOutput, file: str, **options: Unpack[JobFileOptions]
) -> "LoadedJobFile":
    """Read a job file. Raises CliError with its first error; the others are printed before."""
    loaded = read_job_file(file, **options)
    if loaded.errors:
        first = loaded.errors[0]
        for error in loaded.errors[1:]:
            out.note(f"caravan: {tables.job_file_error(error)}")
        raise CliError(first.code, first.message, path=first.path, file=first.file, line=first.line)
    return loaded


def add_source(body: dict[str, Any], loaded: "LoadedJobFile", bytes_max: int) -> tuple[str, ...]:
    """Put the file beside its job, unless the request is too large with it. Returns the warnings of the file."""
    assert loaded.source is not None
    body["Submission"] = msgspec.to_builtins(loaded.source)
    if (size := len(msgspec.json.encode(body))) <= bytes_max:
        return loaded.warnings
    del body["Submission"]
    text = f"job source too large: {size} bytes with its job, at most {bytes_max}; it is not kept"
    return (*loaded.warnings, text)


def validate(out: CommandOutput, *, file: str, **options: Unpack[JobFileOptions]) -> int:
    """Check a job file without a bus."""
    loaded = read_job_file(file, **options)
    ok = not loaded.errors
    errors = [JobFileError(e.path, e.line, e.message) for e in loaded.errors]
    out.result(ValidateResult(ok, loaded.job_id, tuple(loaded.warnings), errors))
    for error in loaded.errors:
        out.line(tables.job_file_error(error), "red")
    for warning in loaded.warnings:
        out.line(f"warning: {warning}", "yellow")
    if ok:
        out.line(f"{file}: job {loaded.job_id} is valid", "green")
    return 0 if ok else 1


def init(out: CommandOutput, *, file: str) -> int:
    """Write the example; an existing file is not overwritten."""
    try:
        with Path(file).open("x", encoding="utf-8") as made:
            made.write(EXAMPLE_PATH.read_text(encoding="utf-8"))
    except FileExistsError:
        raise CliError("conflict", "file exists; not overwritten", file=file) from None
    out.result(InitResult(file))
    out.line(f"wrote {file}; next: caravan job plan {file}, then caravan job run {file}")
    return 0


def _file_reader(folder: Path) -> Callable[[str], bytes]:
    """Implement `file()`: only files in the job file's folder or below."""
    top = folder.resolve()

    def read_file(name: str) -> bytes:
        path = (top / Path(name).expanduser()).resolve()
        if not path.is_relative_to(top):
            raise ValueError(f"{name!r} is outside the folder of the job file")
        return path.read_bytes()

    return read_file
