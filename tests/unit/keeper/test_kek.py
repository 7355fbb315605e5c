"""The key-encryption key in a file: made once, for its owner alone, and never printed."""

import asyncio
from pathlib import Path

import pytest

from services.keeper.__main__ import KeeperSettings, kek_source, next_kek_source
from services.keeper.kek import (
    FILE_NAME,
    NEXT_NAME,
    KekCommand,
    KekFile,
    KeyStoreFault,
    NextKekCommand,
    NextKekFile,
)
from shared.errors import ConfigInvalid


def test_a_file_is_made_once(tmp_path: Path) -> None:
    """The first read makes folder and file for their owner alone; every other one gives the same key."""
    source = KekFile(tmp_path / "a" / "keeper")
    key = asyncio.run(source.read(may_create=True))
    path = tmp_path / "a" / "keeper" / FILE_NAME
    assert len(key) == 32 and path.read_text() == f"{key.hex()}\n"
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert [asyncio.run(source.read(may_create=one)) for one in (True, False)] == [key, key]
    assert list(path.parent.iterdir()) == [path]
    assert asyncio.run(KekFile(tmp_path / "b").read(may_create=True)) != key


def test_a_missing_file_is_not_made_without_leave(tmp_path: Path) -> None:
    """Without leave a missing file is a fault that says what to copy, and nothing is made."""
    with pytest.raises(KeyStoreFault, match=r"keeper/kek is missing.*copy the file of the machine"):
        asyncio.run(KekFile(tmp_path / "keeper").read(may_create=False))
    assert not (tmp_path / "keeper").exists()


@pytest.mark.parametrize("text", [b"", b"ab" * 31, b"ab" * 33, b"XY" * 32, b"\xff" * 64, bytes(32)])
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, text: bytes) -> None:
    """A file with anything but 64 hex digits is refused; neither the error nor its cause shows the text."""
    path = tmp_path / FILE_NAME
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(KeyStoreFault, match="64 hex digits") as caught:
        asyncio.run(KekFile(tmp_path).read(may_create=True))
    assert path.read_bytes() == text
    assert len(text) < 9 or text.decode("latin-1") not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """The key must be for its owner alone; the reason names the command that makes it so."""
    source = KekFile(tmp_path)
    asyncio.run(source.read(may_create=True))
    (tmp_path / FILE_NAME).chmod(0o640)
    with pytest.raises(KeyStoreFault, match=r"chmod 600 .*kek"):
        asyncio.run(source.read(may_create=False))


def test_a_place_that_is_no_folder_is_a_fault(tmp_path: Path) -> None:
    """A folder that cannot be made or read is named with the system's reason."""
    (tmp_path / "keeper").write_text("")
    with pytest.raises(KeyStoreFault, match="cannot be used"):
        asyncio.run(KekFile(tmp_path / "keeper").read(may_create=True))


def test_the_settings_say_where_the_key_is(tmp_path: Path) -> None:
    """A command goes before a folder; without both the keeper does not start, and names the variables."""
    both = KeeperSettings(dir=str(tmp_path), kek_command="kms get 'a b'")
    assert isinstance(kek_source(both), KekCommand)
    assert isinstance(kek_source(KeeperSettings(dir=str(tmp_path))), KekFile)
    with pytest.raises(ConfigInvalid, match=r"CARAVAN_KEEPER_DIR .* CARAVAN_KEEPER_KEK_COMMAND"):
        kek_source(KeeperSettings())
    for bad in ("'", "  "):
        with pytest.raises(ConfigInvalid, match="CARAVAN_KEEPER_KEK_COMMAND"):
            kek_source(KeeperSettings(kek_command=bad))


def test_the_next_key_takes_the_name_of_the_present_one(tmp_path: Path) -> None:
    """It is made once beside it, for its owner alone; taking over twice, or without a file, changes nothing."""
    present, following = KekFile(tmp_path), NextKekFile(tmp_path)
    old = asyncio.run(present.read(may_create=True))
    assert asyncio.run(following.read_next()) is None
    following.take_over()
    assert asyncio.run(present.read(may_create=False)) == old
    new = asyncio.run(following.make())
    assert new == asyncio.run(following.make()) == asyncio.run(following.read_next()) != old
    assert (tmp_path / NEXT_NAME).stat().st_mode & 0o777 == 0o600
    for _ in range(2):
        following.take_over()
        assert asyncio.run(present.read(may_create=False)) == new
        assert [one.name for one in tmp_path.iterdir()] == [FILE_NAME]
    (tmp_path / NEXT_NAME).write_text("no key")
    (tmp_path / NEXT_NAME).chmod(0o600)
    with pytest.raises(KeyStoreFault, match="64 hex digits"):
        asyncio.run(following.read_next())


def test_where_the_next_key_is_sought() -> None:
    """A command where one is set, also beside a file; else a file of the folder; beside a command alone nowhere."""
    assert isinstance(next_kek_source(KeeperSettings(dir="/d")), NextKekFile)
    both = KeeperSettings(dir="/d", next_kek_command="print-key next")
    assert isinstance(next_kek_source(both), NextKekCommand)
    assert next_kek_source(KeeperSettings(dir="/d", kek_command="print-key")) is None
    with pytest.raises(ConfigInvalid, match="CARAVAN_KEEPER_NEXT_KEK_COMMAND"):
        next_kek_source(KeeperSettings(next_kek_command="'"))
