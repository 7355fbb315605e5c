"""Job files: a file's bytes become a submission, or faults with file, line and path.

Decides the format by the name: HCL, Nomad's JSON, YAML, TOML; without a telling name by the first character. JSON is
accepted with or without its `{"Job": …}` wrapper. Must not know the bus, open a file or read the environment: what a
file may ask for comes as arguments. HCL and YAML are imported when a file of theirs comes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import orjson

from schemas.base import JobId
from schemas.jobs import ErrorDetail, RegisterJob
from schemas.submissions import JobText
from shared.errors import CommandInvalid
from shared.jobspec.hcl.errors import FAULTS_MAX
from shared.jobspec.json_places import lines_of, nearest
from shared.jobspec.strict import JsonObject, canonical, read_object
from shared.jobspec.submission import (
    JOB_BYTES_MAX,
    JobInvalid,
    Submission,
    command_of,
    read_submission,
)

if TYPE_CHECKING:
    from shared.jobspec.reading import Read

#: A job file in its own language; what it means may be 256 KiB.
FILE_BYTES_MAX = 1024 * 1024
#: Steps of working out one's own file, ten times what a role grants to others.
FILE_STEPS = 2_000_000
#: What a role parses for others, while they wait.
PARSE_BYTES_MAX = 512 * 1024
_SUFFIXES = {
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".hcl": "hcl",
    ".nomad": "hcl",
}


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job file. `submission` is None when there are errors."""

    #: the job's id as far as it could be read.
    job_id: str = ""
    submission: Submission | None = None
    #: body for `api.jobs.submit`.
    body: bytes = b""
    errors: tuple[ErrorDetail, ...] = ()
    warnings: tuple[str, ...] = ()

    def register(self, submission_id: str) -> RegisterJob:
        """Make the command of a file without errors."""
        assert self.submission is not None, self.errors
        command = command_of(self.submission, submission_id)
        assert isinstance(command, RegisterJob)
        return command


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """A job file as Nomad's JSON: canonical, not validated."""

    job: bytes
    warnings: tuple[str, ...] = ()


def load_file(
    content: bytes,
    name: str = "",
    *,
    variables: Mapping[str, str] | None = None,
    var_files: Sequence[tuple[str, bytes]] = (),
    env: Mapping[str, str] | None = None,
    read_file: Callable[[str], bytes] | None = None,
    seed: str = "",
) -> Loaded:
    """Read the content of the job file called `name`.

    `variables` are those of `-var`, `var_files` names and contents in order, `env` the environment, of which
    NOMAD_VAR_* and CARAVAN_VAR_* are looked at. `read_file` answers `file()`: it raises OSError or ValueError for what
    it does not give. `seed` is what `uuidv4()` draws from; empty: it is refused.
    """
    kind = kind_of_file(content, name)
    if len(content) > FILE_BYTES_MAX:
        text = f"{len(content)} bytes, at most {FILE_BYTES_MAX} are read"
        return Loaded(errors=(ErrorDetail(code="too_large", message=text, file=name),))
    if kind == "json":
        return _load_json(content, name)
    try:
        text = content.decode()
        given = [(file, raw.decode()) for file, raw in var_files]
    except UnicodeDecodeError as err:
        line = content.count(b"\n", 0, err.start) + 1
        detail = ErrorDetail(code="invalid", message="is not UTF-8", file=name, line=line)
        return Loaded(errors=(detail,))
    from shared.jobspec import reading  # noqa: PLC0415 - keeps HCL out of those that read JSON alone
    from shared.jobspec.hcl.document import Given  # noqa: PLC0415

    if kind == "hcl":
        outside = Given(
            variables=variables or {},
            var_files=given,
            env=env or {},
            read_file=read_file,
            seed=seed,
            steps=FILE_STEPS,
        )
        return _loaded(reading.read_hcl(text, outside), name)
    return _loaded(reading.read_structured(text, kind), name)


def parse_request(body: bytes) -> Parsed:
    """Answer `api.jobs.parse`: HCL as it is, or in a JobText. Raises CommandInvalid, JobInvalid with all faults."""
    if len(body) > PARSE_BYTES_MAX:
        raise CommandInvalid("too_large", f"{len(body)} bytes, at most {PARSE_BYTES_MAX} are read")
    try:
        if body.lstrip()[:1] != b"{":
            return parse_text(body.decode())
        asked = msgspec.json.decode(body, type=JobText)
    except UnicodeDecodeError as err:
        raise CommandInvalid("invalid", "is not UTF-8") from err
    except msgspec.DecodeError as err:
        raise CommandInvalid("invalid", f"malformed JSON: {err}") from err
    return parse_text(asked.job_hcl, variables=asked.variables)


