"""`caravan what-if`: fork the log at a moment, run the real roles in virtual time, and compare.

Recorded decisions are verified first. Forks and comparisons: shared/whatif.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.log_position import is_written_after, parse_log_position, replica_before
from services.cli.runtime.log_source import log_end_seq_or_zero
from services.cli.runtime.output import CliError, CommandOutput
from services.cli.runtime.progress import ProgressBar
from services.cli.what_if import parallel
from services.cli.what_if.arguments import (
    WhatIfArguments,
    check_arguments,
    describe_changes,
    end_of_run,
    requested_changes,
)
from services.cli.what_if.report import print_report
from shared.bus.connection.public_client import Client
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.display.formats import format_utc
from shared.errors import LogDamaged
from shared.whatif import changes, fork, report
from shared.whatif.fork import ForkRun, RecordedLog
from shared.whatif.what_if import WhatIfQuestion, build_what_if_report, in_turn, run_what_if

#: Longer logs are read from a snapshot on; shorter ones from the beginning, where all durations are known.
_FULL_READ_MAX = 50_000
#: More placements than this run in a second process.
_PARALLEL_ABOVE = 50_000


def what_if(
    out: CommandOutput,
    *,
    begin: str,
    until: str,
    policy: Sequence[str],
    add_nodes: Sequence[str],
    remove_nodes: Sequence[str],
    drain: Sequence[str],
    priority: Sequence[str],
    update: Sequence[str],
    deployment: Sequence[str],
    job: Sequence[str],
    workers: int,
    durations: str,
    directory: str,
) -> int:
    """Compare the cluster with and without changes. Exit 1: recorded decisions differ when repeated."""
    return _ask(
        out,
        WhatIfArguments(
            begin=begin,
            until=until,
            policy=policy,
            add_nodes=add_nodes,
            remove_nodes=remove_nodes,
            drain=drain,
            priority=priority,
            update=update,
            deployment=deployment,
            job=job,
            workers=workers,
            durations=durations,
            directory=directory,
        ),
    )


def what_if_drain(out: CommandOutput, *, node_id: str, wait_ns: int) -> int:
    """Show the effects of a drain that starts now."""
    return _ask(out, WhatIfArguments(drain=(f"{node_id}={wait_ns}ns",)))


def _ask(out: CommandOutput, words: WhatIfArguments) -> int:
    check_arguments(words)
    recorded = with_bus(lambda client: _read(client, words))
    if recorded.fork.state.policy.cluster_id == "":
        text = f"--from {words.begin}: no cluster exists at seq {recorded.fork.seq}"
        raise CliError("usage", text)
    wanted = requested_changes(recorded.fork.state, words)
    until_ns = end_of_run(recorded, words)
    result = _run(recorded, wanted, words=words, until_ns=until_ns)
    out.result(result)
    print_report(out, result)
    return 1 if result.faithful.divergence else 0


# ---- reading ----


async def _read(client: Client, words: WhatIfArguments) -> RecordedLog:
    last, last_ns = parse_log_position(words.begin, "--from")
    base, kept, problem = Replica(), list[Record](), ""

    def is_before(record: Record) -> bool:
        if last:
            return record.seq <= last
        return not last_ns or not is_written_after(record, last_ns)

    if not last or last > _FULL_READ_MAX:
        found = await replica_before(client, words.begin, "--from")
        base = found if found.seq > _FULL_READ_MAX else base
    while True:
        with ProgressBar("reading the log", await log_end_seq_or_zero(client)) as bar:
            try:
                async for record in client.read_log(base.next_seq):
                    kept.append(record)
                    bar.update(record.seq)
            except LogDamaged as err:
                # What is lost behind the fork is missing in the comparison alone.
                if not kept or is_before(kept[-1]):
                    raise
                problem = str(err)
        if kept or not base.seq:
            break
        # The newest snapshot is of the last record; an older one has records after it to verify.
        base = await replica_before(client, str(base.seq - 1), "--from")
    recorded = fork.read_log(kept, base=base, is_before=is_before)
    recorded.problem = recorded.problem or problem
    end = recorded.timeline.replica.seq
    if last > end:
        raise CliError("not_found", f"--from {last}: the log ends at {end}")
    if not kept:
        raise CliError("not_found", "the log is empty")
    return recorded


# ---- running ----


def _run(
    recorded: RecordedLog,
    wanted: changes.RequestedChanges,
    *,
    words: WhatIfArguments,
    until_ns: int,
) -> report.WhatIfReport:
    question = WhatIfQuestion(
        changes=wanted,
        workers=words.workers,
        until_ns=until_ns,
        settle=not words.until,
        resample=words.durations == "resampled",
        keep=bool(words.directory),
    )
    is_much = recorded.timeline.totals.placements > _PARALLEL_ABOVE
    both = parallel.run_in_parallel if is_much else in_turn
    with _PhaseBar() as bar:
        found = run_what_if(recorded, question, both=both, progress=bar.show)
    if words.directory:
        _write(recorded, found.last, words.directory)
    return msgspec.structs.replace(
        build_what_if_report(recorded, question, found),
        from_time=format_utc(recorded.fork_timeline.begin_ns),
        until_time=format_utc(found.last.timeline.t_ns),
        wishes=describe_changes(words),
        out=words.directory,
    )


class _PhaseBar:
    """The progress bar of the phase that runs; the second process draws none."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._phase = ""
        self._bar = ProgressBar("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def show(self, phase: str, done: int, total: int, unit: str) -> None:
        """Show how much of a phase is done."""
        if os.getpid() != self._process:
            return
        if phase != self._phase:
            self._bar.__exit__()
            self._phase, self._bar = phase, ProgressBar(phase, total, unit)
        self._bar.update(done, total)


def _write(recorded: RecordedLog, played: ForkRun, directory: str) -> None:
    """Write the log of the fork, including the recorded past, as an export. Raises CliError."""
    # Imported here: it brings a database along.
    from shared.archive.export import write_export
    from shared.archive.segments import ArchiveInvalid

    if recorded.base.seq:
        text = f"the log was read from seq {recorded.base.next_seq} on; only a complete log can be written"
        raise CliError("invalid", text, file=directory)
    try:
        write_export(Path(directory), (*recorded.past(), *played.records))
    except ArchiveInvalid as err:
        raise CliError(err.code, str(err), file=err.path) from err
