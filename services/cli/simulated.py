"""What `caravan simulate --out` writes: the log as an export, and beside it the report, its tables and a page.

Decides names of files. Nothing that is there is ever overwritten: the folder is new or empty. The export is made by a
process of its own while the run goes on, so that a day's log costs the run next to nothing.
"""

import multiprocessing
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from services.cli.output import CliError
from shared.archive.export import Export, Reading
from shared.archive.segments import Archive, ArchiveInvalid
from shared.archive.tables import write_table
from shared.core.log import Chain
from shared.core.role import Record
from shared.errors import LogError
from shared.sim.scenario.page import Curve, compared, page
from shared.sim.scenario.play import Played
from shared.sim.scenario.report import Difference, Report

#: Folder of the report, beside the segments.
REPORT = "report"
#: Records sent to the exporting process at a time.
_BATCH = 256
_POINTS = 200
_PACKED = msgspec.msgpack.Decoder(list[tuple[int, str, bytes]])


def begin_folder(folder: Path) -> None:
    """See that a folder is new or empty. Raises CliError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        told = "there is something already, and nothing is overwritten: name a new or empty folder"
        raise CliError("conflict", told, path="--out", file=str(folder))
    folder.mkdir(parents=True, exist_ok=True)


class LogWriter:
    """Writes a run's records as an export; `prefix`: the export that the run goes on from, copied first."""

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
        """Take a record. Raises CliError: the export failed."""
        self._batch.append((record.seq, record.subject, record.data))
        if len(self._batch) >= _BATCH:
            self._send()

    def _send(self) -> None:
        try:
            self._pipe.send_bytes(msgspec.msgpack.encode(self._batch))
        except OSError as err:
            raise CliError("io", f"the log could not be written: {self._said()}") from err
        self._batch = []

    def _said(self) -> str:
        try:
            return self._pipe.recv_bytes().decode() if self._pipe.poll(5) else "no reason was told"
        except (OSError, EOFError):
            return "the process that writes ended"

    def close(self) -> None:
        """Wait until everything is written. Raises CliError."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._batch:
                self._send()
            self._pipe.send_bytes(b"")
            said = self._pipe.recv_bytes().decode()
        except (OSError, EOFError):
            said = "the process that writes ended"
        self._process.join()
        if said:
            raise CliError("io", f"the log could not be written: {said}")


def _export(pipe: Connection, folder: str, prefix: str) -> None:
    """Be the process that writes: batches come until an empty one; the answer is empty, or what went wrong."""
    # Ctrl-C is the run's: it tells when to end, and what it told until then is written.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _write(pipe, Path(folder), prefix)
        said = ""
    except (ArchiveInvalid, LogError, OSError, EOFError) as err:
        said = str(err) or type(err).__name__
    pipe.send_bytes(said.encode())


def _write(pipe: Connection, folder: Path, prefix: str) -> None:
    archive = Archive(folder)
    with archive.locked():
        work = Export(archive)
        chain = Chain()
        try:
            before: Sequence[Record] = ()
            seq = 0
            first = True
            while data := pipe.recv_bytes():
                for seq, subject, body in _PACKED.decode(data):
                    record = Record(seq, subject, body)
                    if first:
                        first = False
                        before = _before(prefix, seq)
                        head = before[0] if before else record
                        chain.accept(head.seq, head.subject, head.data)
                        archive.begin(chain.cluster_id)
                        work.wanted()
                        for one in before:
                            work.apply(one)
                    work.apply(record)
            work.flush()
        finally:
            work.close()


def _before(prefix: str, seq: int) -> Sequence[Record]:
    """Read the records that stand before `seq` in the export that a run goes on from."""
    return tuple(Reading(Path(prefix)).records(1, seq - 1)) if prefix and seq > 1 else ()


# ---- the report ----


def write_report(folder: Path, played: Played) -> None:
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
    (into / "report.html").write_text(page(report, _curves(played)), encoding="utf-8")


def _curves(played: Played) -> list[Curve]:
    """Share of allocations placed after so long, by kind."""
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


def write_compared(folder: Path, a: Report, b: Report, found: Sequence[Difference]) -> None:
    """Write compared.json and compared.html. Raises OSError."""
    encode = msgspec.json.Encoder(order="deterministic").encode
    (folder / "compared.json").write_bytes(msgspec.json.format(encode(found), indent=2))
    (folder / "compared.html").write_text(compared(a, b, found), encoding="utf-8")
