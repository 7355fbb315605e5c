"""Special cases of single blocks of a job file, and the syntax of old files.

Nomad's short forms (`distinct_hosts = true`, a task without a group, a static port, `scaling "cpu"`), inheritance of
vault and secret blocks, and a job's label as its id and name.
"""

from typing import Any

import msgspec

from shared.jobspec.hcl.blocks import ResolvedBlock
from shared.jobspec.hcl.values import Value, as_text
from shared.jobspec.nomad.base import JobBlock
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec
from shared.jobspec.nomad.placement import AffinityBlock, ConstraintBlock, Network
from shared.jobspec.strict_json import JsonObject
from shared.protocol.identity_names import DEFAULT_IDENTITY

#: Constraints in short: the attribute's name is the operator, its value the right side.
_SHORT = (
    *("version", "semver", "regexp", "set_contains", "set_contains_all", "set_contains_any"),
    *("is_set", "is_not_set"),
)
_SCALING_TYPES = {"cpu": "vertical_cpu", "mem": "vertical_mem"}


def normalize_block(struct: type[JobBlock], made: ResolvedBlock) -> ResolvedBlock:
    """Rewrite a block before it is mapped."""
    if struct is ConstraintBlock or struct is AffinityBlock:
        return _expand_constraint(made)
    if struct is TaskSpec:
        return _label_scalings(made)
    if struct is TaskGroup or struct is JobSpec:
        return _inherit_blocks(made, is_job=struct is JobSpec)
    return made


def complete_block(
    struct: type[JobBlock],
    value: JsonObject,
    made: ResolvedBlock,
    *,
    path: str,
    lines: dict[str, int],
) -> None:
    """Complete a block's JSON at `path`; `lines` holds the line of each path."""
    if struct is Network:
        _split_ports(value, path, lines)
    elif struct is TaskSpec:
        _default_identity(value, path, lines)
    elif struct is JobSpec:
        value.setdefault("Name", made.labels[0] if made.labels else value.get("ID", ""))


def _changed(made: ResolvedBlock, **parts: Any) -> ResolvedBlock:
    return msgspec.structs.replace(made, **parts)


def _expand_constraint(made: ResolvedBlock) -> ResolvedBlock:
    """Write a constraint's short form in full."""
    attributes = dict(made.attributes)

    def put(name: str, value: Value, line: int) -> None:
        attributes[name] = (value, line)

    for name in _SHORT:
        if name in attributes:
            value, line = attributes.pop(name)
            put("operator", name, line)
            put("attribute" if name.startswith("is_") else "value", value, line)
    if "distinct_hosts" in attributes:
        value, line = attributes.pop("distinct_hosts")
        put("operator", "distinct_hosts", line)
        put("value", as_text(value) if isinstance(value, bool) else value, line)
    if "distinct_property" in attributes:
        value, line = attributes.pop("distinct_property")
        put("operator", "distinct_property", line)
        put("attribute", value, line)
    return _changed(made, attributes=attributes)


def _label_scalings(made: ResolvedBlock) -> ResolvedBlock:
    """Use the label of a task's scaling block as its type."""
    blocks = []
    for block in made.blocks:
        if block.name == "scaling" and len(block.labels) == 1:
            kind = _SCALING_TYPES.get(block.labels[0].lower(), block.labels[0])
            attributes = {"type": (kind, block.line), **block.attributes}
            block = _changed(block, labels=(), attributes=attributes)  # noqa: PLW2901
        blocks.append(block)
    return _changed(made, blocks=tuple(blocks))


def _inherit_blocks(made: ResolvedBlock, *, is_job: bool) -> ResolvedBlock:
    """Pass the vault and secrets of a group or job to its tasks; put a task without a group into one."""
    shared = tuple([one for one in made.blocks if one.name in {"vault", "secret"}])
    blocks: list[ResolvedBlock] = []
    for block in made.blocks:
        if block in shared:
            continue
        if is_job and block.name == "task":
            block = ResolvedBlock("group", block.labels, {}, (block,), block.line)  # noqa: PLW2901
        if shared and block.name in {"task", "group"}:
            block = _changed(block, blocks=block.blocks + _missing_blocks(block, shared))  # noqa: PLW2901
        blocks.append(block)
    return _changed(made, blocks=tuple(blocks))


def _missing_blocks(
    block: ResolvedBlock, shared: tuple[ResolvedBlock, ...]
) -> tuple[ResolvedBlock, ...]:
    """Return the inherited blocks that a block lacks: secrets add up, its own vault wins."""
    has_vault = any(one.name == "vault" for one in block.blocks)
    return tuple([one for one in shared if one.name == "secret" or not has_vault])


def _split_ports(network: JsonObject, path: str, lines: dict[str, int]) -> None:
    """Move static ports to ReservedPorts, as in Nomad's JSON, with their lines."""
    ports = network.pop("DynamicPorts", None)
    if ports is None:
        return
    fixed = list(network.get("ReservedPorts", []))
    free: list[JsonObject] = []
    moved: dict[str, int] = {}
    for at, port in enumerate(ports):
        kind, into = ("ReservedPorts", fixed) if port.get("Value") else ("DynamicPorts", free)
        for name in ("", *(f".{one}" for one in port)):
            line = lines.get(f"{path}.DynamicPorts[{at}]{name}", 0)
            moved[f"{path}.{kind}[{len(into)}]{name}"] = line
        into.append(port)
    lines.update(moved)
    if fixed:
        network["ReservedPorts"] = fixed
    if free:
        network["DynamicPorts"] = free


def _default_identity(task: JsonObject, path: str, lines: dict[str, int]) -> None:
    """Move the identity without a name to Identity, as in Nomad's JSON, with its lines."""
    identities = task.get("Identities", [])
    names = [one.get("Name", "") or DEFAULT_IDENTITY for one in identities]
    if DEFAULT_IDENTITY not in names or "Identity" in task:
        return
    first = names.index(DEFAULT_IDENTITY)
    rest = [*identities[:first], *identities[first + 1 :]]
    task["Identity"] = identities[first]
    task.pop("Identities")
    if rest:
        task["Identities"] = rest
    moved: dict[str, int] = {}
    for at, one in enumerate(identities):
        place = "Identity" if at == first else f"Identities[{at - (at > first)}]"
        for name in ("", *(f".{key}" for key in one)):
            moved[f"{path}.{place}{name}"] = lines.get(f"{path}.Identities[{at}]{name}", 0)
    lines.update(moved)
