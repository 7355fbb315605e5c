"""Logs of tasks: kept within bounds while the task writes, without losing a byte, and read in order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.agent.executor import log_rotation
from services.agent.executor.log_rotation import BLOCK, data_range
from shared.core.runtime.agent_messages import LogLimits
from tests.integration.task_log import reader, rotate, rotated_numbers

LIMITS = LogLimits(files=100, file_bytes=64 * 1024)


def everything(active: Path) -> bytes:
    """All that a reader gets from the beginning."""
    files, out = reader(active), b""
    while part := files.take():
        out += part
    return out


def written(active: Path, lines: range) -> bytes:
    text = "".join(f"line {n:08d}\n" for n in lines).encode()
    with active.open("ab") as file:
        file.write(text)
    return text


def test_a_writing_task_loses_nothing(tmp_path: Path) -> None:
    """A process that appends all the while finds every line in the files afterwards, in order."""
    active = tmp_path / "main.stdout.0"
    script = "import os\nfor n in range(200000): os.write(1, b'line %08d\\n' % n)"
    with active.open("ab") as out:
        writer = subprocess.Popen([sys.executable, "-c", script], stdout=out)
    while writer.poll() is None:
        rotate(active, LIMITS)
    rotate(active, LIMITS)
    assert len(rotated_numbers(active)) > 10
    assert everything(active) == "".join(f"line {n:08d}\n" for n in range(200000)).encode()


def test_files_stay_within_count_and_size(tmp_path: Path) -> None:
    """At most so many files of that size remain, the newest ones; none of them is longer."""
    active = tmp_path / "main.stdout.0"
    text = written(active, range(100_000))
    limits = LogLimits(files=3, file_bytes=64 * 1024)
    assert rotate(active, limits) > 10
    assert len(rotated_numbers(active)) == 2
    kept = everything(active)
    assert text.endswith(kept)
    assert 2 * 64 * 1024 < len(kept) <= 3 * 64 * 1024
    assert all(path.stat().st_blocks * 512 <= 64 * 1024 + BLOCK for path in tmp_path.iterdir())


def test_one_file_keeps_the_end(tmp_path: Path) -> None:
    """A single file is two of half its size, so that its beginning leaves by lines."""
    active = tmp_path / "main.stdout.0"
    text = written(active, range(50_000))
    rotate(active, LogLimits(files=1, file_bytes=64 * 1024))
    assert len(rotated_numbers(active)) == 1
    kept = everything(active)
    assert text.endswith(b"\n" + kept)
    assert 0 < len(kept) <= 64 * 1024


@pytest.mark.parametrize("files", [1, 2, 5])
def test_every_rotated_file_begins_with_a_line(tmp_path: Path, files: int) -> None:
    """No reading begins inside a line, whatever left; so do the files themselves, but for the active one."""
    active = tmp_path / "main.stdout.0"
    text = b""
    for step in range(30):
        text += written(active, range(step * 3000, step * 3000 + 3000))
        rotate(active, LogLimits(files=files, file_bytes=64 * 1024))
        kept = everything(active)
        assert kept.startswith(b"line ")
        assert (b"\n" + text).endswith(b"\n" + kept)
    older = [active.with_name(f"main.stdout.{number}") for number in rotated_numbers(active)]
    assert len(older) == max(files - 1, 1)
    for path in older:
        assert path.read_bytes().startswith(b"line ")
        assert path.stat().st_size <= 64 * 1024


def test_lines_without_end_are_cut(tmp_path: Path) -> None:
    """A line beyond the bound is in several files, and none of it is lost."""
    active = tmp_path / "main.stdout.0"
    text = b"short\n" + b"x" * 300_000 + b"\nshort\n" + b"y" * 300_000
    active.write_bytes(text)
    rotate(active, LIMITS)
    assert len(rotated_numbers(active)) > 5
    assert everything(active) == text


@pytest.mark.parametrize("files", [1, 2])
def test_a_follower_of_few_files_loses_nothing(tmp_path: Path, files: int) -> None:
    """Who reads before every rotation gets each byte once, however few files are kept."""
    active = tmp_path / "main.stdout.0"
    follower, text, read = reader(active), b"", b""
    for step in range(30):
        text += written(active, range(step * 900, step * 900 + 900))
        while part := follower.take():
            read += part
        rotate(active, LogLimits(files=files, file_bytes=64 * 1024))
    while part := follower.take():
        read += part
    assert read == text


def test_a_follower_that_was_left_behind_goes_on_with_a_line(tmp_path: Path) -> None:
    """What left before it was read is not there; the reading begins again with the oldest line that is."""
    active = tmp_path / "main.stdout.0"
    limits = LogLimits(files=2, file_bytes=64 * 1024)
    follower = reader(active)
    written(active, range(1000))
    first = follower.take()
    text = written(active, range(1000, 50_000))
    rotate(active, limits)
    rest = b""
    while part := follower.take():
        rest += part
    assert first and rest
    assert text.endswith(b"\n" + rest)


def test_a_link_in_place_of_a_rotated_file_is_left_alone(tmp_path: Path) -> None:
    """A task that puts a link where its rotated log was does not have that file read or cut."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret\ntail")
    active = tmp_path / "main.stdout.0"
    written(active, range(10_000))
    active.with_name("main.stdout.1").symlink_to(secret)
    assert rotate(active, LIMITS) > 0
    assert secret.read_bytes() == b"secret\ntail"
    assert b"secret" not in everything(active)


