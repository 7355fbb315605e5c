"""Files below a directory that tasks write to: no link, pipe or second name is ever opened."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.agent.safe_open import (
    APPEND,
    HANDLE,
    open_below,
    open_log,
    open_regular,
    open_within,
    replace_below,
    write_below,
)
from tests import open_files


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """`a/b/` and a file in it; beside it `secret/` with a key, and links to it at every step."""
    place = tmp_path / "top"
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "b" / "file").write_text("mine")
    (tmp_path / "secret" / "b").mkdir(parents=True)
    (tmp_path / "secret" / "key").write_text("key")
    (place / "link").symlink_to(tmp_path / "secret")
    (place / "a" / "link").symlink_to("../../secret")
    (place / "a" / "key").symlink_to(tmp_path / "secret" / "key")
    yield place
    assert open_files.held_below(tmp_path) == []


def close(fd: int) -> os.stat_result:
    """Close a descriptor. Returns what it was."""
    found = os.fstat(fd)
    os.close(fd)
    return found


@pytest.mark.parametrize("path", ["a/b", "", "."])
def test_a_directory_is_opened(top: Path, path: str) -> None:
    """A path is relative to the top or below it, with or without steps."""
    assert close(open_below(top, path)).st_ino == (top / path).stat().st_ino
    assert close(open_below(top, top / path)).st_ino == (top / path).stat().st_ino


@pytest.mark.parametrize(
    ("path", "number", "step"),
    [
        ("link", errno.ELOOP, "link"),
        ("link/b", errno.ELOOP, "link"),
        ("a/link/b", errno.ELOOP, "a/link"),
        ("a/b/file", errno.ENOTDIR, "a/b/file"),
        ("a/b/file/x", errno.ENOTDIR, "a/b/file"),
        ("a/none/x", errno.ENOENT, "a/none"),
        ("a/../../secret", errno.EPERM, "a/.."),
    ],
)
def test_what_is_in_the_way_is_named(top: Path, path: str, number: int, step: str) -> None:
    """A link, a file, a missing step or `..` fails the open, and the error names the step."""
    for mode in (0, 0o755) if number != errno.ENOENT else (0,):
        with pytest.raises(OSError, match=r".") as caught:
            open_below(top, path, make_mode=mode)
        assert (caught.value.errno, caught.value.filename) == (number, step)
    assert not (top.parent / "secret" / "x").exists()


def test_a_path_above_the_top_is_refused(top: Path) -> None:
    """An absolute path must be below the top."""
    with pytest.raises(ValueError, match="subpath"):
        open_below(top, top.parent / "secret")


def test_missing_directories_are_made(top: Path) -> None:
    """Each missing step is created below the one before."""
    close(open_below(top, "x/y/z", make_mode=0o700))
    assert stat.S_IMODE((top / "x" / "y" / "z").stat().st_mode) == 0o700
    directory = open_below(top, "x")
    close(open_within(directory, "y/w", make_mode=0o755))
    os.close(directory)
    assert (top / "x" / "y" / "w").is_dir()


def test_a_handle_shows_a_link_as_a_link(top: Path) -> None:
    """A handle on the last step is of whatever is there; links before it are refused."""
    assert stat.S_ISLNK(close(open_below(top, "a/key", flags=HANDLE)).st_mode)
    assert stat.S_ISREG(close(open_below(top, "a/b/file", flags=HANDLE)).st_mode)
    with pytest.raises(OSError, match="symbolic link"):
        open_below(top, "link/key", flags=HANDLE)


@pytest.mark.parametrize("kind", ["link", "pipe", "second name", "directory"])
def test_only_a_regular_file_is_a_log(top: Path, kind: str) -> None:
    """Neither appending nor reading opens anything but a regular file with one name, and neither waits."""
    path = top / "a" / "b" / "log"
    if kind == "link":
        path.symlink_to(top.parent / "secret" / "key")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "second name":
        path.hardlink_to(top.parent / "secret" / "key")
    else:
        path.mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        open_log(top, path)
    directory = open_below(top, "a/b")
    with pytest.raises(OSError, match="not a regular file"):
        open_regular("log", directory, os.O_RDONLY)
    os.close(directory)
    assert (top.parent / "secret" / "key").read_text() == "key"


def test_a_log_is_appended_to(top: Path) -> None:
    """A log is created when missing, with its mode, and appended to."""
    for text in (b"one ", b"two"):
        fd = open_log(top, "a/b/log", 0o640)
        assert os.get_blocking(fd)
        os.write(fd, text)
        os.close(fd)
    assert (top / "a" / "b" / "log").read_text() == "one two"
    directory = open_below(top, "a/b")
    with pytest.raises(FileNotFoundError):
        open_regular("none", directory, APPEND & ~os.O_CREAT)
    os.close(directory)


@pytest.mark.parametrize("path", ["a/b/new", "fresh/deep/new"])
def test_a_new_file_is_written_whole_with_its_mode(top: Path, path: str) -> None:
    """Directories on the way are made, and no draft stays behind."""
    write_below(top, path, b"data", mode=0o640)
    found = top / path
    assert found.read_bytes() == b"data" and stat.S_IMODE(found.stat().st_mode) == 0o640
    assert not [one for one in found.parent.iterdir() if one.name.endswith(".draft")]


def test_a_file_that_is_there_stays_and_a_link_is_not_followed(top: Path, tmp_path: Path) -> None:
    """What a task left in the place of a file is not written through; a link on the way is an error."""
    write_below(top, "a/b/file", b"other", mode=0o600)
    assert (top / "a" / "b" / "file").read_text() == "mine"
    write_below(top, "a/key", b"other", mode=0o600)
    assert (tmp_path / "secret" / "key").read_text() == "key"
    for path in ("link/new", "a/link/b/new", "a/../../up"):
        with pytest.raises(OSError, match=r"symbolic link|must not contain \.\."):
            write_below(top, path, b"other", mode=0o600)
    assert sorted(one.name for one in (tmp_path / "secret").iterdir()) == ["b", "key"]


def test_a_draft_that_was_left_is_replaced(top: Path, tmp_path: Path) -> None:
    """Also a link in its place: an agent that died while it wrote, or a task, may have left it."""
    (top / "a" / ".new.draft").symlink_to(tmp_path / "secret" / "key")
    write_below(top, "a/new", b"data", mode=0o600)
    assert (top / "a" / "new").read_bytes() == b"data"
    assert (tmp_path / "secret" / "key").read_text() == "key"


def test_a_file_is_replaced_whole_and_one_that_is_equal_stays(top: Path) -> None:
    """Mode and owner count, too; a file with a second name is never kept."""
    path = top / "new" / "x"
    own = {"mode": 0o640, "owner": (-1, -1)}
    assert replace_below(top, path, b"one", **own)  # type: ignore[arg-type]
    before = path.stat()
    assert not replace_below(top, path, b"one", **own)  # type: ignore[arg-type]
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert replace_below(top, path, b"two", **own)  # type: ignore[arg-type]
    assert path.read_bytes() == b"two"
    assert replace_below(top, path, b"two", mode=0o600, owner=(-1, -1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (top / "second").hardlink_to(path)
    assert replace_below(top, path, b"two", mode=0o600, owner=(-1, -1))
    assert path.stat().st_nlink == 1
    assert sorted(one.name for one in path.parent.iterdir()) == ["x"]


def test_what_has_the_name_is_replaced_and_never_followed(top: Path, tmp_path: Path) -> None:
    """A link and a pipe give way to the file, a directory does not."""
    key = tmp_path / "secret" / "key"
    (top / "to_key").symlink_to(key)
    os.mkfifo(top / "new_pipe")
    for name in ("to_key", "new_pipe"):
        assert replace_below(top, top / name, b"key", mode=0o644, owner=(-1, -1))
        assert not (top / name).is_symlink()
        assert (top / name).read_bytes() == b"key"
    assert key.read_text() == "key"
    with pytest.raises(IsADirectoryError):
        replace_below(top, top / "a", b"x", mode=0o644, owner=(-1, -1))
