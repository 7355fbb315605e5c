"""`caravan operator message`: what waits in JOBS, with headers that nothing can read, is listed, shown and deleted."""

import asyncio
import base64
import json
from pathlib import Path

import pytest

from services.cli.operator import messages
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.jetstream import streams
from shared.bus.server import accounts
from shared.protocol import subjects
from tests.bounds import WAIT_S
from tests.bus.toys import Bus
from tests.faults.raw_frames import RawSender

pytestmark = pytest.mark.bus


async def garbled(bus: Bus) -> None:
    """Store two messages, the first with headers that are none."""
    await bus.bootstrap()
    async with RawSender(bus.login("public")) as sender, bus.client() as admin:
        await sender.send(subjects.jobs("submit").encode(), b"{}", headers=b"garbage")
        await sender.send(subjects.jobs("submit").encode(), b'{"good":1}')
        async with asyncio.timeout(WAIT_S):
            while True:
                await sender.settle()
                info = await streams.info(admin, "JOBS")
                if info is not None and info.state.messages == 2:
                    return
                await asyncio.sleep(0.01)


def test_a_message_is_listed_shown_and_dropped(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fault is named, the bytes are shown, and after the drop only the good one is left."""
    asyncio.run(garbled(bus))
    accounts.write_credentials(tmp_path / "credentials.json", bus.credentials)
    monkeypatch.setenv("CARAVAN_NATS_URL", bus.server.url)
    monkeypatch.setenv("CARAVAN_CREDENTIALS", str(tmp_path / "credentials.json"))
    out = CommandOutput(is_json=True)
    assert messages.list_all(out, stream="JOBS", limit=10) == 0
    listed = json.loads(capsys.readouterr().out)
    faults = [one["fault"] for one in listed["messages"]]
    assert faults == ["the header block does not begin with the line NATS/1.0", ""]
    first = listed["messages"][0]["seq"]
    assert messages.show(out, stream="JOBS", seq=first) == 0
    shown = json.loads(capsys.readouterr().out)
    # The server adds what it knows of the sender, over the two bytes that it takes for the end of the block.
    assert base64.b64decode(shown["headers_base64"]).startswith(b"garba")
    assert messages.drop(out, stream="JOBS", seq=first) == 0
    capsys.readouterr()
    assert messages.list_all(out, stream="JOBS", limit=10) == 0
    assert [one["seq"] for one in json.loads(capsys.readouterr().out)["messages"]] == [first + 1]
    with pytest.raises(CliError, match="has no message"):
        messages.drop(out, stream="JOBS", seq=first)
    with pytest.raises(CliError, match="expected one of JOBS, CMD"):
        messages.drop(out, stream="LOG_1", seq=1)
