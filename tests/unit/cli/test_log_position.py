"""Moments of a log: a time names the last record up to it, the one that is shown names its own record."""

import json
from pathlib import Path

import pytest

from services.cli.main import main
from services.cli.runtime.log_position import is_written_after, parse_log_position
from services.cli.runtime.output import CliError
from shared.archive.export import write_export
from shared.core.runtime.chain import Chain
from shared.core.runtime.messages import Record
from shared.display.formats import format_utc
from tests.golden.replay_log import read_log

LOGS = Path(__file__).resolve().parents[2] / "golden" / "logs"
RECORDS = read_log(LOGS / "v1-0.1.0-seed-2.jsonl.gz")


def last_until(text: str) -> int:
    """The record that a time names; 0: none."""
    seq, until_ns = parse_log_position(text)
    assert not seq and until_ns
    found = 0
    for record in RECORDS:
        if is_written_after(record, until_ns):
            break
        found = record.seq
    return found


def times() -> dict[int, int]:
    """Log time behind each record."""
    chain, found = Chain(), {}
    for record in RECORDS:
        chain.accept(record.seq, record.subject, record.data)
        found[record.seq] = chain.t_ns
    return found


def test_a_time_that_was_shown_names_its_record() -> None:
    """Given back, it names the record behind which it was shown, or the last one of the same microsecond."""
    t_ns = times()
    assert any(one % 1000 for one in t_ns.values())
    for seq, at_ns in t_ns.items():
        same = [other for other, its_ns in t_ns.items() if its_ns // 1000 == at_ns // 1000]
        assert last_until(format_utc(at_ns)) == max(same), seq
        exact = f"{format_utc(at_ns)[:-1]}{at_ns % 1000:03d}Z"
        assert last_until(exact) == max(o for o, its_ns in t_ns.items() if its_ns <= at_ns), seq


@pytest.mark.parametrize(
    ("text", "is_end"),
    [
        ("1970-01-01T00:00:00Z", False),
        ("1970-01-01T00:00:00.000000000Z", False),
        ("1969-12-31T23:59:59.999999Z", False),
        ("0001-01-01T00:00:00+14:00", False),
        ("9999-12-31T23:59:59-14:00", True),
        ("9999-12-31T23:59:59.999999Z", True),
    ],
)
def test_a_time_far_away_is_a_time(text: str, *, is_end: bool) -> None:
    """The first instant is no missing bound, and a zone may lead out of the years that there are."""
    assert last_until(text) == (RECORDS[-1].seq if is_end else 0)


@pytest.mark.parametrize("flag", ["--to", "--at"])
@pytest.mark.parametrize(
    "text",
    [
        "²",
        "٣",
        "1_0",
        "0",
        "2026-13-01",
        "2026-01-01T25:00",
        "٢٠٢٦-01-01",
        "0001-01-01T00:00:00+99:00",
    ],
)
def test_what_is_no_moment_is_refused(text: str, flag: str) -> None:
    """Digits that are none, dates that are none: wrong usage, with the flag."""
    with pytest.raises(CliError, match=flag) as caught:
        parse_log_position(text, flag)
    assert caught.value.code == "usage"


def test_commands_take_moments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`replay --to` by what it printed ends at the same record; a moment before the log is an error, not its end."""
    records: list[Record] = RECORDS[:60]
    write_export(tmp_path / "e", records)
    where = ("--from-file", str(tmp_path / "e"), "--json")
    assert main(["replay", "--to", "20", *where]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["replay", "--to", told["time"], *where]) == 0
    assert json.loads(capsys.readouterr().out)["seq"] >= told["seq"]
    for words in (
        ("replay", "--to", "1970-01-01T00:00:00Z"),
        ("job", "status", "--at", "1970-01-01T00:00:00Z"),
        ("replay", "--diff", "1970-01-01T00:00:00Z", "20"),
        ("log", "trace", "--otlp", str(tmp_path / "t"), "--at", "1970-01-01T00:00:00Z"),
        ("what-if", "--from", "1970-01-01T00:00:00Z"),
    ):
        assert main([*words, *where]) == 1, words
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["error"]["code"] != "failed"
