"""`caravan volume create`, `list`, `status` and `delete`: host volumes that are created by request."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

import msgspec

from schemas.host_volumes import VolumeCapability, VolumeSpec
from schemas.operator import CreateVolumeRequest, DeleteVolumeRequest
from schemas.projections import Query
from schemas.volume_answers import VolumeLine, VolumesAnswer
from services.cli.runtime import tables
from services.cli.runtime.bus_client import query_once, query_pages
from services.cli.runtime.operator_client import OperatorResult, request_verdict
from services.cli.runtime.output import (
    CliError,
    CommandOutput,
    parse_pairs,
    result_from,
    short_id,
)
from shared.display.formats import format_size
from shared.errors import CommandInvalid
from shared.jobspec.volume_spec import READERS, AskedVolume, read_size

STDIN = "-"
#: A plugin gets 60 s; the agent may have been told late.
WAIT_S, _POLL_S = 75.0, 0.2
_CANDIDATES_MAX = 10


class VolumeCreateResult(OperatorResult, frozen=True):
    """`volume create --json`. `volume_status`: as in `query.volumes`."""

    volume: str
    name: str
    node: str
    volume_status: str
    reason: str
    path: str


class VolumeDeleteResult(OperatorResult, frozen=True):
    """`volume delete --json`. `volume_status`: deleted, or deleting while its node has not said so."""

    volume: str
    volume_status: str
    reason: str


def create(
    out: CommandOutput,
    *,
    file: str,
    spec_format: str,
    volume_id: str,
    name: str,
    node_id: str,
    node_pool: str,
    plugin: str,
    capacity_min: str,
    capacity_max: str,
    access_mode: Sequence[str],
    parameter: Sequence[str],
    detach: bool,
) -> int:
    """Create a volume, and wait until its node has made it."""
    asked = _read(file, spec_format) if file else AskedVolume(spec=VolumeSpec(id="", name=""))
    spec = asked.spec
    over = {
        "id": volume_id or asked.id or str(uuid4()),
        "name": name or spec.name,
        "node_pool": node_pool or spec.node_pool,
        "plugin": plugin or spec.plugin,
        "capacity_min_bytes": _size("--capacity-min", capacity_min) or spec.capacity_min_bytes,
        "capacity_max_bytes": _size("--capacity-max", capacity_max) or spec.capacity_max_bytes,
        "parameters": {**spec.parameters, **parse_pairs(parameter, "--parameter")},
        "capabilities": tuple(VolumeCapability(access_mode=one) for one in access_mode)
        or spec.capabilities,
    }
    spec = msgspec.structs.replace(spec, **over)
    if not spec.name:
        raise CliError("usage", "a specification, or --name and --access-mode, is required")
    body = CreateVolumeRequest(spec=spec, node_id=node_id or asked.node_id, request_id=str(uuid4()))
    verdict = request_verdict(body)
    found = _find_exact(spec.id)
    if not detach:
        found = _wait_for(spec.id, lambda one: one is None or one.status != "pending")
    if found is None:
        raise CliError("not_found", f"volume {spec.id} is gone again")
    fields = {"volume": found.id, "name": found.name, "node": found.node_id, "path": found.path}
    fields |= {"volume_status": found.status, "reason": found.reason}
    out.result(result_from(VolumeCreateResult, verdict, **fields))
    where = f"volume {found.name} ({found.id}) on node {found.node_id}"
    if found.status == "failed":
        out.line(f"{where} failed: {found.reason}")
        out.note(f"delete it, or try again: caravan volume create … --id {found.id}")
        return 1
    is_ready = found.status == "ready"
    out.line(f"{where} is {found.status}" + (f": {found.path}" if is_ready else ""))
    return 0 if is_ready or detach else 2


def list_all(out: CommandOutput, *, node_id: str, status: str, limit: int) -> int:
    """List volumes by name."""
    query = Query(limit=limit, node_id=node_id, status=status)
    answer = query_pages("volumes", VolumesAnswer, query, "volumes")
    rows = [
        (
            short_id(one.id),
            one.name,
            short_id(one.node_id),
            one.plugin,
            one.status,
            len(one.alloc_ids),
        )
        for one in answer.volumes
    ]
    columns = "ID|NAME|NODE|PLUGIN|STATUS|ALLOCATIONS"
    return tables.print_list(out, answer, columns, rows, total=answer.total, what="volumes")


def show(out: CommandOutput, *, volume: str) -> int:
    """Show one volume."""
    one = _find(volume)
    out.result(one)
    sizes = (one.capacity_min_bytes, one.capacity_max_bytes, one.capacity_bytes)
    least, most, has = (format_size(size) if size else "-" for size in sizes)
    modes = ", ".join(f"{mode.access_mode} {mode.attachment_mode}" for mode in one.capabilities)
    pairs = [
        ("ID", one.id),
        ("Name", one.name),
        ("Status", f"{one.status}: {one.reason}" if one.reason else one.status),
        ("Node", f"{one.node_id} {one.node_name}".strip()),
        ("Node pool", one.node_pool),
        ("Plugin", one.plugin),
        ("Path", one.path or "-"),
        ("Capacity", f"{has} (asked: {least} to {most})"),
        ("Access", modes),
        ("Allocations", ", ".join(map(short_id, one.alloc_ids)) or "-"),
    ]
    pairs += [(f"Parameter {name}", value) for name, value in sorted(one.parameters.items())]
    pairs += [("Constraint", f"{c.left} {c.operator} {c.right}") for c in one.constraints]
    out.fields(pairs)
    return 0


def delete(out: CommandOutput, *, volume: str, force: bool, detach: bool) -> int:
    """Delete a volume, and wait until its node has."""
    one = _find(volume)
    body = DeleteVolumeRequest(volume_id=one.id, force=force, request_id=str(uuid4()))
    verdict = request_verdict(body)
    left = _find_exact(one.id)
    if not detach:
        left = _wait_for(one.id, lambda found: found is None or bool(found.reason))
    status, reason = ("deleted", "") if left is None else (left.status, left.reason)
    fields = {"volume": one.id, "volume_status": status, "reason": reason}
    out.result(result_from(VolumeDeleteResult, verdict, **fields))
    text = f"volume {one.name} ({one.id}) is {status}"
    out.line(f"{text}: {reason}" if reason else text)
    return 0 if left is None or detach else 2


def _read(file: str, spec_format: str) -> AskedVolume:
    """Read a specification. Raises CliError, OSError."""
    content = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    kind = spec_format or Path(file).suffix.removeprefix(".") or "hcl"
    if kind not in READERS:
        raise CliError(
            "usage", "the file must end with .hcl or .json, or --in must say which it is"
        )
    try:
        return READERS[kind](content.decode())
    except UnicodeDecodeError:
        raise CliError("invalid", "is not UTF-8", file=file) from None
    except CommandInvalid as err:
        raise CliError(err.code, err.message, path=err.path, file=file) from None


def _size(flag: str, text: str) -> int:
    if not text:
        return 0
    size = read_size(text)
    if size is None:
        raise CliError(
            "usage", f"{flag} must be a number of bytes, or a text as 10GiB, was {text!r}"
        )
    return size


def _find_exact(volume_id: str) -> VolumeLine | None:
    answer = query_once("volumes", VolumesAnswer, Query(id=volume_id))
    return next((one for one in answer.volumes if one.id == volume_id), None)


def _find(text: str) -> VolumeLine:
    """Find a volume by its id, a unique prefix of it, or its name. Raises CliError."""
    query = Query()
    every = query_pages("volumes", VolumesAnswer, query, "volumes").volumes
    found = [one for one in every if text and one.id.startswith(text)]
    found = found or [one for one in every if one.name == text]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CliError("not_found", f"there is no volume {text!r}")
    named = ", ".join(f"{one.id} ({one.name})" for one in found[:_CANDIDATES_MAX])
    raise CliError(
        "ambiguous", f"{text!r} is the beginning or the name of {len(found)} volumes: {named}"
    )


def _wait_for(volume_id: str, is_over: Callable[[VolumeLine | None], bool]) -> VolumeLine | None:
    """Ask until it is so, or the time is over."""
    ends_s = time.monotonic() + WAIT_S
    found = _find_exact(volume_id)
    while not is_over(found) and time.monotonic() < ends_s:
        time.sleep(_POLL_S)
        found = _find_exact(volume_id)
    return found
