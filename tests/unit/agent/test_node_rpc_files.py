"""Looking into an allocation's directory: what is inside and plain, and no way out of it (cases 37 and 38)."""

import os
import socket
from pathlib import Path

import pytest

from schemas.node_rpc import FilesAsk
from services.agent.node_rpc import files
from shared.errors import CommandInvalid
from tests.open_files import held_below

ALLOC = "0ff818a0-6e84-fdd6-fc51-b25ce88e1f8b"
SECRET = b"the host's own"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A data directory with one allocation, and a secret beside it."""
    home = tmp_path / "agent"
    own = home / "alloc" / ALLOC
    for part in ("alloc/logs", "alloc/data", "server/local", "server/secrets"):
        (own / part).mkdir(parents=True)
    (own / "server/local/out.txt").write_bytes(b"0123456789")
    (own / "server/secrets/token").write_bytes(SECRET)
    (tmp_path / "shadow").write_bytes(SECRET)
    (home / "alloc" / "other").mkdir()
    (home / "alloc" / "other" / "file").write_bytes(SECRET)
    return home


def at(path: str, **fields: int) -> FilesAsk:
    return FilesAsk(alloc_id=ALLOC, path=path, **fields)


def code_of(top: Path, path: str) -> str:
    """The code of the refusal to read a path."""
    with pytest.raises(CommandInvalid) as fault:
        files.read_file(top, at(path))
    return fault.value.code


def test_what_is_inside_is_listed_described_and_read(top: Path) -> None:
    """Directories by name, a file with its size, its bytes from anywhere on."""
    assert [one.name for one in files.list_files(top, at("")).files] == ["alloc", "server"]
    one = files.stat_file(top, at("server/local/out.txt")).files[0]
    assert (one.name, one.kind, one.size) == ("out.txt", "file", 10)
    part = files.read_file(top, at("/server//./local/out.txt", offset=3, limit=4))
    assert (part.data, part.size) == (b"3456", 10)
    assert files.read_file(top, at("server/local/out.txt", offset=99)).data == b""


@pytest.mark.parametrize(
    "path",
    ["..", "../other/file", "server/../../other/file", "server/local/../../../../shadow", "a\0b"],
)
def test_no_path_leads_out(top: Path, path: str) -> None:
    """37: a step back is refused before anything is opened."""
    assert code_of(top, path) in {"refused", "invalid"}


@pytest.mark.parametrize("alloc_id", ["..", "../alloc/other", "", "nowhere", "/", "other/.."])
def test_an_allocation_is_no_path(top: Path, alloc_id: str) -> None:
    """37: ids are tokens; who names a path as one finds nothing."""
    with pytest.raises(CommandInvalid) as fault:
        files.read_file(top, FilesAsk(alloc_id=alloc_id, path="file"))
    assert fault.value.code == "not_found"


def test_no_link_is_followed(top: Path) -> None:
    """38: not at the end of a path, not on the way, not to what is inside either; it is shown as what it is."""
    local = top / "alloc" / ALLOC / "server/local"
    (local / "file").symlink_to(top.parent / "shadow")
    (local / "dir").symlink_to(top.parent)
    (local / "near").symlink_to("out.txt")
    (local / "proc").symlink_to("/proc/self/root")
    for path in ("file", "near"):
        assert code_of(top, f"server/local/{path}") == "invalid"
    for path in ("dir/shadow", "proc/etc/passwd"):
        assert code_of(top, f"server/local/{path}") == "refused"
    kinds = {one.name: one.kind for one in files.list_files(top, at("server/local")).files}
    assert kinds["file"] == kinds["dir"] == "link"


def test_secrets_are_the_tasks_alone(top: Path) -> None:
    """41: what is in secrets/ is neither listed nor read, by no spelling; that it is there may be seen."""
    for path in ("server/secrets/token", "server/secrets", "/server/./secrets//token"):
        with pytest.raises(CommandInvalid) as fault:
            files.list_files(top, at(path))
        assert fault.value.code == "refused"
        assert code_of(top, path) == "refused"
    assert "secrets" in {one.name for one in files.list_files(top, at("server")).files}


def test_pipes_sockets_and_devices_are_never_opened(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """38: a pipe without a writer does not block, and a device is not read."""
    local = top / "alloc" / ALLOC / "server/local"
    os.mkfifo(local / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        # The name of a socket must be short.
        monkeypatch.chdir(local)
        made.bind("sock")
    if os.geteuid() == 0:
        os.mknod(local / "zero", 0o666 | 0o020000, os.makedev(1, 5))
    for name in ("pipe", "sock", *(("zero",) if os.geteuid() == 0 else ())):
        assert code_of(top, f"server/local/{name}") == "invalid"
        assert files.stat_file(top, at(f"server/local/{name}")).files[0].kind == "other"


def test_a_huge_file_is_read_in_parts(top: Path) -> None:
    """However much is asked for, an answer is bounded; the end of a file without end can be read."""
    path = top / "alloc" / ALLOC / "alloc/data/huge"
    with path.open("wb") as out:
        out.truncate(1 << 40)
        out.seek((1 << 40) - 3)
        out.write(b"end")
    part = files.read_file(top, at("alloc/data/huge", limit=1 << 40))
    assert len(part.data) == files.PART_BYTES_MAX and part.size == 1 << 40
    assert files.read_file(top, at("alloc/data/huge", offset=(1 << 40) - 3)).data == b"end"


def test_a_directory_without_end_is_listed_in_pages(top: Path) -> None:
    """A page is bounded, pages do not overlap, and names that are no text are shown."""
    local = top / "alloc" / ALLOC / "server/local"
    for number in range(files.ENTRIES_MAX + 5):
        (local / f"f{number:05}").touch()
    Path(os.fsdecode(os.fsencode(local) + b"/\xff\xfe")).touch()
    first = files.list_files(top, at("server/local"))
    rest = files.list_files(top, at("server/local", offset=len(first.files)))
    names = [one.name for one in (*first.files, *rest.files)]
    assert len(first.files) == files.ENTRIES_MAX
    assert first.total == len(set(names)) == files.ENTRIES_MAX + 7
    assert "\\xff\\xfe" in names


def test_what_is_not_there_is_said(top: Path) -> None:
    """A missing file, a file where a directory should be."""
    assert code_of(top, "server/local/nothing") == "not_found"
    assert code_of(top, "server/local/out.txt/x") == "not_found"
    assert code_of(top, "server/local") == "invalid"


def test_no_descriptor_is_left_open(top: Path) -> None:
    """Whatever an answer was, what it opened is closed."""
    for path in ("server/local/out.txt", "server/local/nothing", "server/secrets/x", "..", "a/b"):
        for look in (files.read_file, files.list_files, files.stat_file):
            try:
                look(top, at(path))
            except CommandInvalid:
                continue
    assert held_below(top.parent) == []
