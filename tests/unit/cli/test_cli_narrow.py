"""What a terminal of 80 columns shows of a job: no column is lost, no sentence is cut, and commands that work."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest

from schemas.job_answers import JobAnswer, JobLine, WaitingLine
from schemas.projections import AllocSummary, EvalSummary, GroupSummary, Rollout
from services.cli.job import timeline
from services.cli.runtime.output import CommandOutput, program_name
from services.cli.runtime.tables import print_job

COLUMNS = 80
BEGAN = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC).replace(tzinfo=None)
REASON = (
    "memory exhausted on 12 nodes; class gpu: constraint ${attr.cpu.arch} = arm64 filters 3 nodes"
)
FAILURE = "crawler.web[0]: task main failed: Terminated: Exit Code: 3; exceeded allowed attempts 2 in 30m0s"


def terminal() -> CommandOutput:
    """Output to a terminal of 80 columns, without colours."""
    out = CommandOutput()
    out.is_terminal, out._columns = True, COLUMNS
    return out


def joined(text: str) -> str:
    """Lines that were wrapped, as one."""
    return " ".join(text.split())


class RecordedLog:
    """A log of one job, as the SQL of `job timeline` answers."""

    problems: Sequence[str] = ()
    is_live = False
    seq = 9
    cluster_id = "c"

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def ask(self, *_: object) -> Any:
        """Answer with a submission, a wait with a long reason, and an allocation that failed."""
        at = [BEGAN + timedelta(seconds=n) for n in range(4)]
        rows = [
            ("job", "crawler", "registered", "version 0", 5, 7, at[0], at[1], at[1]),
            ("waiting", "web", "waiting", REASON, 7, 8, at[1], at[2], at[2]),
            ("allocation", "crawler.web[0]", "failed", FAILURE, 8, None, at[2], None, at[3]),
        ]
        return SimpleNamespace(rows=rows)


def test_a_timeline_shows_its_details_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short detail stands in its column, a long one below its row, whole; nothing is wider than the terminal."""
    monkeypatch.setattr(timeline, "SqlSource", RecordedLog)
    out = terminal()
    assert timeline.timeline(out, job_id="crawler", directory="", live=False, trace="") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert "DETAIL" in text and "version 0" in text
    assert REASON in joined(text) and FAILURE in joined(text)
    # A sentence is not broken into a column of single words.
    assert len(text.splitlines()) <= 14


def test_a_status_shows_why_at_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason, the next try, what waits, and when each allocation changed are there, and fit."""
    later_ns = 4_000_000_000 * 10**9
    group = {"web": GroupSummary(desired=2, failed=1)}
    answer = JobAnswer(
        seq=9,
        cluster_id="c",
        job=JobLine(id="crawler", status="running", rollout_status="failed", groups=group),
        groups=group,
        rollout=Rollout(status="failed", reason=FAILURE, retry_at_ns=later_ns),
        waiting=(WaitingLine(group="web", n=1, wait_class="resources", reasons=(REASON,)),),
        allocations=(
            AllocSummary(
                id="0f0e0d0c-0000-0000-0000-000000000000",
                key=1,
                job_id="crawler",
                group="web",
                name="crawler.web[0]",
                node="node-in-a-far-rack-17",
                desired_status="run",
                client_status="failed",
                event_ns=1_700_000_000 * 10**9,
            ),
        ),
        allocations_total=1,
        evaluations=(EvalSummary(id="e" * 36, key=1, status="blocked"),),
    )
    print_job(terminal(), answer, verbose=False)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert FAILURE in joined(text) and f"1 of web waiting: {REASON}" in joined(text)
    for word in ("running, failed", "Next try", "CHANGED", "crawler.web[0]", "2096-10-02"):
        assert word in joined(text), word


@pytest.mark.parametrize(
    ("found", "shown"), [("own", "caravan"), ("other", "bin/caravan"), ("", "bin/caravan")]
)
def test_a_command_is_shown_as_the_shell_finds_it(
    found: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` and `demo` print what works: the bare name only where PATH leads to this very program."""
    for folder in ("bin", "elsewhere"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "caravan").write_text("#!/bin/sh\n")
        (tmp_path / folder / "caravan").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    where = {"own": "bin", "other": "elsewhere"}.get(found, "nowhere")
    monkeypatch.setenv("PATH", str(tmp_path / where))
    assert program_name() == shown
