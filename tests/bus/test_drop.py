"""An old generation leaves the bus when archive and snapshot hold it, and comes back from the archive."""

from pathlib import Path
from typing import Any

import pytest

from services.cli import drops
from services.cli.output import CliError, Output
from services.heartbeat.role import Heartbeat
from services.view.role import View
from services.view.snapshots import When
from shared.archive.export import Export, Reading
from shared.archive.segments import Archive
from shared.bus import accounts, generations, streams
from shared.bus.client import Client
from shared.core.replica import Replica
from shared.core.role import Record
from shared.errors import BusUnavailable, LogDropped
from tests.bus.test_roll import applier, is_in, ordered, whole
from tests.bus.toys import Bus, run, until

pytestmark = pytest.mark.bus
OUT = Output(is_json=True)


@pytest.fixture
def admin(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line finds this bus and its passwords."""
    path = tmp_path / "credentials.json"
    accounts.write_credentials(path, bus.credentials)
    monkeypatch.setenv("CARAVAN_CREDENTIALS", str(path))
    monkeypatch.setenv("CARAVAN_NATS_URL", bus.server.url)


async def rolled(bus: Bus, *, snapshots: bool = True) -> None:
    """A cluster whose log is in its second generation, where a view has written a snapshot."""
    await bus.bootstrap()
    one = applier()
    view = View(instance="v", snapshots=When(records=1) if snapshots else When())
    async with bus.shell(one), bus.shell(view, "view"), bus.client() as client:
        await until(lambda: one._is_active, "it has the pen")
        await ordered(client, one, 1)
        written = "caravan_view_snapshots_written_total"
        await until(lambda: is_in(view, 2) and view._replica.checked > 0, "the view follows")

        def is_written() -> bool:
            behind = view._snapshots._last_seq >= one.replica.seq - 1
            return not snapshots or (view.metrics()[written] > 0 and behind)

        await until(is_written, "a snapshot behind the roll")


async def exported(bus: Bus, folder: Path, last: int = 0) -> None:
    """Export the log, up to a record."""
    archive = Archive(folder)
    with archive.locked():
        work = Export(archive)
        work.wanted()
        async with Client(bus.server.url) as client:
            async for record in client.read_log(1, last):
                work.apply(record)
        work.flush()
        work.close()


def refused(generation: int, folder: Path) -> str:
    with pytest.raises(CliError) as caught:
        drops.drop(OUT, generation=generation, archive=str(folder))
    return str(caught.value)


async def numbers(bus: Bus) -> list[int]:
    async with bus.client() as client:
        return [one.number for one in await generations.chain(client)]


def test_a_covered_generation_goes_and_comes_back(bus: Bus, admin: None, tmp_path: Path) -> None:
    """Behind a drop services begin at the snapshot, readers hear where the rest is; restored, all is as before."""
    folder = tmp_path / "archive"
    run(rolled(bus))
    run(exported(bus, folder))
    before: list[Replica] = []
    after: dict[str, Any] = {}

    async def look() -> None:
        before.append(await whole(bus))

    run(look())
    assert drops.drop(OUT, generation=1, archive=str(folder)) == 0

    async def fresh() -> None:
        assert await numbers(bus) == [2]
        beat, again = Heartbeat(instance="h"), applier("p2")
        async with bus.shell(beat, "heartbeat"), bus.shell(again):
            await until(lambda: again._is_active, "the next applier begins at the snapshot")
            await until(lambda: beat.next_seq == again.replica.next_seq, "so does a heartbeat")
            after["hashes"] = again.replica.state.hashes()
            after["seq"] = again.replica.seq
        with pytest.raises(LogDropped, match="--from-file"):
            await whole(bus)
        with pytest.raises(BusUnavailable, match="was dropped"):
            async with bus.shell(
                Heartbeat(instance="x"), bus_without_snapshots(bus, "heartbeat")
            ) as shell:
                await until(lambda: shell.is_ready, "never")

    run(fresh())
    assert drops.restore(OUT, generation=1, archive=str(folder)) == 0

    async def back() -> None:
        assert await numbers(bus) == [1, 2]
        told = await whole(bus)
        assert told.seq >= after["seq"] and told.state.hashes() == after["hashes"]
        assert told.checked >= before[0].checked

    run(back())


def bus_without_snapshots(bus: Bus, user: str) -> Any:
    return bus.settings(user, snapshots=False)


def test_what_is_not_covered_stays(bus: Bus, admin: None, tmp_path: Path) -> None:
    """The newest, one that is not there, an archive too short or damaged or of other bytes: each refusal says why."""
    run(rolled(bus))
    short, good, other = tmp_path / "short", tmp_path / "good", tmp_path / "other"
    run(exported(bus, short, 1))
    run(exported(bus, good))
    run(exported(bus, other))
    assert "is the one that is written" in refused(2, good)
    assert "no generation 7" in refused(7, good)
    assert "no export here" in refused(1, tmp_path / "nothing")
    assert "the archive ends at 1" in refused(1, short)
    path = next(good.glob("seq-*/records.parquet"))
    path.write_bytes(path.read_bytes()[:-1])
    assert "not sound" in refused(1, good)
    with pytest.MonkeyPatch.context() as patch:
        changed = Record(2, "log.1.tx", b"other")
        read = Reading.records
        patch.setattr(
            Reading,
            "records",
            lambda *given: (changed if one.seq == 2 else one for one in read(*given)),
        )
        assert "record 2 of the archive is not the one on the bus" in refused(1, other)
    assert run_numbers(bus) == [1, 2]


def run_numbers(bus: Bus) -> list[int]:
    found: list[int] = []

    async def look() -> None:
        found.extend(await numbers(bus))

    run(look())
    return found


def test_without_a_snapshot_behind_it_a_generation_stays(
    bus: Bus, admin: None, tmp_path: Path
) -> None:
    """Nobody could start any more: the drop waits for a view."""
    run(rolled(bus, snapshots=False))
    run(exported(bus, tmp_path / "archive"))
    assert "no snapshot behind this generation" in refused(1, tmp_path / "archive")
    assert run_numbers(bus) == [1, 2]


def test_no_service_may_delete_a_generation(bus: Bus) -> None:
    """Only the administrator's password does it: the server refuses a role's."""

    async def story() -> None:
        await bus.bootstrap()
        async with bus.client("plan_applier") as client:
            with pytest.raises(BusUnavailable):
                await client.request_raw("$JS.API.STREAM.DELETE.LOG_1", b"", timeout_s=0.3)
        async with bus.client() as client:
            assert await streams.info(client, "LOG_1") is not None

    run(story())
