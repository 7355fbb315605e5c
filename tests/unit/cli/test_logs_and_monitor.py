"""Lines of several logs in one stream: whole lines, in order, and what is no JSON."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.job.logs import LINE_BYTES_MAX, LineSplitter
from services.cli.local.monitor import LogFile, log_line, text_of
from services.cli.main import main
from services.cli.runtime.local_clusters import LocalClusterRecord, records_folder, write_record
from services.cli.runtime.node_client import asked_lines


@given(st.binary(max_size=300), st.lists(st.integers(min_value=1, max_value=20), max_size=40))
def test_lines_do_not_depend_on_how_they_arrive(data: bytes, sizes: list[int]) -> None:
    """Any cut into chunks gives the lines of the whole."""
    splitter, found, at = LineSplitter(), [], 0
    for size in (*sizes, len(data)):
        found += splitter.lines(data[at : at + size])
        at += size
    found += splitter.rest()
    *whole, last = data.split(b"\n")
    assert found == [*whole, *([last] if last else [])]


def test_an_endless_line_is_printed_in_parts() -> None:
    """Nothing is kept without bound, and no byte is lost."""
    splitter = LineSplitter()
    data = b"x" * (3 * LINE_BYTES_MAX + 5)
    parts = splitter.lines(data)
    assert [len(one) for one in parts] == [LINE_BYTES_MAX] * 3
    assert b"".join((*parts, *splitter.rest())) == data


def line(service: str, second: int, level: str = "info", **more: object) -> str:
    """A line as services log it."""
    stamp = f"2026-01-01T00:00:{second:02d}.000000Z"
    found = {"event": f"e{second}", "level": level, "timestamp": stamp, "service": service, **more}
    return json.dumps(found) + "\n"


def test_a_log_is_followed_over_its_end_and_its_cut(tmp_path: Path) -> None:
    """A half line waits for its end; a file that was cut is read from its beginning."""
    path = tmp_path / "view.log"
    path.write_text(line("view", 1) + line("view", 2))
    log = LogFile(path)
    assert [one.event for one in log.last(1)] == ["e2"]
    whole = line("view", 3)
    with path.open("a") as file:
        file.write(whole[:10])
    assert log.new() == []
    with path.open("a") as file:
        file.write(whole[10:])
    assert [one.event for one in log.new()] == ["e3"]
    path.write_text(line("view", 4))
    assert [one.event for one in log.new()] == ["e4"]


def test_a_line_is_shown_with_its_fields_and_others_as_they_are() -> None:
    """Levels are Nomad's words; a line that is no object is text."""
    shown = text_of(log_line("view", line("view", 1, "warning", seq=4, job="web").encode()))
    assert shown == "2026-01-01T00:00:01.000000Z [WARN] view: e1 seq=4 job=web"
    assert text_of(log_line("bus", b"[12] plain \xff")) == "bus: [12] plain \ufffd"


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The logs of a cluster that runs on this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CARAVAN_NATS_URL", "nats://127.0.0.1:4999")
    folder = tmp_path / "data" / "logs"
    folder.mkdir(parents=True)
    (folder / "view.log").write_text(line("view", 1) + line("view", 3, "error"))
    (folder / "intake.log").write_text(line("intake", 2) + line("intake", 4, "debug"))
    return folder


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--log-level", "loud"), "unknown log level 'loud'"),
        (("-n", "-1"), "--count must not be negative"),
        ((), "does not belong to a `caravan up` on this machine"),
    ],
)
def test_monitor_refuses_what_is_not_there(
    logs: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    """One line with the reason."""
    assert logs.exists()
    assert main(["monitor", *words]) == 1
    assert text in capsys.readouterr().err


def test_monitor_names_the_services_that_there_are(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service without a log is refused by name."""
    record = LocalClusterRecord(
        pid=os.getpid(), url="nats://127.0.0.1:4999", data_dir=str(logs.parent)
    )
    write_record(record)
    assert list(records_folder().glob("*.json"))
    assert main(["monitor", "--service", "none"]) == 1
    assert "expected one of: intake, view" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "asked"), [(None, 0), (0, -1), (1, 1), (20, 20)])
def test_no_lines_are_not_all_lines(given: int | None, asked: int) -> None:
    """`-n 0` wants nothing of what is there; without `-n` all is wanted."""
    assert asked_lines(given) == asked
