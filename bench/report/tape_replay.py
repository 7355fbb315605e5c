"""`python -m bench.report.tape_replay FILE...`: replay recorded steps of roles, each alone, and print their cost.

A tape comes from a role that ran with `CARAVAN_TAPE` set to a folder. The same inputs in the same batches, without a
bus and without the other processes: only the role's own work, repeatable to a few per cent. The digest is of all
effects as wire bytes: a change of speed or of names must not change it. `--effects` writes the effects, a line
each, for `diff`.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO

import msgspec
import orjson

from bench.report.tape_reader import effect_lists, packed, read_tape
from schemas.nodes import NodeSpec
from services.agent.node_reconciler import AgentLimits
from services.agent.role import Agent
from services.eval_broker.role import EvalBroker
from services.heartbeat.role import HeartbeatMonitor
from services.intake.role import Intake
from services.keeper.role import Keeper
from services.plan_applier.role import PlanApplier
from services.scheduler.role import Scheduler
from services.timekeeper.role import Timekeeper
from services.view.role import View
from services.view.snapshot_writer import SnapshotSchedule
from shared.bus.process.runner import tune_garbage_collector
from shared.bus.shell.tape import Header
from shared.core.runtime.agent_messages import JournalEntry


class TapeRun(msgspec.Struct, frozen=True):
    """One play of a tape. `said`: all effects, by step, as `[tag, field, …]`."""

    role: str
    steps: int
    inputs: int
    cpu_s: float
    effects: str
    said: list[list[list[Any]]]

    @property
    def effects_count(self) -> int:
        """How many effects the role had."""
        return sum(map(len, self.said))


def _agent(*, spec: bytes, journal: list[bytes], disk_kill: bool, **names: str) -> Agent:
    return Agent(
        spec=msgspec.json.decode(spec, type=NodeSpec),
        journal=[msgspec.json.decode(entry, type=JournalEntry) for entry in journal],
        settings=AgentLimits(disk_kill=disk_kill),
        **names,
    )


def _view(
    *, instance: str, snapshots: Mapping[str, int], follow_dead: bool, gather_ns: int
) -> View:
    when = SnapshotSchedule(**snapshots)
    return View(
        instance=instance, reads_dead_letters=follow_dead, snapshots=when, gather_ns=gather_ns
    )


#: By the name that is on the tape, what makes the role from the header's values.
ROLES: dict[str, Callable[..., Any]] = {
    "agent": _agent,
    "eval_broker": EvalBroker,
    "heartbeat": HeartbeatMonitor,
    "intake": Intake,
    "keeper": Keeper,
    "plan_applier": PlanApplier,
    "scheduler": Scheduler,
    "timekeeper": Timekeeper,
    "view": _view,
}


def made(header: Header) -> Any:
    """Create the role of a tape in its state before the first step."""
    return ROLES[header.role](instance=header.instance, **header.given)


def replay_tape(path: Path) -> TapeRun:
    """Play a tape once, from a role that has read nothing."""
    header, steps = read_tape(path)
    role, tape = made(header), list(steps)
    digest, inputs = blake2b(digest_size=8), 0
    out: list[list[Any]] = []
    gc.collect()
    tune_garbage_collector()
    began = time.process_time()
    for given, now_ns in tape:
        out.append(role.step(given, now_ns))
    took = time.process_time() - began
    said = [effect_lists(effects) for effects in out]
    for (given, _), effects in zip(tape, said, strict=True):
        inputs += len(given)
        digest.update(packed(effects))
    return TapeRun(header.role, len(tape), inputs, took, digest.hexdigest(), said)


def lines(one: TapeRun) -> Iterator[str]:
    """Say each effect in a line: its step, its tag, its fields."""
    for nth, effects in enumerate(one.said, 1):
        for tag, *fields in effects:
            yield f"{one.role} {nth} {tag} {_shown(fields)}\n"


def _shown(fields: Iterable[Any]) -> str:
    def text(value: Any) -> str:
        return bytes(value).decode("utf-8", "backslashreplace")

    def keyed(value: Any) -> Any:
        if isinstance(value, bytes):
            return text(value)
        if isinstance(value, dict):
            return {str(name): keyed(one) for name, one in value.items()}
        return [keyed(one) for one in value] if isinstance(value, list) else value

    return orjson.dumps(keyed(list(fields))).decode()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tapes", nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--runs", type=int, default=3, help="play each so often; the fastest counts"
    )
    parser.add_argument("--per", type=int, default=0, help="divide by so many jobs")
    parser.add_argument(
        "--effects",
        type=argparse.FileType("w", encoding="utf-8"),
        metavar="FILE",
        help="write all effects there, to be compared",
    )
    return parser.parse_args()


def _print_replay(path: Path, *, runs: int, per: int, effects: TextIO | None) -> bool:
    """Play one tape some times and print its line; tell whether its effects were the same each time."""
    plays = [replay_tape(path) for _ in range(runs)]
    best = min(plays, key=lambda one: one.cpu_s)
    each = f"  {1e6 * best.cpu_s / per:7.1f} us a job" if per else ""
    print(
        f"{best.role:13} {best.steps:6} steps {best.inputs:7} inputs  {best.cpu_s:6.3f} CPU-s{each}"
        f"  {best.effects_count:7} effects {best.effects}"
    )
    if effects is not None:
        effects.write(f"# {path.name}\n")
        effects.writelines(lines(best))
    if any(one.effects != best.effects for one in plays):
        print(f"{best.role}: the same tape gave other effects", file=sys.stderr)
        return False
    return True


def main() -> int:
    """Play each tape some times; print a line for each, in the order given."""
    options = _options()
    for path in options.tapes:
        if not _print_replay(path, runs=options.runs, per=options.per, effects=options.effects):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
