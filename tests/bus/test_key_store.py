"""The key store on a real server: made once, opened again, refused where it is another, and erased from the files."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from schemas.variables import VariableLife
from services.keeper.__main__ import build
from services.keeper.kek import FILE_NAME, KekFile, KeyStoreFault, KeyStoreReplaced, NextKekFile
from services.keeper.key_entries import BusEntries
from services.keeper.key_store import KeyStore, OpenedKeys, data_name
from services.keeper.rewrap import rewrap
from services.keeper.vault import KeyVault, Report
from services.keeper.wrapped_keys import StoredKey
from shared.bus.connection.nats_client import BusClient
from shared.bus.jetstream import streams
from shared.bus.jetstream.direct_get import BATCH_MESSAGES
from shared.bus.process.settings import RunSettings
from shared.core.runtime import keeper_messages as k
from shared.errors import BusUnavailable
from shared.protocol import subjects
from shared.protocol.variable_items import encode_items
from shared.sealed_box import new_pair, open_box, seal
from tests.bounds import WAIT_S
from tests.bus.toys import Bus, Toy, run, until

pytestmark = pytest.mark.bus

CLUSTER = "cluster-1"
LIFE = VariableLife(path="app/db", incarnation=1)
MARKER = "swordfish-4711"


@asynccontextmanager
async def keeper(bus: Bus, folder: Path) -> AsyncIterator[tuple[KeyStore, BusClient]]:
    """A key store with the rights of a keeper, and its connection."""
    async with bus.client("keeper") as client:
        yield KeyStore(BusEntries(lambda: client), KekFile(folder)), client


async def opened(
    bus: Bus, folder: Path, *, cluster_id: str = CLUSTER, may_create: bool = False
) -> OpenedKeys:
    """Open the store as another process would. Raises KeyStoreFault."""
    async with keeper(bus, folder) as (store, _):
        return await store.open(cluster_id, may_create=may_create)


def files_of(top: Path) -> bytes:
    """Everything that the server has on disk."""
    return b"".join(one.read_bytes() for one in sorted(top.rglob("*")) if one.is_file())


def test_a_store_is_made_once_and_opened_again(bus: Bus, tmp_path: Path) -> None:
    """Keys, the pair that clients seal for and the lives whose keys are held outlive process and server."""

    async def story() -> None:
        await bus.bootstrap()
        async with keeper(bus, tmp_path / "k") as (store, _):
            first = await store.open(CLUSTER, may_create=True)
            assert first.lives == ()
            key = await store.data_key(LIFE, may_create=True)
            assert key is not None and len(key) == 32
            assert await store.data_key(LIFE, may_create=True) == key
        bus.server.stop()
        bus.server.start()
        async with keeper(bus, tmp_path / "k") as (store, _):
            again = await store.open(CLUSTER, may_create=False)
            assert again == msgspec.structs.replace(first, lives=(LIFE,))
            assert await store.data_key(LIFE, may_create=False) == key
            other = VariableLife(path="app/db", incarnation=2)
            assert await store.data_key(other, may_create=False) is None
        assert (tmp_path / "k" / FILE_NAME).stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "k").stat().st_mode & 0o777 == 0o700

    run(story())


def test_thousands_of_lives_are_told(bus: Bus, tmp_path: Path) -> None:
    """A store tells of every life whose key it holds, however many batches that takes."""

    async def story() -> None:
        await bus.bootstrap()
        await opened(bus, tmp_path / "k", may_create=True)
        count = BATCH_MESSAGES + 10
        lives = [VariableLife(path=f"p/{number:04}", incarnation=1) for number in range(count)]
        async with bus.client() as admin:
            for life in lives:
                body = StoredKey(wrapped=b"x", path=life.path, incarnation=life.incarnation)
                admin.send(subjects.key_entry(data_name(life)), msgspec.json.encode(body))
            # Behind all of them, each of which is fsynced.
            await admin.request_raw(subjects.key_entry("last"), b"", timeout_s=WAIT_S)
        assert list((await opened(bus, tmp_path / "k")).lives) == lives

    run(story())


def test_another_key_opens_nothing(bus: Bus, tmp_path: Path) -> None:
    """A keeper whose folder has another key, no key or the store of another cluster says so, and makes no key."""

    async def story() -> None:
        await bus.bootstrap()
        await opened(bus, tmp_path / "k", may_create=True)
        await KekFile(tmp_path / "other").read(may_create=True)
        with pytest.raises(KeyStoreFault, match=r"copy keeper/kek of the machine that made it"):
            await opened(bus, tmp_path / "other", may_create=True)
        for may_create in (True, False):
            with pytest.raises(KeyStoreFault, match=r"none/kek is missing"):
                await opened(bus, tmp_path / "none", may_create=may_create)
        assert not (tmp_path / "none").exists()
        with pytest.raises(KeyStoreFault, match=r"keys of another cluster"):
            await opened(bus, tmp_path / "k", cluster_id="cluster-2", may_create=True)
        await opened(bus, tmp_path / "k")

    run(story())


def test_a_lost_store_is_not_begun_anew(bus: Bus, tmp_path: Path) -> None:
    """Where the log knows of keys, a store that is missing, empty or another stream stops the keeper."""

    async def story() -> None:
        await bus.bootstrap()
        with pytest.raises(KeyStoreFault, match=r"KEYS is missing.*restore it"):
            await opened(bus, tmp_path / "k")
        assert not (tmp_path / "k").exists()
        async with bus.client() as admin:
            assert await streams.info(admin, streams.KEYS.name) is None
            await opened(bus, tmp_path / "k", may_create=True)
            await admin.ask(subjects.js_stream_purge(streams.KEYS.name), b"")
            with pytest.raises(KeyStoreFault, match=r"KEYS is empty.*restore it"):
                await opened(bus, tmp_path / "k")
            await admin.ask(subjects.js_stream_delete(streams.KEYS.name), b"")
            wrong = msgspec.structs.replace(streams.KEYS, storage="memory")
            await streams.create(admin, wrong)
        with pytest.raises(KeyStoreFault, match=r"storage is 'memory'"):
            await opened(bus, tmp_path / "k", may_create=True)

    run(story())


def test_a_store_whose_making_was_cut_is_finished(bus: Bus, tmp_path: Path) -> None:
    """A keeper that ended while it made the store leaves one that the next keeper completes."""

    async def story() -> None:
        await bus.bootstrap()
        first = await opened(bus, tmp_path / "k", may_create=True)
        async with keeper(bus, tmp_path / "k") as (_, client):
            entries = BusEntries(lambda: client)
            for name in ("digest", f"door.{first.door_id}"):
                await entries.erase(name)
                with pytest.raises(KeyStoreFault, match=r"KEYS has no entry (digest|door)"):
                    await opened(bus, tmp_path / "k")
            second = await opened(bus, tmp_path / "k", may_create=True)
        assert second.digest != first.digest and second.door_id != first.door_id
        assert await opened(bus, tmp_path / "k") == second

    run(story())


@pytest.mark.parametrize("shared", [True, False])
def test_two_keepers_at_once_agree(bus: Bus, tmp_path: Path, shared: bool) -> None:  # noqa: FBT001
    """Of keepers that begin together one makes each key, others read it; with another folder they are refused."""

    async def story() -> None:
        await bus.bootstrap()
        folders = [tmp_path / ("k" if shared else f"k{number}") for number in range(6)]
        found = await asyncio.gather(
            *(opened(bus, one, may_create=True) for one in folders), return_exceptions=True
        )
        made = [one for one in found if isinstance(one, OpenedKeys)]
        refused = [one for one in found if isinstance(one, KeyStoreFault)]
        assert len(made) + len(refused) == len(folders) and all(one == made[0] for one in made)
        assert len(made) == (len(folders) if shared else 1)
        assert all(
            re.search("copy (keeper/kek|the file) of the machine", str(one)) for one in refused
        )
        where = folders[found.index(made[0])]
        async with keeper(bus, where) as (one, _), keeper(bus, where) as (two, _):
            for store in (one, two):
                await store.open(CLUSTER, may_create=False)
            asked = [store.data_key(LIFE, may_create=True) for store in (one, two) * 4]
            keys = await asyncio.gather(*asked)
            assert len(set(keys)) == 1 and keys[0] is not None

    run(story())


def test_keepers_that_rotate_at_once_make_one_key(bus: Bus, tmp_path: Path) -> None:
    """Of keepers that rotate the same sealing key the first one's is stored, and the others get that."""

    async def story() -> None:
        await bus.bootstrap()
        first = await opened(bus, tmp_path / "k", may_create=True)
        known = (first.door_id,)
        async with keeper(bus, tmp_path / "k") as (one, _), keeper(bus, tmp_path / "k") as (two, _):
            for store in (one, two):
                await store.open(CLUSTER, may_create=False)
            made = await asyncio.gather(*(store.new_sealing_key(known) for store in (one, two) * 3))
            assert len({pair.key_id for pair in made}) == 1
            later = await two.new_sealing_key((*known, made[0].key_id))
        again = await opened(bus, tmp_path / "k")
        assert [pair.key_id for pair in again.doors] == [*known, made[0].key_id, later.key_id]

    run(story())


