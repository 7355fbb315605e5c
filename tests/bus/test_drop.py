"""An old generation leaves the bus when archive and snapshot hold it, and comes back from the archive."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.policy import LossAccepted
from services.cli.log import accept_loss, drop, verify
from services.cli.runtime.output import CliError, CommandOutput
from services.heartbeat.role import HeartbeatMonitor
from services.view.role import View
from services.view.snapshot_writer import SnapshotSchedule
from shared.archive.export import Export, ExportReader
from shared.archive.segments import Archive
from shared.bus.connection.public_client import Client
from shared.bus.jetstream import streams
from shared.bus.log import generations
from shared.bus.log.log_reader import LogReader
from shared.bus.log.scrub import scrub_log
from shared.bus.server import accounts
from shared.bus.shell.shell import Shell
from shared.core.runtime.chain import decode_record
from shared.core.runtime.messages import LogScrubbed, Record
from shared.core.runtime.replica import Replica
from shared.errors import BusUnavailable, LogDropped
from tests.bus.test_roll import applier, is_in, ordered, whole
from tests.bus.toys import Bus, run, until

pytestmark = pytest.mark.bus
OUT = CommandOutput(is_json=True)


@pytest.fixture
def admin(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line finds this bus and its passwords."""
    path = tmp_path / "credentials.json"
    accounts.write_credentials(path, bus.credentials)
    monkeypatch.setenv("CARAVAN_CREDENTIALS", str(path))
    monkeypatch.setenv("CARAVAN_NATS_URL", bus.server.client_url)


async def rolled(bus: Bus, *, snapshots: bool = True) -> None:
    """A cluster whose log is in its second generation, where a view has written a snapshot."""
    await bus.bootstrap()
    one = applier()
    view = View(
        instance="v", snapshots=SnapshotSchedule(records=1) if snapshots else SnapshotSchedule()
    )
    async with bus.shell(one), bus.shell(view, "view"), bus.client() as client:
        await until(lambda: one.is_active, "it has the write lease")
        await ordered(client, one, 1)
        written = "caravan_view_snapshots_written_total"
        await until(lambda: is_in(view, 2) and view.replica.checked > 0, "the view follows")

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
        async with Client(bus.server.client_url) as client:
            async for record in client.read_log(1, last):
                work.apply(record)
        work.flush()
        work.close()


def refused(generation: int, folder: Path) -> str:
    with pytest.raises(CliError) as caught:
        drop.drop(OUT, generation=generation, archive=str(folder))
    return str(caught.value)


async def numbers(bus: Bus) -> list[int]:
    async with bus.client() as client:
        return [one.number for one in await generations.list_generations(client)]


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
    assert drop.drop(OUT, generation=1, archive=str(folder)) == 0

    async def fresh() -> None:
        assert await numbers(bus) == [2]
        beat, again = HeartbeatMonitor(instance="h"), applier("p2")
        async with bus.shell(beat, "heartbeat"), bus.shell(again):
            await until(lambda: again.is_active, "the next applier begins at the snapshot")
            await until(lambda: beat.next_seq == again.replica.next_seq, "so does a heartbeat")
            after["hashes"] = again.replica.state.hashes()
            after["seq"] = again.replica.seq
        with pytest.raises(LogDropped, match="--from-file"):
            await whole(bus)
        own = bus.settings("heartbeat", snapshots=False)
        with pytest.raises(BusUnavailable, match="dropped or lost, and no snapshot"):
            await Shell(HeartbeatMonitor(instance="x"), own).run(asyncio.Event())

    run(fresh())
    assert drop.restore(OUT, generation=1, archive=str(folder)) == 0

    async def back() -> None:
        assert await numbers(bus) == [1, 2]
        told = await whole(bus)
        assert told.seq >= after["seq"] and told.state.hashes() == after["hashes"]
        assert told.checked >= before[0].checked

    run(back())


