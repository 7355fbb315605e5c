"""`caravan job plan`: what running a job file would change, computed by the view without storing anything."""

import functools
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Unpack

import msgspec

from schemas.job_answers import (
    FieldChange,
    GroupPlan,
    NodePlan,
    PlanAnswer,
    UnplacedLine,
    VictimLine,
)
from services.cli.job import files
from services.cli.runtime.bus_client import query_view_bytes, with_bus
from services.cli.runtime.output import CommandOutput, result_from, short_id
from shared.bus.connection.public_client import Client
from shared.display.formats import count_noun
from shared.durations import write_in_one_unit
from shared.jobspec.nomad.base import JobBlock

_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "edited": ("~", "yellow")}
#: Longer values are cut in lines for people.
_VALUE_MAX = 60
_ROWS_MAX = 20


class JobPlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """`job plan --json`."""

    job: str
    version: int
    modify_index: int
    changes: bool
    touches_allocations: bool
    diff: tuple[FieldChange, ...]
    groups: dict[str, GroupPlan]
    nodes: tuple[NodePlan, ...]
    #: allocations of jobs with a lower priority that would be evicted.
    victims: tuple[VictimLine, ...]
    unplaced: dict[str, UnplacedLine]
    seq: int
    cluster_id: str
    warnings: tuple[str, ...]


def plan(out: CommandOutput, *, file: str, **options: Unpack[files.JobFileOptions]) -> int:
    """Show the plan; exit 1 if allocations would be created or stopped, else 0."""
    loaded = files.read_valid_job_file(out, file, **options)

    async def work(client: Client) -> PlanAnswer:
        return await query_view_bytes(client, "plan", PlanAnswer, loaded.body)

    answer = with_bus(work)
    warnings = tuple(dict.fromkeys((*loaded.warnings, *answer.warnings)))
    out.result(result_from(JobPlanResult, answer, job=answer.job_id, warnings=warnings))
    for warning in warnings:
        out.line(f"warning: {warning}", "yellow")
    if answer.changes:
        _show(out, file, answer)
    else:
        out.line(f"job {answer.job_id}: no changes", "green")
        print_unplaced(out, answer.unplaced)
    return int(answer.touches_allocations)


def _show(out: CommandOutput, file: str, answer: PlanAnswer) -> None:
    is_new = not answer.modify_index
    out.line(f"job {answer.job_id}: " + ("new" if is_new else f"version {answer.version}"), "bold")
    if not is_new:
        print_changes(out, answer.diff)
    for name, group in sorted(answer.groups.items()):
        out.line(f"group {name}: {group_changes(group)}")
        if pace := group_pace(group):
            out.line(f"  {pace}")
        for text in group_steps(group):
            out.line(f"    {text}")
    for text in answer.gates:
        out.line(f"waits for {text}", "yellow")
    out.line()
    rows = [(one.node, one.count, f"{one.score:.3f}") for one in answer.nodes]
    out.table("NODE|PLACED>|SCORE>", rows, limit=_ROWS_MAX)
    print_victims(out, answer.victims)
    print_unplaced(out, answer.unplaced)
    text = f"caravan job run --check-index {answer.modify_index} {file}"
    out.line(f"\nTo submit exactly this: {text}", "dim")


def print_unplaced(out: CommandOutput, unplaced: Mapping[str, UnplacedLine]) -> None:
    """Print what would wait and why, a line for each group; of a job without changes that is what waits now."""
    for name, one in sorted(unplaced.items()):
        text = "; ".join(one.reasons) or one.wait_class
        out.line(f"{one.n} of {name} would wait: {text}", "yellow")


def print_victims(out: CommandOutput, lines: Sequence[VictimLine]) -> None:
    """Print allocations that would be evicted."""
    if not lines:
        return
    out.line(f"\n{len(lines)} allocations of lower-priority jobs would be evicted:", "yellow")
    rows = [
        (short_id(one.alloc), f"{one.job}.{one.group}", one.priority, one.node) for one in lines
    ]
    out.table("EVICTED|JOB|PRIORITY>|NODE", rows, limit=_ROWS_MAX)


def print_changes(out: CommandOutput, diff: Iterable[FieldChange]) -> None:
    """Print changed fields, each with a sign in front."""
    for one in diff:
        sign, style = _SIGNS[one.kind]
        out.line(f"{sign} {one.path}: {_value(one)}", style)


def _value(one: FieldChange) -> str:
    old, new = _shortened(one.old, one.path), _shortened(one.new, one.path)
    return {"added": new, "removed": old}.get(one.kind, f"{old} => {new}")


def _shortened(raw: msgspec.Raw, path: str) -> str:
    """A value in words: text without quotes, a list by commas, an object as `name = value`, a duration as `30s`."""
    value = msgspec.json.decode(raw)
    is_duration = type(value) is int and path.rpartition(".")[2] in _duration_fields()
    text = write_in_one_unit(value) if is_duration else _in_words(value)
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}…"


@functools.cache
def _duration_fields() -> frozenset[str]:
    """JSON names of the fields of a job that are nanoseconds."""
    # Imported here, as it is slow: with it every block is a subclass.
    importlib.import_module("shared.jobspec.nomad.job")
    found: set[str] = set()
    blocks = [JobBlock]
    while blocks:
        one = blocks.pop()
        blocks += one.__subclasses__()
        found |= {f.encode_name for f in msgspec.structs.fields(one) if f.name.endswith("_ns")}
    return frozenset(found)


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_in_words(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_in_words, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return str(value) if value != "" else '""'


def group_pace(group: GroupPlan) -> str:
    """How a deployment would replace the allocations of a group; empty: all at once."""
    if not group.max_parallel:
        return ""
    words = []
    if group.canaries:
        noun = "canary" if group.canaries == 1 else "canaries"
        words.append(f"{group.canaries} {noun} first, until the promotion")
    if group.steps:
        each = f", each healthy for {write_in_one_unit(group.min_healthy_time_ns)}"
        rest = "then " if words else ""
        words.append(
            f"{rest}{group.max_parallel} at a time{each}: {count_noun(group.steps, 'step')}"
        )
    elif words:
        words.append("then all at once")
    return "; ".join(words)


def group_steps(group: GroupPlan) -> list[str]:
    """What each step of a deployment would do to a group; empty: all is done at once. Equal ones share a line."""
    if not group.max_parallel:
        return []
    made = [f"create {group.place}"] if group.place else []
    rest = max(group.destructive - group.canaries, 0)
    found: list[str] = []
    if group.canaries:
        noun = "canary" if group.canaries == 1 else "canaries"
        found.append(f"place {group.canaries} {noun} beside the old ones, until the promotion")
        # What is new beside them waits for it, too.
        made = [f"stop {min(group.canaries, group.destructive)} old", *made]
    while rest or made:
        size = min(rest, group.max_parallel)
        found.append(", ".join((*made, f"replace {size}") if size else made))
        made, rest = [], rest - size
    lines, begin = list[str](), 0
    for at, text in enumerate(found):
        if at + 1 < len(found) and found[at + 1] == text:
            continue
        which = f"step {at + 1}" if at == begin else f"steps {begin + 1} to {at + 1}"
        lines.append(f"{which}: {text}")
        begin = at + 1
    return lines


def group_changes(group: GroupPlan) -> str:
    """The changes of one group: `create 2, stop 1`."""
    words = {
        "create": group.place,
        "replace": group.destructive,
        "update in place": group.in_place,
        "stop": group.stop,
        "replace lost": group.lost,
        "ignore": group.ignore,
    }
    return ", ".join(f"{name} {count}" for name, count in words.items() if count) or "nothing"