def test_a_key_that_is_made_while_the_store_is_wrapped_anew_is_kept(
    bus: Bus, tmp_path: Path
) -> None:
    """Keys that a keeper makes during the run are as it said, and the former KEK opens none."""

    async def story() -> None:
        await bus.bootstrap()
        folder = tmp_path / "k"
        await opened(bus, folder, may_create=True)
        following = await NextKekFile(folder).make()
        present = await KekFile(folder).read(may_create=False)
        lives = [VariableLife(path=f"p/{number:02}", incarnation=1) for number in range(60)]
        async with bus.client("keeper") as client, bus.client("keeper") as other:
            store = KeyStore(BusEntries(lambda: client), KekFile(folder), NextKekFile(folder))
            await store.open(CLUSTER, may_create=False)
            for life in lives[:30]:
                await store.data_key(life, may_create=True)
            work = asyncio.create_task(rewrap(BusEntries(lambda: other), present, following))
            made = {life.path: await store.data_key(life, may_create=True) for life in lives}
            done = await work
            assert done.moved >= 30 and not done.unreadable
            await store.erase(lives[10:20])
            kept = lives[:10] + lives[20:]
            for life in kept:
                assert await store.data_key(life, may_create=False) == made[life.path]
            with pytest.raises(KeyStoreFault, match="another key-encryption key"):
                await KeyStore(BusEntries(lambda: client), KekFile(folder)).open(
                    CLUSTER, may_create=False
                )
            found = await store.open(CLUSTER, may_create=False)
            assert list(found.lives) == kept
            assert (folder / FILE_NAME).read_text().strip() == following.hex()
            entries = await BusEntries(lambda: client).read_all()
            assert all(one.name.startswith("next.") for one in entries)

    run(story())


