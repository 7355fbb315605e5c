"""A job file in a job file's own language (HCL, YAML, TOML) to Nomad's JSON, faults and lines beside it.

Decides where in a file the job stands and which references are known to nodes. Next: `load.py`, which validates.
"""

import re

import msgspec

from shared.jobspec import legacy
from shared.jobspec.hcl.document import Document, Fault, Given, Made
from shared.jobspec.hcl.errors import HclFault
from shared.jobspec.mapping import Mapped, Mapper
from shared.jobspec.nomad_json import Job

#: What only the node of a task can answer; Nomad's agents know the same.
NODE_ROOTS = frozenset(("attr", "node", "meta", "env", "device", "secret", "unique", "driver"))
#: Variables of the task's environment: NOMAD_* and those of its env block.
_ENVIRONMENT = re.compile(r"[A-Z_][A-Z0-9_]*|NOMAD_\w+")
_ROOT = "Job"


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a text. `mapped` is None where no job was found in it."""

    mapped: Mapped | None = None
    faults: list[Fault] = []
    warnings: tuple[str, ...] = ()


def read_hcl(text: str, given: Given) -> Read:
    """Read HCL."""
    document = Document(text, given)
    blocks = document.blocks()
    faults = document.faults
    jobs = [one for one in blocks if one.name == "job"]
    for one in blocks:
        if one.name != "job":
            faults.append(
                Fault(message=f"unknown block {one.name[:40]!r} beside the job", line=one.line)
            )
    for one in jobs[1:]:
        faults.append(Fault(message="a file holds one job", line=one.line))
    if not jobs:
        if not faults:
            faults.append(Fault(message='no job in the file: job "name" { … } is missing', line=1))
        return Read(faults=faults)
    return read_made(jobs[0], faults, _strange(document))


def read_made(made: Made, faults: list[Fault], warnings: tuple[str, ...] = ()) -> Read:
    """Map the block of a job."""
    try:
        mapped = Mapper(legacy.prepare, legacy.finish).job(Job, made, _ROOT)
    except (HclFault, RecursionError) as fault:
        text = fault.message if isinstance(fault, HclFault) else "nested too deep"
        return Read(faults=[*faults, Fault(message=text, line=made.line)], warnings=warnings)
    return Read(mapped=mapped, faults=[*faults, *mapped.faults], warnings=warnings)


def _strange(document: Document) -> tuple[str, ...]:
    """Name references that no node will know: most are slips."""
    found = [
        f"${{{text[:60]}}} on line {document.line_of(at)}"
        for text, at in document.world.kept.items()
        if text.partition(".")[0].partition("[")[0] not in NODE_ROOTS
        and not _ENVIRONMENT.fullmatch(text)
    ]
    if not found:
        return ()
    rest = f" and {len(found) - 10} more" if len(found) > 10 else ""
    return (f"kept as text, known neither here nor to nodes: {', '.join(found[:10])}{rest}",)


def read_structured(text: str, kind: str) -> Read:
    """Read YAML or TOML: the job itself, or an object that holds it under `job`."""
    from shared.jobspec import structured  # noqa: PLC0415 - brings PyYAML

    try:
        value, lines = (structured.read_yaml if kind == "yaml" else structured.read_toml)(text)
        return read_made(_job_of(value, lines), [])
    except structured.StructuredFault as fault:
        return Read(faults=[Fault(message=fault.message, line=fault.line)])


def read_plain(value: object) -> Read:
    """Read decoded JSON that is written like a job file (`{"job": {"name": {…}}}`)."""
    from shared.jobspec import structured  # noqa: PLC0415 - brings PyYAML

    try:
        return read_made(_job_of(value, {}), [])
    except structured.StructuredFault as fault:
        return Read(faults=[Fault(message=fault.message, line=fault.line)])


def _job_of(value: object, lines: dict[tuple[str | int, ...], int]) -> Made:
    from shared.jobspec import structured  # noqa: PLC0415 - as above

    path: tuple[str | int, ...] = ()
    for key in ("job", "Job"):
        if isinstance(value, dict) and key in value:
            value, path = value[key], (key,)
            break
    labels: tuple[str, ...] = ()
    if isinstance(value, dict) and len(value) == 1:
        ((label, inner),) = value.items()
        if isinstance(inner, dict) and path:
            value, labels, path = inner, (str(label),), (*path, label)
    if not isinstance(value, dict):
        raise structured.StructuredFault("expected an object that is a job", lines.get(path, 1))
    return structured.block_of(Job, value, name="job", labels=labels, lines=lines, path=path)
