"""Compiles the host volumes of a group: which nodes have them, and what an allocation holds of them.

A volume that is written to is a pool of its node, `volume.NAME`, with one unit: a single writer holds all of it, each
other writer a small part. So a single writer is alone with its allocation, and nothing but the end of that frees the
volume. Readers hold nothing.
"""

from schemas.jobs import ResourceAsk, VolumeAsk
from shared.jobspec.amounts import PARTS_PER_UNIT
from shared.jobspec.checks.volume_requests import SINGLE_WRITER
from shared.jobspec.compile.group_ask import AskList
from shared.jobspec.nomad.job import TaskGroup
from shared.jobspec.nomad.placement import ConstraintBlock

#: Name of the attribute, and of the pool, of a volume.
VOLUME = "volume."
_WRITER_PARTS = 1


def volume_constraints(group: TaskGroup) -> tuple[ConstraintBlock, ...]:
    """Make constraints of the volumes that are the same for each allocation: one that is written must be writable."""
    return tuple(
        ConstraintBlock(
            left=f"${{attr.{VOLUME}{one.source}}}",
            operator="is_set" if one.read_only else "=",
            right="" if one.read_only else "rw",
        )
        for _, one in sorted(group.volumes.items())
        if one.type == "host" and not one.per_alloc
    )


def with_volume_asks(group: TaskGroup, alternatives: tuple[AskList, ...]) -> tuple[AskList, ...]:
    """Add what an allocation holds of volumes to each alternative."""
    parts: dict[str, int] = {}
    for one in group.volumes.values():
        if one.type == "host" and not (one.read_only or one.per_alloc):
            mine = PARTS_PER_UNIT if one.access_mode == SINGLE_WRITER else _WRITER_PARTS
            parts[one.source] = max(mine, parts.get(one.source, 0))
    if not parts:
        return alternatives
    asks = tuple(ResourceAsk(pool=VOLUME + name, amount=parts[name]) for name in sorted(parts))
    return tuple((*one, *asks) for one in alternatives or ((),))


def indexed_volumes(group: TaskGroup) -> tuple[VolumeAsk, ...]:
    """List the volumes whose node depends on the index of the allocation, without duplicates."""
    found = [
        VolumeAsk(
            source=one.source,
            read_only=one.read_only,
            per_alloc=one.per_alloc,
            sticky=one.sticky,
            is_exclusive=one.access_mode == SINGLE_WRITER,
        )
        for _, one in sorted(group.volumes.items())
        if one.type == "host" and (one.per_alloc or one.sticky)
    ]
    return tuple(dict.fromkeys(found))
