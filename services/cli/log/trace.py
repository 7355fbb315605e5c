"""`caravan log trace`: spans of evaluations and allocations, written from the log as OTLP/JSON lines."""

from array import array
from pathlib import Path
from typing import IO

import msgspec

from schemas.envelope import LogRecord
from services.cli import global_options
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.log_position import read_log_until
from services.cli.runtime.log_source import log_end_seq_or_zero
from services.cli.runtime.output import CliError, CommandOutput
from services.cli.runtime.progress import ProgressBar
from shared.bus.connection.public_client import Client
from shared.core.runtime.messages import Record
from shared.display.formats import count_noun
from shared.numerals import parse_decimal
from shared.query.historical_state import HistoricalState
from shared.query.otlp_json import export_requests
from shared.query.spans import JobSample, RecordSpans, Span, SpanSource

#: Spans of one line.
_BATCH = 256


class TraceResult(msgspec.Struct, frozen=True, kw_only=True):
    """`log trace --json`."""

    file: str
    spans: int
    #: the last record that was read.
    last_seq: int
    cluster_id: str


def trace(out: CommandOutput, *, otlp: str, sample: str) -> int:
    """Write the spans of the log to a file. Raises CliError."""
    jobs = JobSample(_share(sample))
    if not otlp:
        raise CliError("usage", "--otlp FILE is required")
    path = Path(otlp)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            result = with_bus(lambda client: _write(client, jobs, file, otlp))
        part.replace(path)
    except OSError as err:
        raise CliError("usage", f"cannot write {otlp}: {err.strerror}", file=otlp) from err
    finally:
        part.unlink(missing_ok=True)
    out.result(result)
    out.line(f"{count_noun(result.spans, 'span')} of {result.last_seq} records: {otlp}", "green")
    return 0


def _share(text: str) -> float:
    """The share of jobs. Raises CliError."""
    try:
        share = parse_decimal(text)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise CliError("usage", f"--sample must be above 0 and at most 1, not {text!r}")
    return share


async def _write(client: Client, jobs: JobSample, file: IO[bytes], name: str) -> TraceResult:
    waiting: list[Span] = []
    count = 0

    def flush() -> None:
        nonlocal count
        count += len(waiting)
        for line in export_requests(waiting, log.cluster_id):
            file.write(line + b"\n")
        waiting.clear()

    log = _LogSpans(jobs)
    with ProgressBar("tracing", await log_end_seq_or_zero(client)) as bar:
        async for record in read_log_until(client, global_options.at_position()):
            waiting += log.of(record)
            if len(waiting) >= _BATCH:
                flush()
            bar.update(record.seq)
    flush()
    return TraceResult(
        file=name, spans=count, last_seq=log.past.replica.seq, cluster_id=log.cluster_id
    )


class _LogSpans:
    """Replays a log from its first record and makes the spans of each."""

    def __init__(self, jobs: JobSample) -> None:
        self.past = HistoricalState()
        self._jobs = jobs
        self._made: RecordSpans | None = None
        #: log time by seq.
        self._times = array("q", [0])

    @property
    def cluster_id(self) -> str:
        return self.past.replica.chain.cluster_id

    def of(self, record: Record) -> list[Span]:
        """Apply a record. Raises LogError."""
        made: list[RecordSpans] = []

        def before(found: LogRecord) -> None:
            self._made = self._made or RecordSpans(self.cluster_id, self._jobs)
            self._made.before(self.past.state, found)
            made.append(self._made)

        decoded = self.past.apply_with(record, before)
        while len(self._times) <= record.seq:
            self._times.append(decoded.t_ns if decoded is not None else self._times[-1])
        if decoded is None:
            return []
        source = SpanSource(self.past.state, self.past.histories, self._times.__getitem__)
        return made[0].after(source, decoded, record.seq)
