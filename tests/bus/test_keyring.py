"""Keys of a whole cluster: sealing keys are rotated, the store is wrapped anew, exported, lost and imported again."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.keeper.kek import FILE_NAME, NEXT_NAME, KekFile, KeyStoreFault
from services.keeper.key_entries import BusEntries
from services.keeper.key_store import KeyStore, OpenedKeys
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


def listed(up: Up, kind: str) -> list[dict[str, Any]]:
    """Keys of a kind, newest first."""
    keys = up.documented("operator", "keyring", "list")["keys"]
    return [one for one in keys if one["kind"] == kind]


def refusal_of_unknown(up: Up) -> str:
    """The code with which the removal of a key that never was is refused."""
    code, refused = up.run("operator", "keyring", "remove", "f" * 16)
    assert code == 1
    return str(refused["error"]["code"])


def held_lives(up: Up, folder: Path) -> list[str]:
    """Paths whose keys the store holds. Raises as `held` does."""
    return [one.path for one in held(up, folder).lives]


def signers(up: Up, folder: Path) -> list[str]:
    """Ids of the keys in the store that sign. Raises as `held` does."""
    return [one.key_id for one in held(up, folder).signing]


def held(up: Up, folder: Path) -> OpenedKeys:
    """What the store holds, opened with the key-encryption key of a folder. Raises KeyStoreFault."""
    cluster_id = up.ask("cluster")["cluster_id"]

    async def ask() -> OpenedKeys:
        known = accounts.read_credentials(up.data_dir / "credentials.json")
        user, password = known.login("keeper")
        client = await connect(Login(url=up.said["url"], user=user, password=password))
        try:
            store = KeyStore(BusEntries(lambda: client), KekFile(folder))
            return await store.open(cluster_id, may_create=False)
        finally:
            await client.end()

    return asyncio.run(ask())


def test_a_sealing_key_is_rotated_once(up: Up) -> None:
    """Old and new values are read before and after, also by the next keeper; a stale rotation is a conflict."""
    put(up, "app/old")
    [first] = listed(up, "sealing")
    assert first["in_force"]
    newer = up.documented("operator", "keyring", "rotate")["key_id"]
    keys = listed(up, "sealing")
    assert [(one["key_id"], one["in_force"]) for one in keys] == [
        (newer, True),
        (first["key_id"], False),
    ]
    code, refused = up.run("operator", "keyring", "rotate", "--in-force", first["key_id"])
    assert code == 1 and refused["error"]["code"] == "conflict"
    assert newer in refused["error"]["message"]
    put(up, "app/new")
    os.kill(up.said["services"]["keeper"], signal.SIGKILL)
    up.until(lambda: value(up, "app/old") == VALUE, "another keeper leads")
    assert value(up, "app/new") == VALUE
    put(up, "app/new")
    assert len(listed(up, "sealing")) == 2


def test_a_signing_key_is_rotated_and_removed(up: Up) -> None:
    """The newest signs, also for the next keeper; the one in force stays, a removed one is gone from log and store."""
    up.until(lambda: len(listed(up, "signing")) == 1, "the keeper has made its first signing key")
    [first] = listed(up, "signing")
    code, refused = up.run("operator", "keyring", "remove", first["key_id"])
    assert code == 1 and refused["error"]["code"] == "conflict"
    newer = up.documented("operator", "keyring", "rotate", "--signing")["key_id"]
    assert [(one["key_id"], one["in_force"]) for one in listed(up, "signing")] == [
        (newer, True),
        (first["key_id"], False),
    ]
    words = ("rotate", "--signing", "--in-force", first["key_id"])
    code, refused = up.run("operator", "keyring", *words)
    assert code == 1 and refused["error"]["code"] == "conflict"
    for _ in range(2):
        removed = up.documented("operator", "keyring", "remove", first["key_id"])
        assert removed["key_id"] == newer
    assert [one["key_id"] for one in listed(up, "signing")] == [newer]
    folder = up.data_dir / "keeper"
    up.until(lambda: signers(up, folder) == [newer], "the private part is erased")
    assert refusal_of_unknown(up) == "not_found"
    os.kill(up.said["services"]["keeper"], signal.SIGKILL)
    up.until(lambda: refusal_of_unknown(up) == "not_found", "another keeper leads")
    later = up.documented("operator", "keyring", "rotate", "--signing")["key_id"]
    assert [one["key_id"] for one in listed(up, "signing")] == [later, newer]
    assert sorted(signers(up, folder)) == sorted((later, newer))


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
    signer = up.documented("operator", "keyring", "rotate", "--signing")["key_id"]
    kept = signers(up, folder)
    assert len(kept) == 2 and kept[-1] == signer

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
    assert sorted(signers(up, folder)) == sorted(kept)
    assert [one["key_id"] for one in listed(up, "signing")] == kept[::-1]
    # The export is of before the rotation: the keeper makes another key for clients by itself.
    put(up, "app/new")
    assert value(up, "app/new") == VALUE
    passphrase.unlink()
    marks = (VALUE.encode(), PASSPHRASE.encode())
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert [one for one in files if any(mark in one.read_bytes() for mark in marks)] == []