def test_an_entry_is_never_written_over(bus: Bus, tmp_path: Path) -> None:
    """The server refuses a second message for an entry, from any sender and without a condition."""

    async def story() -> None:
        await bus.bootstrap()
        await opened(bus, tmp_path / "k", may_create=True)
        async with keeper(bus, tmp_path / "k") as (store, client), bus.client() as admin:
            await store.open(CLUSTER, may_create=False)
            key = await store.data_key(LIFE, may_create=True)
            for one in (client, admin):
                _, answer = await one.request_raw(subjects.key_entry(data_name(LIFE)), b"forged")
                assert b"maximum messages per subject exceeded" in answer
            assert await store.data_key(LIFE, may_create=False) == key

    run(story())


def test_a_smuggled_entry_is_no_key(bus: Bus, tmp_path: Path) -> None:
    """What another role had the server copy under a name of the store is not taken for a key."""

    async def story() -> None:
        await bus.bootstrap()
        await opened(bus, tmp_path / "k", may_create=True)
        name = data_name(LIFE)
        async with bus.client("view") as stolen, keeper(bus, tmp_path / "k") as (store, client):
            await store.open(CLUSTER, may_create=False)
            await stolen.request_raw(subjects.view_job("j"), b'{"wrapped":"AAAA"}')
            copied = subjects.js_direct_get("VIEW", subjects.view_job("j"))
            stolen.send(copied, b"", subjects.key_entry(name).encode())
            entries = BusEntries(lambda: client)
            while await entries.find(name) is None:
                await stolen.flush()
            with pytest.raises(KeyStoreFault, match=r"\(data\) is damaged"):
                await store.data_key(LIFE, may_create=True)
            assert (await opened(bus, tmp_path / "k")).lives == ()
            await store.erase((LIFE,))
            assert await store.data_key(LIFE, may_create=True) is not None

    run(story())


def test_an_erased_key_is_gone_from_the_files(bus: Bus, tmp_path: Path) -> None:
    """The wrapped key of a life that is over is in no file of the bus, also after a restart; others stay."""

    async def story() -> None:
        await bus.bootstrap()
        await opened(bus, tmp_path / "k", may_create=True)
        other = VariableLife(path="app/other", incarnation=1)
        async with keeper(bus, tmp_path / "k") as (store, client):
            await store.open(CLUSTER, may_create=False)
            entries = BusEntries(lambda: client)
            stored = {}
            for life in (LIFE, other):
                assert await store.data_key(life, may_create=True)
                entry = await entries.find(data_name(life))
                assert entry is not None
                kept = msgspec.json.decode(entry.body, type=StoredKey)
                stored[life] = base64.b64encode(kept.wrapped)
            assert all(one in files_of(tmp_path / "bus") for one in stored.values())
            await store.erase((LIFE, VariableLife(path="never/there", incarnation=7)))
            assert await entries.find(data_name(LIFE)) is None
            assert [one in files_of(tmp_path / "bus") for one in stored.values()] == [False, True]
            await store.erase((LIFE,))
            assert await store.data_key(other, may_create=False)
        bus.server.stop()
        assert [one in files_of(tmp_path / "bus") for one in stored.values()] == [False, True]
        bus.server.start()
        again = await opened(bus, tmp_path / "k")
        assert again.lives == (other,)

    run(story())


