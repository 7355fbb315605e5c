"""What is special to single blocks of a job file, and the shapes of old files.

Decides Nomad's short forms (`distinct_hosts = true`, a task without a group, a static port, `scaling "cpu"`), where a
vault or secret of an outer block goes, and that a job's label is its id and name. Next: `mapping.py`.
"""

from typing import Any

import msgspec

from shared.jobspec.hcl.document import Made
from shared.jobspec.hcl.values import Value, as_text
from shared.jobspec.mapping import Mapper
from shared.jobspec.nomad_base import Json
from shared.jobspec.nomad_json import Job, Task, TaskGroup
from shared.jobspec.nomad_placement import Affinity, Constraint, Network
from shared.jobspec.strict import JsonObject

#: Constraints in short: the attribute's name is the operator, its value the right side.
_SHORT = (
    *("version", "semver", "regexp", "set_contains", "set_contains_all", "set_contains_any"),
    *("is_set", "is_not_set"),
)
_SCALING_TYPES = {"cpu": "vertical_cpu", "mem": "vertical_mem"}


def prepare(struct: type[Json], made: Made) -> Made:
    """Rewrite a block before it is mapped."""
    if struct is Constraint or struct is Affinity:
        return _spelled_out(made)
    if struct is Task:
        return _scalings(made)
    if struct is TaskGroup or struct is Job:
        return _for_tasks(made, is_job=struct is Job)
    return made


def finish(mapper: Mapper, struct: type[Json], value: JsonObject, made: Made, *, path: str) -> None:
    """Complete a block's JSON, which stands at `path`."""
    if struct is Network:
        _split_ports(value, path, mapper.mapped.lines)
    elif struct is Task:
        _default_identity(value)
    elif struct is Job:
        value.setdefault("Name", made.labels[0] if made.labels else value.get("ID", ""))


def _changed(made: Made, **parts: Any) -> Made:
    return msgspec.structs.replace(made, **parts)


def _spelled_out(made: Made) -> Made:
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


def _scalings(made: Made) -> Made:
    """Make the label of a task's scaling block its type."""
    blocks = []
    for block in made.blocks:
        if block.name == "scaling" and len(block.labels) == 1:
            kind = _SCALING_TYPES.get(block.labels[0].lower(), block.labels[0])
            attributes = {"type": (kind, block.line), **block.attributes}
            block = _changed(block, labels=(), attributes=attributes)  # noqa: PLW2901
        blocks.append(block)
    return _changed(made, blocks=tuple(blocks))


def _for_tasks(made: Made, *, is_job: bool) -> Made:
    """Hand a group's or job's vault and secrets to its tasks; make a group of a task that stands alone."""
    shared = tuple([one for one in made.blocks if one.name in {"vault", "secret"}])
    blocks: list[Made] = []
    for block in made.blocks:
        if block in shared:
            continue
        if is_job and block.name == "task":
            block = Made("group", block.labels, {}, (block,), block.line)  # noqa: PLW2901
        if shared and block.name in {"task", "group"}:
            block = _changed(block, blocks=block.blocks + _lacking(block, shared))  # noqa: PLW2901
        blocks.append(block)
    return _changed(made, blocks=tuple(blocks))


def _lacking(block: Made, shared: tuple[Made, ...]) -> tuple[Made, ...]:
    """Pick what a block does not have itself: secrets add up, a vault of its own wins."""
    has_vault = any(one.name == "vault" for one in block.blocks)
    return tuple([one for one in shared if one.name == "secret" or not has_vault])


def _split_ports(network: JsonObject, path: str, lines: dict[str, int]) -> None:
    """Put ports with a number apart, as Nomad's JSON has them; their lines go with them."""
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


def _default_identity(task: JsonObject) -> None:
    """Put the identity without a name apart, as Nomad's JSON has it."""
    identities = task.get("Identities", [])
    for one in identities:
        if one.get("Name", "") in {"", "default"}:
            task["Identity"] = one
            rest = [other for other in identities if other is not one]
            task.pop("Identities")
            if rest:
                task["Identities"] = rest
            return
