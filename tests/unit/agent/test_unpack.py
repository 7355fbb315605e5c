"""Archives and trees of others: what is refused while it is written, and what the agent checks again."""

import io
import os
import stat
import zipfile
from pathlib import Path

import pytest

from services.agent.inputs.artifacts.fetch_order import FetchRefused
from services.agent.inputs.artifacts.inner_links import is_inner_link
from services.agent.inputs.artifacts.move_in import move_in
from services.agent.inputs.artifacts.unpack import Unpacker
from tests.integration.test_artifacts import tar


def test_a_bomb_is_stopped_by_its_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than so many times its own size, beyond a free part."""
    monkeypatch.setattr("services.agent.inputs.artifacts.unpack.RATIO_FREE_BYTES", 1_000)
    data = tar(("f", b"\0" * 3_000_000))
    fd = os.open(tmp_path, os.O_RDONLY)
    one = Unpacker(fd, bytes_max=10**9, files_max=9, packed_bytes=len(data) // 10)
    with pytest.raises(FetchRefused, match="times its size"):
        one.unpack("tar.gz", io.BytesIO(data))
    os.close(fd)


def test_encrypted_and_special_entries_of_a_zip_are_refused(tmp_path: Path) -> None:
    """Links are kept where they stay inside."""
    fd = os.open(tmp_path, os.O_RDONLY)
    for target, is_fine in (("b", True), ("/etc", False), ("../../b", False)):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            info = zipfile.ZipInfo(f"l{len(target)}")
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, target)
        one = Unpacker(fd, bytes_max=10**6, files_max=9, packed_bytes=100)
        if is_fine:
            one.unpack("zip", out)
        else:
            with pytest.raises(FetchRefused, match="leads out"):
                one.unpack("zip", out)
    os.close(fd)


@pytest.mark.parametrize(
    ("link", "target", "is_inner"),
    [
        ("a", "b", True),
        ("a", ".", True),
        ("d/a", "../b", True),
        ("a", "../b", False),
        ("a", "/b", False),
        ("a", "b/../../c", False),
        ("d/a", "x/../../b", False),
        ("a", "", False),
    ],
)
def test_a_link_goes_up_first_and_no_higher_than_its_tree(
    link: str, target: str, *, is_inner: bool
) -> None:
    """Then no chain of links of one tree leads out of it."""
    assert is_inner_link(tuple(link.split("/")), target) is is_inner


def test_the_agent_trusts_no_tree_of_a_helper(tmp_path: Path) -> None:
    """A hard link to another file, a device, a link out: refused before anything is moved."""
    source, target = tmp_path / "out", tmp_path / "to"
    source.mkdir()
    (tmp_path / "secret").write_bytes(b"s")
    (source / "a").write_bytes(b"a")
    os.link(tmp_path / "secret", source / "b")
    with pytest.raises(FetchRefused, match="hard links"):
        move_in(tmp_path, source, target, owner=None)
    (source / "b").unlink()
    os.mkfifo(source / "b")
    with pytest.raises(FetchRefused, match="regular"):
        move_in(tmp_path, source, target, owner=None)
    assert not target.exists()