def test_no_value_is_in_the_files_of_the_bus(bus: Bus, tmp_path: Path) -> None:
    """A put and a get leave neither a text nor a name of an item nor a key on the bus; what is sealed opens again."""

    async def story() -> None:
        await bus.bootstrap()
        async with keeper(bus, tmp_path / "k") as (store, client), bus.client() as admin:
            answers: list[Report] = []
            performers = KeyVault(store, answers.append).performers()
            performers[k.OpenKeyStore](k.OpenKeyStore(cluster_id=CLUSTER, may_create=True))
            await until(lambda: len(answers) == 1)
            door = answers[0]
            assert isinstance(door, k.KeyStoreOpened)
            plain = encode_items({"name-of-item": MARKER})
            put = k.SealItems(
                token=1,
                life=LIFE,
                request_id="r1",
                key_id=door.key_id,
                sealed=seal(plain, door.public, ("put", CLUSTER, LIFE.path, "r1")),
            )
            await admin.request_raw(subjects.jobs("submit"), put.sealed)
            performers[k.SealItems](put)
            await until(lambda: len(answers) == 2)
            kept = answers[1]
            assert isinstance(kept, k.ItemsSealed)
            await admin.request_raw(subjects.log(1, "tx"), kept.cipher)
            private, public = new_pair()
            performers[k.OpenItems](
                k.OpenItems(
                    token=2,
                    life=LIFE,
                    request_id="r1",
                    revision=9,
                    cipher=kept.cipher,
                    public=public,
                )
            )
            await until(lambda: len(answers) == 3)
            got = answers[2]
            assert isinstance(got, k.ItemsOpened)
            assert open_box(got.sealed, private, ("get", CLUSTER, LIFE.path, "9")) == plain
            key = await store.data_key(LIFE, may_create=False)
            kek = (tmp_path / "k" / FILE_NAME).read_text().strip()
            assert client.is_connected and key is not None
        seen = files_of(tmp_path / "bus")
        assert put.sealed in seen and kept.cipher in seen
        for secret in (MARKER.encode(), b"name-of-item", key, bytes.fromhex(kek), kek.encode()):
            assert secret not in seen and base64.b64encode(secret) not in seen

    run(story())


def test_the_process_performs_what_its_role_asks(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wiring of `caravan run keeper` answers each effect with an input of the role; a fault is one, too."""
    monkeypatch.setenv("CARAVAN_KEEPER_DIR", str(tmp_path / "k"))
    spec = build(RunSettings())
    assert spec.role.name == "keeper" and spec.performers_of is not None

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy()
        async with bus.shell(toy, "keeper") as shell:
            assert spec.performers_of is not None
            shell.add_performers(spec.performers_of(shell))
            await until(lambda: shell.is_ready)
            toy.play(shell, k.OpenKeyStore(cluster_id=CLUSTER, may_create=True))
            await until(lambda: toy.of(k.KeyStoreOpened))
            toy.play(shell, k.EraseKeys(lives=(LIFE,)))
            await until(lambda: toy.of(k.KeysErased))
            toy.play(shell, k.OpenKeyStore(cluster_id="cluster-2", may_create=False))
            await until(lambda: toy.of(k.KeyStoreUnusable))
            assert not shell.problems.by_name
        door = toy.of(k.KeyStoreOpened)[0]
        again = await opened(bus, tmp_path / "k")
        assert (door.key_id, door.public) == (again.door_id, again.door_public)

    run(story())


def test_a_store_that_is_away_is_told(bus: Bus, tmp_path: Path) -> None:
    """Without the stream a keeper opens the store again; it cannot erase, nor do anything without the bus."""

    async def story() -> None:
        await bus.bootstrap()
        await opened(bus, tmp_path / "k", may_create=True)
        async with keeper(bus, tmp_path / "k") as (store, _), bus.client() as admin:
            await store.open(CLUSTER, may_create=False)
            await admin.ask(subjects.js_stream_delete(streams.KEYS.name), b"")
            with pytest.raises(KeyStoreReplaced, match="KEYS is missing"):
                await store.data_key(LIFE, may_create=True)
            with pytest.raises(BusUnavailable):
                await store.erase((LIFE,))
        store = KeyStore(BusEntries(lambda: None), KekFile(tmp_path / "k"))
        with pytest.raises(BusUnavailable, match="not connected"):
            await store.open(CLUSTER, may_create=True)

    run(story())
