"""Keys of a whole cluster: sealing keys are rotated, the store is wrapped anew, exported, lost and imported again."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.keeper.kek import FILE_NAME, NEXT_NAME, KekFile, KeyStoreFault
from services.keeper.key_entries import BusEntries
from services.keeper.key_store import KeyStore
from shared.bus.connection.nats_client import Login, connect
from shared.bus.jetstream import streams
from shared.bus.server import accounts
from shared.protocol import subjects
from tests.bus.up import Up

pytestmark = pytest.mark.bus

VALUE = "marker-77aa-of-a-value"
PASSPHRASE = "marker-77aa-of-a-passphrase"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A cluster with a keeper, which is a process of its own."""
    running = Up(tmp_path)
    yield running
    running.end()


def put(up: Up, path: str, *more: str) -> None:
    """Store one value, given by standard input."""
    words = up._command("var", "put", path, "secret=-", "--force", *more, "--json")
    done = subprocess.run(words, env=up.env, input=VALUE.encode(), capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)


def value(up: Up, path: str) -> str:
    """What a path has; its code where it cannot be read."""
    code, found = up.run("var", "get", path)
    return str(found["items"]["secret"] if code == 0 else found["error"]["code"])


def lose_keys(up: Up) -> None:
    """Delete the stream of the keys, with the rights of the administrator."""

    async def ask() -> None:
        known = accounts.read_credentials(up.data_dir / "credentials.json")
        user, password = known.login(accounts.ADMIN)
        client = await connect(Login(url=up.said["url"], user=user, password=password))
        await client.ask(subjects.js_stream_delete(streams.KEYS.name), b"")
        await client.end()

    asyncio.run(ask())


def held_lives(up: Up, folder: Path) -> list[str]:
    """Paths whose keys the store holds, opened with the key-encryption key of a folder. Raises KeyStoreFault."""
    cluster_id = up.ask("cluster")["cluster_id"]

    async def ask() -> list[str]:
        known = accounts.read_credentials(up.data_dir / "credentials.json")
        user, password = known.login("keeper")
        client = await connect(Login(url=up.said["url"], user=user, password=password))
        try:
            store = KeyStore(BusEntries(lambda: client), KekFile(folder))
            found = await store.open(cluster_id, may_create=False)
        finally:
            await client.end()
        return [one.path for one in found.lives]

    return asyncio.run(ask())


def test_a_sealing_key_is_rotated_once(up: Up) -> None:
    """Old and new values are read before and after, also by the next keeper; a stale rotation is a conflict."""
    put(up, "app/old")
    [first] = up.documented("operator", "keyring", "list")["keys"]
    assert first["in_force"]
    newer = up.documented("operator", "keyring", "rotate")["key_id"]
    keys = up.documented("operator", "keyring", "list")["keys"]
    assert [(one["key_id"], one["in_force"]) for one in keys] == [
        (newer, True),
        (first["key_id"], False),
    ]
    code, refused = up.run("operator", "keyring", "rotate", "--in-force", first["key_id"])
    assert code == 1 and refused["error"]["code"] == "conflict"
    assert newer in refused["error"]["message"]
    for words in (("rotate", "--signing"), ("remove", newer)):
        code, refused = up.run("operator", "keyring", *words)
        assert code == 1 and refused["error"]["code"] == "invalid"
        assert "not built yet" in refused["error"]["message"]
    put(up, "app/new")
    os.kill(up.said["services"]["keeper"], signal.SIGKILL)
    up.until(lambda: value(up, "app/old") == VALUE, "another keeper leads")
    assert value(up, "app/new") == VALUE
    put(up, "app/new")
    assert len(up.documented("operator", "keyring", "list")["keys"]) == 2


def test_the_store_is_wrapped_anew_exported_and_imported(up: Up, tmp_path: Path) -> None:
    """Values are read at each stage; the former key opens nothing; what was purged since the export stays purged."""
    for path in ("app/kept", "app/purged"):
        put(up, path)
    folder, former = up.data_dir / "keeper", tmp_path / "former"
    former.mkdir()
    (former / FILE_NAME).write_bytes((folder / FILE_NAME).read_bytes())
    (former / FILE_NAME).chmod(0o600)
    assert held_lives(up, former) == ["app/kept", "app/purged"]
    code, refused = up.run("operator", "keyring", "rewrap")
    assert code == 1 and "--prepare" in refused["error"]["message"]
    prepared = up.documented("operator", "keyring", "rewrap", "--prepare")
    assert prepared == {"file": str(folder / NEXT_NAME)}
    assert (folder / NEXT_NAME).stat().st_mode & 0o777 == 0o600
    found = up.documented("operator", "keyring", "rewrap", "--data-dir", str(up.data_dir))
    assert found["moved"] >= 4 and found["unreadable"] == 0
    assert not (folder / NEXT_NAME).exists()
    with pytest.raises(KeyStoreFault, match="was wrapped by another key-encryption key"):
        held_lives(up, former)
    assert held_lives(up, folder) == ["app/kept", "app/purged"]
    assert value(up, "app/kept") == VALUE
    put(up, "app/later")

    file, passphrase = tmp_path / "keyring", tmp_path / "passphrase"
    passphrase.write_text(f"{PASSPHRASE}\n")
    given = ("--passphrase-file", str(passphrase))
    made = up.documented("operator", "keyring", "export", str(file), *given)
    assert made["keys"] >= 5 and file.stat().st_mode & 0o777 == 0o600
    code, refused = up.run("operator", "keyring", "import", str(file), *given)
    assert code == 1 and "only imported into an empty one" in refused["error"]["message"]
    up.documented("var", "purge", "app/purged")
    up.until(lambda: "app/purged" not in held_lives(up, folder), "the key of the life is erased")
    up.documented("operator", "keyring", "rotate")
    lose_keys(up)
    up.until(
        lambda: value(up, "app/kept") == "unavailable", "the keeper sees that its keys are lost"
    )
    (tmp_path / "wrong").write_text("another passphrase\n")
    code, refused = up.run(
        "operator", "keyring", "import", str(file), "--passphrase-file", str(tmp_path / "wrong")
    )
    assert code == 1 and "passphrase is wrong" in refused["error"]["message"]
    up.documented("operator", "keyring", "import", str(file), *given)
    up.until(lambda: held_lives(up, folder) == ["app/kept", "app/later"], "it is erased again")
    up.until(lambda: value(up, "app/kept") == VALUE, "the keeper has opened the store again")
    assert (value(up, "app/later"), value(up, "app/purged")) == (VALUE, "not_found")
    # The export is of before the rotation: the keeper makes another key for clients by itself.
    put(up, "app/new")
    assert value(up, "app/new") == VALUE
    passphrase.unlink()
    marks = (VALUE.encode(), PASSPHRASE.encode())
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert [one for one in files if any(mark in one.read_bytes() for mark in marks)] == []
