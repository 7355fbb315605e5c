"""The files of `caravan simulate --out`: the log as an export, and beside it the report, its tables and a page.

Existing files are never overwritten: the folder is new or empty. A process of its own writes the export while the run
continues, so that the log of a day costs the run almost nothing.
"""

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from services.cli.runtime.output import CliError
from shared.archive.database import write_table
from shared.archive.export import ExportReader, write_export
from shared.archive.segments import ArchiveInvalid
from shared.core.runtime.messages import Record
from shared.errors import LogError
from shared.sim.scenario.html_report import Curve, render_comparison, render_report
from shared.sim.scenario.report import FigureDifference, ScenarioReport
from shared.sim.scenario.run import ScenarioRun

#: Folder of the report, beside the segments.
REPORT = "report"
#: Records sent to the exporting process at a time.
_BATCH = 256
_POINTS = 200
_PACKED = msgspec.msgpack.Decoder(list[tuple[int, str, bytes]])


def create_output_folder(folder: Path) -> None:
    """Create a folder; it must be new or empty. Raises CliError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        text = "folder is not empty; name a new or empty one"
        raise CliError("conflict", text, path="--out", file=str(folder))
    folder.mkdir(parents=True, exist_ok=True)


class SimulationLogWriter:
    """Writes the records of a run as an export; `prefix`: an export that the run continues, copied first."""

    def __init__(self, folder: Path, prefix: Path | None) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._pipe = ours
        self._process = context.Process(
            target=_export, args=(theirs, str(folder), str(prefix or "")), daemon=True
        )
        self._process.start()
        theirs.close()
        self._batch: list[tuple[int, str, bytes]] = []
        self._is_closed = False

    def write(self, record: Record) -> None:
        """Write a record. Raises CliError: the export failed."""
        self._batch.append((record.seq, record.subject, record.data))
        if len(self._batch) >= _BATCH:
            self._send()

    def _send(self) -> None:
        try:
            self._pipe.send_bytes(msgspec.msgpack.encode(self._batch))
        except OSError as err:
            raise CliError("io", f"the log could not be written: {self._reason()}") from err
        self._batch = []

    def _reason(self) -> str:
        try:
            return self._pipe.recv_bytes().decode() if self._pipe.poll(5) else "unknown reason"
        except (OSError, EOFError):
            return "the writing process ended"

    def close(self) -> None:
        """Wait until everything is written. Raises CliError."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._batch:
                self._send()
            self._pipe.send_bytes(b"")
            reason = self._pipe.recv_bytes().decode()
        except (OSError, EOFError):
            reason = "the writing process ended"
        self._process.join()
        if reason:
            raise CliError("io", f"the log could not be written: {reason}")


def _export(pipe: Connection, folder: str, prefix: str) -> None:
    """Main function of the writing process: reads batches up to an empty one; answers empty or the error."""
    # The run handles Ctrl-C; records that it sent before are written.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        write_export(Path(folder), _received(pipe, prefix))
        reason = ""
    except (ArchiveInvalid, LogError, OSError, EOFError) as err:
        reason = str(err) or type(err).__name__
    pipe.send_bytes(reason.encode())


def _received(pipe: Connection, prefix: str) -> Iterator[Record]:
    """Yield the records of a run, after those of the export that it continues."""
    is_first = True
    while data := pipe.recv_bytes():
        for seq, subject, body in _PACKED.decode(data):
            if is_first and prefix and seq > 1:
                yield from ExportReader(Path(prefix)).records(1, seq - 1)
            is_first = False
            yield Record(seq, subject, body)


# ---- the report ----


def write_report(folder: Path, played: ScenarioRun) -> None:
    """Write report.json, measured.json, tables as Parquet and the page. Raises OSError."""
    report, into = played.report, folder / REPORT
    into.mkdir()
    encode = msgspec.json.Encoder(order="deterministic").encode
    (into / "report.json").write_bytes(msgspec.json.format(encode(report), indent=2))
    if played.measured is not None:
        (into / "measured.json").write_bytes(msgspec.json.format(encode(played.measured), indent=2))
    series = report.series
    samples: dict[str, Sequence[object]] = {
        "t_s": series.t_s,
        "nodes": series.nodes,
        "running": series.running,
        "waiting": series.waiting,
    }
    samples |= {f"used {name}": values for name, values in series.used.items()}
    samples |= {f"fragmented {name}": values for name, values in series.fragmented.items()}
    write_table(into / "samples.parquet", samples)
    if report.waiting:
        rows = [msgspec.structs.asdict(one) for one in report.waiting]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        write_table(into / "waiting.parquet", columns)
    jobs = sorted(played.jobs.items())
    if jobs:
        fields = (
            "name",
            "priority",
            "asked_ns",
            "wanted",
            "placed",
            "first_ns",
            "last_ns",
            "ended_ns",
        )
        table: dict[str, Sequence[object]] = {"job_id": [job_id for job_id, _ in jobs]}
        table |= {name: [getattr(note, name) for _, note in jobs] for name in fields}
        write_table(into / "jobs.parquet", table)
    (into / "report.html").write_text(render_report(report, _curves(played)), encoding="utf-8")


def _curves(played: ScenarioRun) -> list[Curve]:
    """Cumulative share of placed allocations over waiting time, by kind."""
    curves = []
    longest = max((one.max_s for one in played.report.waiting), default=0.0)
    for name, noted in sorted(played.waits.items()):
        waits = sorted(noted)
        total = sum(count for _, count in waits)
        x, y, done = [0.0], [0.0], 0
        for value, count in waits:
            done += count
            x.append(value / 1e9)
            y.append(done / total)
        step = max(len(x) // _POINTS, 1)
        kept = sorted({*range(0, len(x), step), len(x) - 1})
        curves.append(
            Curve(name, [*(x[at] for at in kept), longest], [*(y[at] for at in kept), 1.0])
        )
    return curves


def write_compared(
    folder: Path, a: ScenarioReport, b: ScenarioReport, found: Sequence[FigureDifference]
) -> None:
    """Write compared.json and compared.html. Raises OSError."""
    encode = msgspec.json.Encoder(order="deterministic").encode
    (folder / "compared.json").write_bytes(msgspec.json.format(encode(found), indent=2))
    (folder / "compared.html").write_text(render_comparison(a, b, found), encoding="utf-8")
