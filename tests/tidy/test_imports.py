"""Small modules: one that only one other module imports is part of that one."""

from collections import defaultdict

from tests.tidy.test_cycles import import_graph, module_name
from tests.tidy.tree import Source, report, shipped

SMALL_LINES = 40
#: Small modules with one importer that stay, with the reason.
SMALL_ON_PURPOSE = {
    "services/cli/gauge/commands.py": "every noun has its commands in one",
    "shared/query/claims.py": "every kind of answer has its lines in one",
    "services/cli/entry_point.py": "runs before the command line is imported, so that Ctrl-C is quiet",
    "services/cli/top/commands.py": "every noun has its commands in one",
    "services/agent/drivers/exec/isolated_drivers.py": "the only module that imports exec, java and qemu together",
    "services/agent/inputs/payload.py": "each kind of input has its handler in one",
    "services/eval_broker/backlog.py": "state of one kind of message; the role has none of its own for it",
    "services/gateway/edge/one_time_codes.py": "the only store of logins beside the pool of connections",
    "services/gateway/outgoing/signature.py": "a form of its own, which receivers implement too; tested by its vectors",
    "services/view/subscriptions.py": "the view's only wiring to the bus; its role knows none",
    "services/plan_applier/incarnation.py": "the one rule of ADR 27; the role only calls it",
    "services/view/scrub_report.py": "state of one alarm; the role only asks it",
    "shared/core/runtime/state_machine.py": "the mechanism alone; the table of a machine stands beside its role",
    "shared/bus/shell/wall_clock.py": "the shell's only clock, tested alone with a false wall",
}
#: Others, to be merged: this number only goes down.
SMALL_MAX = 0


def small_modules(files: list[Source]) -> list[str]:
    """Find modules below 40 lines that exactly one other module imports."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, targets in import_graph(files).items():
        for target in targets - {name}:
            importers[target].add(name)
    return [
        one.path
        for one in files
        if len(one.text.splitlines()) < SMALL_LINES
        and len(importers[module_name(one.path)]) == 1
        and not one.path.endswith(("/__init__.py", "/__main__.py"))
    ]


def test_small_modules_have_a_reason() -> None:
    """A module below 40 lines that one other module imports is part of that one, or is listed with a reason."""
    found = small_modules(shipped())
    small = [path for path in found if path not in SMALL_ON_PURPOSE]
    assert len(small) <= SMALL_MAX, report(small)


def stale_reasons(files: list[Source]) -> list[str]:
    """Find listed modules that are small no longer, or have another number of importers than one."""
    there = {one.path for one in files}
    return sorted((SMALL_ON_PURPOSE.keys() & there) - set(small_modules(files)))


def test_listed_small_modules_are_small() -> None:
    """A module that has a reason to be small is still below 40 lines and has still one importer."""
    stale = stale_reasons(shipped())
    assert not stale, report(stale)
