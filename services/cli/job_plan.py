"""`caravan job plan`: what running a job file would change, asked of the view, which keeps nothing of it."""

from collections.abc import Iterable, Sequence

import msgspec

from schemas.answers import FieldChange, GroupPlan, PlanAnswer, VictimLine
from services.cli import job_files
from services.cli.asking import ask_bytes, with_bus
from services.cli.output import Column, Output
from shared.bus.client import Client

_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "edited": ("~", "yellow")}
#: Values longer than this are cut in lines for people.
_VALUE_MAX = 60


def plan(out: Output, *, file: str, var: Sequence[str], var_file: Sequence[str]) -> int:
    """Ask; exit 0 when nothing would change, 1 when something would."""
    loaded = job_files.read_valid(out, file, var=var, var_file=var_file)

    async def work(client: Client) -> PlanAnswer:
        return await ask_bytes(client, "plan", PlanAnswer, loaded.body)

    answer = with_bus(work)
    warnings = tuple(dict.fromkeys((*loaded.warnings, *answer.warnings)))
    out.result(
        {
            "job": answer.job_id,
            **{name: getattr(answer, name) for name in _KEYS},
            "warnings": warnings,
        }
    )
    for warning in warnings:
        out.line(f"warning: {warning}", "yellow")
    if answer.changes:
        _show(out, file, answer)
    else:
        out.line(f"job {answer.job_id}: nothing would change", "green")
    return int(answer.changes)


_KEYS = (
    *("version", "modify_index", "changes", "diff", "groups", "nodes", "victims", "unplaced"),
    *("seq", "cluster_id"),
)


def _show(out: Output, file: str, answer: PlanAnswer) -> None:
    is_new = not answer.modify_index
    out.line(f"job {answer.job_id}: " + ("new" if is_new else f"version {answer.version}"), "bold")
    if not is_new:
        changes(out, answer.diff)
    for name, group in sorted(answer.groups.items()):
        out.line(f"group {name}: {told(group)}")
    out.line()
    rows = [(one.node, one.count, f"{one.score:.3f}") for one in answer.nodes]
    columns = [Column("NODE"), Column("PLACED", right=True), Column("SCORE", 1, right=True)]
    out.table(columns, rows[:20])
    if len(rows) > 20:
        out.line(f"and {len(rows) - 20} nodes more", "dim")
    victims(out, answer.victims)
    for name, one in sorted(answer.unplaced.items()):
        text = "; ".join(one.reasons) or one.wait_class
        out.line(f"{one.n} of {name} would wait: {text}", "yellow")
    text = f"caravan job run --check-index {answer.modify_index} {file}"
    out.line(f"\nTo submit exactly this: {text}", "dim")


def victims(out: Output, lines: Sequence[VictimLine]) -> None:
    """Print who would have to make room."""
    if not lines:
        return
    out.line(f"\n{len(lines)} allocations of less important jobs would be evicted:", "yellow")
    columns = [Column("EVICTED"), Column("JOB"), Column("PRIORITY", right=True), Column("NODE", 1)]
    rows = [(one.alloc[:8], f"{one.job}.{one.group}", one.priority, one.node) for one in lines]
    out.table(columns, rows[:20])
    if len(rows) > 20:
        out.line(f"and {len(rows) - 20} more", "dim")


def changes(out: Output, diff: Iterable[FieldChange]) -> None:
    """Print changed fields, a sign in front of each."""
    for one in diff:
        sign, style = _SIGNS[one.kind]
        out.line(f"{sign} {one.path}: {_value(one)}", style)


def _value(one: FieldChange) -> str:
    old, new = _cut(one.old), _cut(one.new)
    return {"added": new, "removed": old}.get(one.kind, f"{old} -> {new}")


def _cut(raw: msgspec.Raw) -> str:
    text = bytes(raw).decode()
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}…"


def told(group: GroupPlan) -> str:
    """What would happen to a group, in words."""
    words = {
        "create": group.place,
        "replace": group.destructive,
        "update in place": group.in_place,
        "stop": group.stop,
        "replace what was lost": group.lost,
        "leave alone": group.ignore,
    }
    return ", ".join(f"{name} {count}" for name, count in words.items() if count) or "nothing"