def verified(capsys: pytest.CaptureFixture[str], **options: bool) -> tuple[int, dict[str, Any]]:
    """Verify the log on this bus; returns the exit code and the proof."""
    capsys.readouterr()
    code = verify.verify(OUT, decisions=options.get("decisions", False))
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_log_behind_a_drop_is_verified(
    bus: Bus,
    admin: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records that are left are proven, states from a snapshot on; a beginning of which it is not known is damage."""
    folder = tmp_path / "archive"
    run(rolled(bus))
    run(exported(bus, folder))
    code, whole_log = verified(capsys)
    assert (code, whole_log["first_seq"], whole_log["states_from_seq"]) == (0, 1, 1)
    assert drop.drop(OUT, generation=1, archive=str(folder)) == 0
    code, proof = verified(capsys)
    assert code == 0, proof
    assert 1 < proof["first_seq"] <= proof["states_from_seq"] <= proof["last_seq"]
    assert proof["last_seq"] >= whole_log["last_seq"] and proof["checkpoints"] > 0
    assert (proof["head"], proof["tables"]) == (whole_log["head"], whole_log["tables"])
    code, proof = verified(capsys, decisions=True)
    assert code in {0, 1} and (code == 0 or "no decision was compared" in proof["problem"]), proof
    monkeypatch.delenv("CARAVAN_CREDENTIALS")
    code, proof = verified(capsys)
    assert code == 2 and "dropped or lost" in proof["problem"]


def test_a_beginning_that_was_lost_is_no_drop(
    bus: Bus, admin: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A generation that is gone without a drop is damage, whatever snapshots there are."""
    run(rolled(bus))

    async def lose() -> None:
        async with bus.client("admin") as client:
            assert b'"success":true' in await client.ask("$JS.API.STREAM.DELETE.LOG_1", b"")

    run(lose())
    code, proof = verified(capsys)
    assert code == 2 and "no `caravan log drop` recorded their deletion" in proof["problem"]


def test_what_is_not_covered_stays(bus: Bus, admin: None, tmp_path: Path) -> None:
    """The newest, one that is not there, an archive too short or damaged or of other bytes: each refusal says why."""
    run(rolled(bus))
    short, good, other = tmp_path / "short", tmp_path / "good", tmp_path / "other"
    run(exported(bus, short, 1))
    run(exported(bus, good))
    run(exported(bus, other))
    assert "is still open" in refused(2, good)
    assert "no generation 7" in refused(7, good)
    assert "no export in this folder" in refused(1, tmp_path / "nothing")
    assert "the archive ends at 1" in refused(1, short)
    path = next(good.glob("seq-*/records.parquet"))
    path.write_bytes(path.read_bytes()[:-1])
    assert "damaged archive" in refused(1, good)
    with pytest.MonkeyPatch.context() as patch:
        changed = Record(2, "log.1.tx", b"other")
        read = ExportReader.records
        patch.setattr(
            ExportReader,
            "records",
            lambda *given: (changed if one.seq == 2 else one for one in read(*given)),
        )
        assert "record 2 of the archive differs from the bus" in refused(1, other)
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
    """No service could start any more: the drop waits for a view."""
    run(rolled(bus, snapshots=False))
    run(exported(bus, tmp_path / "archive"))
    assert "no snapshot after this generation" in refused(1, tmp_path / "archive")
    assert run_numbers(bus) == [1, 2]


def test_a_lost_generation_is_damage_until_an_operator_accepts_it(
    bus: Bus, admin: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG_1 gone without a drop: roles stop and name the command; accepted, they start, and the log holds the fact."""
    monkeypatch.setattr(accept_loss, "_WAIT_S", 0.0)
    run(rolled(bus))
    first: list[int] = []

    async def lose() -> None:
        async with bus.client("admin") as client:
            first.append((await generations.list_generations(client))[1].first_seq)
            assert b'"success":true' in await client.ask("$JS.API.STREAM.DELETE.LOG_1", b"")
        with pytest.raises(BusUnavailable, match=r"no `caravan log drop`.*log accept-loss"):
            await Shell(applier("p2"), bus.settings()).run(asyncio.Event())

    run(lose())
    with pytest.raises(CliError, match="check the log again"):
        accept_loss.accept(OUT, first=first[0] + 1, reason="")
    assert accept_loss.accept(OUT, first=first[0], reason="disk replaced") == 2
    monkeypatch.setattr(accept_loss, "_WAIT_S", 10.0)
    told: list[LossAccepted] = []

    async def accepted() -> None:
        one, view = applier("p2"), View(instance="v2")
        async with bus.shell(one), bus.shell(view, "view"), bus.client() as client:
            await until(lambda: one.is_active, "the applier begins at the snapshot")
            code = await asyncio.to_thread(
                accept_loss.accept, OUT, first=first[0], reason="disk replaced"
            )
            assert code == 0
            reader = LogReader(client)
            for record in await reader.read(first[0]):
                if b"log.loss_accepted" in record.data:
                    found = decode_record(record.seq, record.subject, record.data)
                    assert found is not None
                    told.extend(one for one in found.events if isinstance(one, LossAccepted))

    run(accepted())
    assert told == [LossAccepted(first_seq=first[0], reason="disk replaced")]


def test_what_is_lost_while_all_runs_is_damage_until_it_is_accepted(
    bus: Bus, admin: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The background read takes a beginning that is gone for no drop, in any pass, before an operator accepts it."""
    monkeypatch.setattr(accept_loss, "_WAIT_S", 0.0)
    run(rolled(bus))
    told: list[LogScrubbed] = []

    async def lose() -> None:
        view = View(instance="v2")
        async with bus.shell(view, "view") as shell, bus.client("admin") as client:
            await until(lambda: is_in(view, 2), "the view follows")
            scrub = asyncio.ensure_future(
                scrub_log(lambda: shell.bus, lambda: view.next_seq - 1, told.append, pause_s=0.01)
            )
            await until(lambda: any(one.is_pass_done for one in told), "a sound pass")
            first = (await generations.list_generations(client))[1].first_seq
            assert b'"success":true' in await client.ask("$JS.API.STREAM.DELETE.LOG_1", b"")
            await until(lambda: any(one.problem for one in told), "the loss is reported")
            told.clear()
            await until(lambda: len(told) >= 2, "more passes")
            assert all("no `caravan log drop` recorded" in one.problem for one in told), told
            await asyncio.to_thread(accept_loss.accept, OUT, first=first, reason="disk replaced")
            told.clear()
            await until(lambda: any(one.is_pass_done for one in told), "accepted")
            scrub.cancel()

    run(lose())


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
