"""Job files: the bytes of a file become a submission, or errors with file, line and path.

The file name selects the format (HCL, Nomad's JSON, YAML, TOML), otherwise the first character. JSON is accepted
with or without its `{"Job": …}` wrapper. Opens no file and reads no environment: both are arguments. The readers of
HCL and YAML are imported on first use.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import orjson

from schemas.base import JobId
from schemas.jobs import ErrorDetail, RegisterJob
from schemas.submissions import JobSource, JobText
from shared.errors import CommandInvalid
from shared.jobspec.files.json_lines import line_numbers, nearest_line
from shared.jobspec.hcl.errors import DIAGNOSTICS_MAX
from shared.jobspec.nomad.filled_job import filled_job
from shared.jobspec.strict_json import (
    JsonObject,
    canonical_json,
    read_object,
    require_known_keys,
    require_unique_keys,
)
from shared.jobspec.submission import (
    JOB_BYTES_MAX,
    JobInvalid,
    ParsedSubmission,
    read_submission,
    to_command,
)
from shared.jobspec.type_errors import type_errors

if TYPE_CHECKING:
    from shared.jobspec.files.read_hcl_yaml import ReadResult

#: A job file in its own language; what it means may be 256 KiB.
FILE_BYTES_MAX = 1024 * 1024
#: Evaluation steps of a local file: ten times the budget of a file that a role parses.
FILE_STEPS = 2_000_000
#: Bytes of a file that a role parses (`api.jobs.parse`).
PARSE_BYTES_MAX = 512 * 1024
_SUFFIXES = {
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".hcl": "hcl",
    ".nomad": "hcl",
}


class LoadedJobFile(msgspec.Struct, frozen=True, kw_only=True):
    """The result of loading a job file. `submission` is None when there are errors."""

    #: the job's id as far as it could be read.
    job_id: str = ""
    submission: ParsedSubmission | None = None
    #: body for `api.jobs.submit`.
    body: bytes = b""
    errors: tuple[ErrorDetail, ...] = ()
    warnings: tuple[str, ...] = ()
    #: the file itself, for the key `Submission` beside the job; None when there are errors.
    source: JobSource | None = None

    def register(self, submission_id: str) -> RegisterJob:
        """Create the command of a file without errors."""
        assert self.submission is not None, self.errors
        command = to_command(self.submission, submission_id)
        assert isinstance(command, RegisterJob)
        return command


class ParsedJobFile(msgspec.Struct, frozen=True, kw_only=True):
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
    accept: Collection[str] = (),
) -> LoadedJobFile:
    """Read the content of the job file called `name`.

    `variables` are those of `-var`, `var_files` names and contents in order, `env` the environment, of which
    NOMAD_VAR_* and CARAVAN_VAR_* are used. `read_file` reads the files of `file()`, and raises OSError or ValueError.
    `seed` is the seed of `uuidv4()`; empty: the function is refused. `accept` has the flags that go beside the job:
    `accept_unbuilt`, `accept_unknown`.
    """
    kind = detect_format(content, name)
    if len(content) > FILE_BYTES_MAX:
        text = f"{len(content)} bytes, at most {FILE_BYTES_MAX} are allowed"
        return LoadedJobFile(errors=(ErrorDetail(code="too_large", message=text, file=name),))
    flags = dict.fromkeys(accept, True)
    if kind != "hcl" and (variables or var_files):
        text = f"variables are for HCL files; this one is read as {kind.upper()}"
        return LoadedJobFile(errors=(ErrorDetail(code="invalid", message=text, file=name),))
    if kind == "json":
        return _with_source(_load_json(content, name, flags), content, kind)
    try:
        text = _decoded(content, name)
        given = [(file, _decoded(raw, file)) for file, raw in var_files]
    except _NotUtf8 as err:
        detail = ErrorDetail(code="invalid", message="is not UTF-8", file=err.file, line=err.line)
        return LoadedJobFile(errors=(detail,))
    from shared.jobspec.files import read_hcl_yaml  # noqa: PLC0415 - keeps HCL out of those that read JSON alone
    from shared.jobspec.hcl.document import VariableInputs  # noqa: PLC0415

    if kind == "hcl":
        outside = VariableInputs(
            variables=variables or {},
            var_files=given,
            env=env or {},
            read_file=read_file,
            seed=seed,
            steps=FILE_STEPS,
        )
        read = read_hcl_yaml.read_hcl(text, outside)
        return _with_source(
            _validate_read(read, name, flags),
            content,
            kind,
            flags={**read.env_values, **(variables or {})},
            files=[text for _, text in given],
        )
    found = _validate_read(read_hcl_yaml.read_structured(text, kind), name, flags)
    return _with_source(found, content, kind)


def _with_source(
    loaded: LoadedJobFile,
    content: bytes,
    kind: str,
    *,
    flags: Mapping[str, str] | None = None,
    files: Sequence[str] = (),
) -> LoadedJobFile:
    """Add the file itself to what it was read as, with the values of its variables."""
    if loaded.submission is None:
        return loaded
    source = JobSource(
        source=content.decode(),
        format="hcl2" if kind == "hcl" else kind,
        variable_flags=dict(flags or {}),
        variables="\n".join(files),
    )
    return msgspec.structs.replace(loaded, source=source)


class _NotUtf8(Exception):
    def __init__(self, file: str, line: int) -> None:
        super().__init__(file)
        self.file = file
        self.line = line


def _decoded(raw: bytes, file: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as err:
        raise _NotUtf8(file, raw.count(b"\n", 0, err.start) + 1) from err


def parse_request(body: bytes) -> ParsedJobFile:
    """Answer `api.jobs.parse`: HCL as it is, or in a JobText. Raises CommandInvalid, JobInvalid with all faults."""
    if len(body) > PARSE_BYTES_MAX:
        raise CommandInvalid(
            "too_large", f"{len(body)} bytes, at most {PARSE_BYTES_MAX} are allowed"
        )
    try:
        if body.lstrip()[:1] != b"{":
            return parse_text(body.decode())
        require_unique_keys(body)
        require_known_keys(body, JobText)
        asked = msgspec.json.decode(body, type=JobText)
    except UnicodeDecodeError as err:
        raise CommandInvalid("invalid", "is not UTF-8") from err
    except msgspec.DecodeError as err:
        raise CommandInvalid("invalid", f"malformed JSON: {err}") from err
    except RecursionError as err:
        raise CommandInvalid("invalid", "malformed JSON: nested too deeply") from err
    if asked.hclv1:
        raise CommandInvalid("invalid", "the first version of HCL is not read", "HCLv1")
    return parse_text(asked.job_hcl, variables=asked.variables, is_filled=asked.canonicalize)


def parse_text(text: str, *, variables: str = "", is_filled: bool = False) -> ParsedJobFile:
    """Turn HCL into Nomad's JSON, without files. `variables` is the text of a file of variables.

    `is_filled`: with defaults filled in, which needs every value to be of the right type.
    Raises JobInvalid with all faults. The job is not validated.
    """
    from shared.jobspec.files import read_hcl_yaml  # noqa: PLC0415
    from shared.jobspec.hcl.document import VariableInputs  # noqa: PLC0415

    given = VariableInputs(var_files=[("variables", variables)] if variables else [])
    read = read_hcl_yaml.read_hcl(text, given)
    if read.faults or read.mapped is None:
        raise JobInvalid(tuple(_details(read, "")))
    job = _encoded(read.mapped.value)
    if is_filled:
        try:
            job = _encoded(filled_job(job))
        except msgspec.ValidationError:
            raise JobInvalid(type_errors(read.mapped.value)) from None
    if len(job) > JOB_BYTES_MAX:
        text = f"the job has {len(job)} bytes, at most {JOB_BYTES_MAX} are allowed"
        raise CommandInvalid("too_large", text, "Job")
    return ParsedJobFile(job=job, warnings=read.warnings)


def detect_format(content: bytes, name: str) -> str:
    """Tell the format: hcl, json, yaml or toml."""
    lower = name.lower()
    for suffix, kind in _SUFFIXES.items():
        if lower.endswith(suffix):
            return kind
    return "json" if content.lstrip()[:1] == b"{" or not content.strip() else "hcl"


def _load_json(content: bytes, name: str, flags: JsonObject) -> LoadedJobFile:
    job_id = ""
    is_wrapped = True
    try:
        value, text = read_object(content)
        if "Job" not in value:
            if isinstance(value.get("job"), dict) and "TaskGroups" not in value:
                from shared.jobspec.files import read_hcl_yaml  # noqa: PLC0415

                return _validate_read(read_hcl_yaml.read_plain_json(value), name, flags)
            is_wrapped = False
            value = {"Job": value}
        if flags or not is_wrapped:
            text = canonical_json(value | flags)
        job_id = _id_of(value)
        submission = read_submission(text, "submit")
    except JobInvalid as err:
        lines = line_numbers(content.decode(), "" if is_wrapped else "Job")
        errors = [
            msgspec.structs.replace(one, file=name, line=nearest_line(lines, one.path))
            for one in err.errors
        ]
        return LoadedJobFile(job_id=job_id, errors=tuple(errors))
    except CommandInvalid as err:
        line = getattr(err.__cause__, "lineno", 0)
        detail = ErrorDetail(
            code=err.code, message=err.message, path=err.path, file=name, line=line
        )
        return LoadedJobFile(job_id=job_id, errors=(detail,))
    return LoadedJobFile(
        job_id=job_id, submission=submission, body=text, warnings=submission.warnings
    )


def _id_of(value: JsonObject) -> str:
    inner = value["Job"]
    found = inner.get("ID") if isinstance(inner, dict) else None
    return JobId(found) if isinstance(found, str) else ""


def _encoded(value: JsonObject) -> bytes:
    """Encode a job. Raises CommandInvalid for what JSON cannot hold."""
    try:
        return canonical_json(value)
    except (TypeError, orjson.JSONEncodeError, RecursionError) as err:
        raise CommandInvalid("invalid", f"cannot be written as JSON: {err}", "Job") from err


def _details(read: "ReadResult", name: str) -> list[ErrorDetail]:
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


def _validate_read(read: "ReadResult", name: str, flags: JsonObject) -> LoadedJobFile:
    """Validate the job that was read, and report all errors together."""
    errors = _details(read, name)
    if read.mapped is None:
        return LoadedJobFile(errors=tuple(errors[:DIAGNOSTICS_MAX]))
    mapped = read.mapped
    found = mapped.value.get("ID")
    job_id = found if isinstance(found, str) else ""
    try:
        text = read_object(_encoded({"Job": mapped.value, **flags}))[1]
        submission: ParsedSubmission | None = read_submission(text, "submit")
    except CommandInvalid as err:
        lone = ErrorDetail(code=err.code, message=err.message, path=err.path)
        details = err.errors if isinstance(err, JobInvalid) else (lone,)
        errors += [
            msgspec.structs.replace(one, file=name, line=nearest_line(mapped.lines, one.path))
            for one in details
            if not _is_consequence(one.path, mapped.broken)
        ]
        submission, text = None, b""
    if errors:
        return LoadedJobFile(job_id=job_id, errors=tuple(errors[:DIAGNOSTICS_MAX]))
    assert submission is not None
    return LoadedJobFile(
        job_id=job_id,
        submission=submission,
        body=text,
        warnings=submission.warnings + read.warnings,
    )


def _is_consequence(path: str, broken: set[str]) -> bool:
    """Return whether an error only reports a missing value whose own error is reported."""
    return any(one == path or one.startswith(path + ".") or path.startswith(one) for one in broken)