@pytest.mark.parametrize("at", ["before the hole", "after the hole"])
def test_a_crash_between_copy_and_name_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A move that was cut short is ended by the next look, with nothing lost and nothing twice."""
    active = tmp_path / "main.stdout.0"
    text = written(active, range(20_000))
    with monkeypatch.context() as patch:

        def die(*_: object) -> bool:
            raise KeyboardInterrupt

        patch.setattr(
            log_rotation, "_fallocate" if at == "before the hole" else "_number_file", die
        )
        with pytest.raises(KeyboardInterrupt):
            rotate(active, LIMITS)
    rotate(active, LIMITS)
    assert everything(active) == text


def test_a_file_system_that_only_makes_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the front cannot be taken out, readers skip the hole, and the log continues as before."""
    active = tmp_path / "main.stdout.0"
    real = log_rotation._fallocate

    def holes_only(fd: int, mode: int, offset: int, size: int) -> bool:
        return mode != log_rotation._COLLAPSE and real(fd, mode, offset, size)

    monkeypatch.setattr(log_rotation, "_fallocate", holes_only)
    text = written(active, range(20_000))
    rotate(active, LIMITS)
    text += written(active, range(20_000, 40_000))
    rotate(active, LIMITS)
    fd = os.open(active, os.O_RDONLY)
    start, end = data_range(fd)
    os.close(fd)
    assert 0 < start < end == len(text)
    assert everything(active) == text


def test_a_link_in_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    """A task that puts a link where its log was gets nothing of the agent's rights."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 500_000)
    active = tmp_path / "main.stdout.0"
    active.symlink_to(secret)
    with pytest.raises(OSError, match="symbolic"):
        rotate(active, LIMITS)
    assert secret.stat().st_size == 500_000


def test_a_follower_keeps_its_place_across_moves(tmp_path: Path) -> None:
    """What was read is not read again when it moves, and what moved before it was read is not skipped."""
    active = tmp_path / "main.stdout.0"
    files, text, read = reader(active), b"", b""
    for step in range(20):
        text += written(active, range(step * 3000, step * 3000 + 3000))
        if step % 3:
            while part := files.take():
                read += part
        rotate(active, LIMITS)
    while part := files.take():
        read += part
    assert read == text


def test_the_last_lines_span_files(tmp_path: Path) -> None:
    """The tail counts lines, wherever a file ends."""
    active = tmp_path / "main.stdout.0"
    text = written(active, range(20_000))
    rotate(active, LIMITS)
    assert reader(active).tail(7_000) == b"".join(text.splitlines(keepends=True)[-7_000:])
    assert reader(active).tail(0, 50) == b"".join(text.splitlines(keepends=True)[-3:])


def test_a_carriage_return_ends_no_line(tmp_path: Path) -> None:
    """A progress bar is one line of the tail, however often it was rewritten and however long it is."""
    active = tmp_path / "main.stdout.0"
    bar = b"".join(b"%d %%\r" % n for n in range(50_000))
    text = b"first\r\nsecond\n" + bar + b"\nlast\x0bone\n"
    active.write_bytes(text)
    assert reader(active).tail(3) == b"second\n" + bar + b"\nlast\x0bone\n"
    assert reader(active).tail(1) == b"last\x0bone\n"
    active.write_bytes(text + bar)
    assert reader(active).tail(1) == bar
    assert reader(active).tail(1, 1000) == bar[-1000:]


def test_a_reader_may_begin_at_the_end(tmp_path: Path) -> None:
    """Of what is there nothing is given, of what comes everything."""
    active = tmp_path / "main.stdout.0"
    written(active, range(20_000))
    rotate(active, LIMITS)
    log = reader(active)
    log.skip()
    assert log.take() == b""
    assert written(active, range(3)) == log.take()


def test_a_file_system_without_holes_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing can be taken out a log just grows; it is not copied again every second."""
    active = tmp_path / "main.stdout.0"
    text = written(active, range(20_000))
    asked = []
    monkeypatch.setattr(log_rotation, "_without_holes", set())
    monkeypatch.setattr(log_rotation, "_fallocate", lambda *args: bool(asked.append(args)))
    for _ in range(3):
        assert rotate(active, LIMITS) == 0
    assert len(asked) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["main.stdout.0"]
    assert everything(active) == text
