"""Reads the job of an HCL, YAML or TOML file into Nomad's JSON, with errors and lines.

Finds the job in the file, and warns of references that nodes do not know. Next: `load.py`, which validates.
"""

import re
from typing import Any

import msgspec

from shared.jobspec.files.block_mapper import BlockMapper, MappedBlock
from shared.jobspec.hcl.blocks import Diagnostic, LineNumbers, ResolvedBlock
from shared.jobspec.hcl.document import Document, VariableInputs
from shared.jobspec.hcl.errors import DEPTH_MAX, HclError, StructuredTextError
from shared.jobspec.nomad.base import JobBlock
from shared.jobspec.nomad.block_schema import FieldSchema, block_schema
from shared.jobspec.nomad.job import JobSpec

#: Roots of references that the node of the task resolves, as in Nomad.
NODE_ROOTS = frozenset(("attr", "node", "meta", "env", "device", "secret", "unique", "driver"))
#: What `node` has on every node.
_OF_NODE = frozenset(("unique.id", "unique.name", "datacenter", "region", "class", "pool"))
#: Variables of the task's environment: NOMAD_* and those of its env block.
_ENVIRONMENT = re.compile(r"[A-Z_][A-Z0-9_]*|NOMAD_\w+")
_ROOT = "Job"


class ReadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading a text. `mapped` is None where it holds no job."""

    mapped: MappedBlock | None = None
    faults: list[Diagnostic] = []
    warnings: tuple[str, ...] = ()
    #: variables that the environment set.
    env_values: dict[str, str] = {}


def read_hcl(text: str, given: VariableInputs) -> ReadResult:
    """Read HCL."""
    document = Document(text, given)
    blocks = document.blocks()
    faults = document.faults
    jobs = [one for one in blocks if one.name == "job"]
    for one in blocks:
        if one.name != "job":
            faults.append(
                Diagnostic(
                    message=f"unknown block {one.name[:40]!r} next to the job", line=one.line
                )
            )
    for one in jobs[1:]:
        faults.append(Diagnostic(message="only one job is allowed in a file", line=one.line))
    if not jobs:
        if not faults:
            faults.append(
                Diagnostic(message='no job in the file: job "name" { … } is missing', line=1)
            )
        return ReadResult(faults=faults)
    found = map_job_block(jobs[0], faults, _unknown_references(document))
    return msgspec.structs.replace(found, env_values=document.env_values)


def map_job_block(
    made: ResolvedBlock, faults: list[Diagnostic], warnings: tuple[str, ...] = ()
) -> ReadResult:
    """Map the block of a job."""
    try:
        mapped = BlockMapper().job(JobSpec, made, _ROOT)
    except (HclError, RecursionError) as fault:
        text = fault.message if isinstance(fault, HclError) else "nested too deeply"
        return ReadResult(
            faults=[*faults, Diagnostic(message=text, line=made.line)], warnings=warnings
        )
    return ReadResult(mapped=mapped, faults=[*faults, *mapped.faults], warnings=warnings)


def _is_known(reference: str) -> bool:
    """Say whether a node may resolve a reference; its attributes, metadata and what a task inherits are the node's."""
    root, dot, name = reference.partition(".")
    if dot and root == "node":
        return name in _OF_NODE
    if dot and root == "env":
        return False
    return root.partition("[")[0] in NODE_ROOTS or _ENVIRONMENT.fullmatch(reference) is not None


def _unknown_references(document: Document) -> tuple[str, ...]:
    """Warn of references that no node can resolve."""
    found = [
        f"${{{text[:60]}}} on line {document.line_of(at)}"
        for text, at in document.world.kept.items()
        if not _is_known(text)
    ]
    if not found:
        return ()
    rest = f" and {len(found) - 10} more" if len(found) > 10 else ""
    return (f"unknown references, kept as text: {', '.join(found[:10])}{rest}",)


def read_structured(text: str, kind: str) -> ReadResult:
    """Read YAML or TOML: the job itself, or an object that holds it under `job`."""
    from shared.jobspec.files import yaml_toml  # noqa: PLC0415 - brings PyYAML

    try:
        value, lines = (yaml_toml.read_yaml if kind == "yaml" else yaml_toml.read_toml)(text)
        return map_job_block(_job_of(value, lines), [])
    except StructuredTextError as fault:
        return ReadResult(faults=[Diagnostic(message=fault.message, line=fault.line)])


def read_plain_json(value: object) -> ReadResult:
    """Read decoded JSON that is written like a job file (`{"job": {"name": {…}}}`)."""
    try:
        return map_job_block(_job_of(value, {}), [])
    except StructuredTextError as fault:
        return ReadResult(faults=[Diagnostic(message=fault.message, line=fault.line)])


def _job_of(value: object, lines: dict[tuple[str | int, ...], int]) -> ResolvedBlock:
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
        raise StructuredTextError("expected a job object", lines.get(path, 1))
    return to_block(JobSpec, value, name="job", labels=labels, lines=lines, path=path)


def to_block(
    struct: type[JobBlock],
    value: dict[str, Any],
    *,
    name: str,
    labels: tuple[str, ...] = (),
    lines: LineNumbers,
    path: tuple[str | int, ...] = (),
) -> ResolvedBlock:
    """Create a block from an object, in the shape of its Struct. Raises StructuredTextError."""
    if len(path) > 2 * DEPTH_MAX:
        raise StructuredTextError("nested too deeply")
    shape = block_schema(struct)
    attributes: dict[str, tuple[Any, int]] = {}
    blocks: list[ResolvedBlock] = []
    for key, item in value.items():
        here = (*path, key)
        field = shape.names.get(key) or shape.names.get(key.removesuffix("s"))
        if field is None or field.inner is None or not isinstance(item, dict | list):
            attributes[key if field is None else field.hcl] = (item, lines.get(here, 0))
            continue
        blocks += _blocks(field, item, here, lines)
    return ResolvedBlock(name, labels, attributes, tuple(blocks), lines.get(path, 0))


def _blocks(
    field: FieldSchema, value: Any, path: tuple[str | int, ...], lines: LineNumbers
) -> list[ResolvedBlock]:
    """Read the blocks of a field: one object, a list of them, or objects by label."""
    assert field.inner is not None
    inner = field.inner
    if isinstance(value, dict):
        if inner.LABEL and value and all(isinstance(one, dict | list) for one in value.values()):
            return [
                msgspec.structs.replace(made, labels=(label,))
                for label, one in value.items()
                for made in _blocks(
                    field, one if isinstance(one, list) else [one], (*path, label), lines
                )
            ]
        value = [value]
        paths: list[tuple[str | int, ...]] = [path]
    else:
        paths = [(*path, at) for at in range(len(value))]
    found: list[ResolvedBlock] = []
    for one, here in zip(value, paths, strict=True):
        if not isinstance(one, dict):
            raise StructuredTextError(f"{path[-1]} must contain objects", lines.get(here, 0))
        known = here if here in lines else path
        found.append(to_block(inner, one, name=field.hcl, lines=lines, path=known))
    return found