def parse_text(text: str, *, variables: str = "") -> Parsed:
    """Turn HCL into Nomad's JSON, without files. `variables` is the text of a file of variables.

    Raises JobInvalid with all faults. The job is not validated.
    """
    from shared.jobspec import reading  # noqa: PLC0415
    from shared.jobspec.hcl.document import Given  # noqa: PLC0415

    given = Given(var_files=[("variables", variables)] if variables else [])
    read = reading.read_hcl(text, given)
    if read.faults or read.mapped is None:
        raise JobInvalid(tuple(_details(read, "")))
    job = _encoded(read.mapped.value)
    if len(job) > JOB_BYTES_MAX:
        text = f"the job has {len(job)} bytes, at most {JOB_BYTES_MAX} are allowed"
        raise CommandInvalid("too_large", text, "Job")
    return Parsed(job=job, warnings=read.warnings)


def kind_of_file(content: bytes, name: str) -> str:
    """Tell the format: hcl, json, yaml or toml."""
    lower = name.lower()
    for suffix, kind in _SUFFIXES.items():
        if lower.endswith(suffix):
            return kind
    return "json" if content.lstrip()[:1] == b"{" or not content.strip() else "hcl"


def _load_json(content: bytes, name: str) -> Loaded:
    job_id = ""
    is_wrapped = True
    try:
        value, text = read_object(content)
        if "Job" not in value:
            if isinstance(value.get("job"), dict) and "TaskGroups" not in value:
                from shared.jobspec import reading  # noqa: PLC0415

                return _loaded(reading.read_plain(value), name)
            is_wrapped = False
            value = {"Job": value}
            text = canonical(value)
        job_id = _id_of(value)
        submission = read_submission(text, "submit")
    except JobInvalid as err:
        lines = lines_of(content.decode(), "" if is_wrapped else "Job")
        errors = [
            msgspec.structs.replace(one, file=name, line=nearest(lines, one.path))
            for one in err.errors
        ]
        return Loaded(job_id=job_id, errors=tuple(errors))
    except CommandInvalid as err:
        line = getattr(err.__cause__, "lineno", 0)
        detail = ErrorDetail(
            code=err.code, message=err.message, path=err.path, file=name, line=line
        )
        return Loaded(job_id=job_id, errors=(detail,))
    return Loaded(job_id=job_id, submission=submission, body=text, warnings=submission.warnings)


def _id_of(value: JsonObject) -> str:
    inner = value["Job"]
    found = inner.get("ID") if isinstance(inner, dict) else None
    return JobId(found) if isinstance(found, str) else ""


def _encoded(value: JsonObject) -> bytes:
    """Encode a job. Raises CommandInvalid for what JSON cannot hold."""
    try:
        return canonical(value)
    except (TypeError, orjson.JSONEncodeError, RecursionError) as err:
        raise CommandInvalid("invalid", f"cannot be written as JSON: {err}", "Job") from err


def _details(read: "Read", name: str) -> list[ErrorDetail]:
    return [
        ErrorDetail(
            code="invalid",
            message=one.message,
            path=one.path,
            file=one.file or name,
            line=one.line,
        )
        for one in read.faults
    ]


def _loaded(read: "Read", name: str) -> Loaded:
    """Validate what was read, and tell all faults together."""
    errors = _details(read, name)
    if read.mapped is None:
        return Loaded(errors=tuple(errors[:FAULTS_MAX]))
    mapped = read.mapped
    found = mapped.value.get("ID")
    job_id = found if isinstance(found, str) else ""
    try:
        text = read_object(_encoded({"Job": mapped.value}))[1]
        submission: Submission | None = read_submission(text, "submit")
    except CommandInvalid as err:
        lone = ErrorDetail(code=err.code, message=err.message, path=err.path)
        details = err.errors if isinstance(err, JobInvalid) else (lone,)
        errors += [
            msgspec.structs.replace(one, file=name, line=nearest(mapped.lines, one.path))
            for one in details
            if not _follows(one.path, mapped.broken)
        ]
        submission, text = None, b""
    if errors:
        return Loaded(job_id=job_id, errors=tuple(errors[:FAULTS_MAX]))
    assert submission is not None
    return Loaded(
        job_id=job_id,
        submission=submission,
        body=text,
        warnings=submission.warnings + read.warnings,
    )


def _follows(path: str, broken: set[str]) -> bool:
    """Tell whether a fault only says that a value is missing whose own fault is told."""
    return any(one == path or one.startswith(path + ".") or path.startswith(one) for one in broken)
