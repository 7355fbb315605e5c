"""What successive holders of a lease share: a work queue whose messages must not go to one that stands still."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from schemas.base import SECOND_NS
from shared.bus.jetstream.pull_consumer import CurrentConnection, PullConsumer
from shared.bus.shell import leader_election
from shared.protocol import subjects


async def _first_request(durable: str) -> dict[str, int]:
    """Open a consumer on a bus that makes it; returns its first request for messages."""
    asked: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()

    async def ask(_subject: str, _body: bytes) -> bytes:
        return b"{}"

    async def listen(*_: object) -> int:
        return 1

    def send(subject: str, data: bytes, _reply: bytes = b"") -> bool:
        assert subject == subjects.js_consumer_next("CMD", durable)
        asked.set_result(msgspec.json.decode(data))
        return True

    bus = SimpleNamespace(
        ask=ask, listen=listen, send=send, new_inbox=lambda: "i", forget=lambda _: None
    )
    link = CurrentConnection(cast("Any", bus))
    pull = PullConsumer(
        link, stream="CMD", deliver=lambda *_: None, credit=8, owner="toy", durable=durable
    )
    pull.open()
    try:
        return await asked
    finally:
        pull.close()


def test_requests_of_a_shared_consumer_end_before_its_lease_may_pass_on() -> None:
    """The server delivers to the oldest request: one of a frozen holder must be over when a successor may lead."""
    shared = asyncio.run(_first_request("applier_job"))
    # The holder renewed its lease at least so long before the lease may be another's.
    earliest_s = leader_election.TTL_S - leader_election._RENEW_S
    assert shared["expires"] <= earliest_s * SECOND_NS
    # The server refuses heartbeats above half of that time.
    assert 0 < shared["idle_heartbeat"] <= shared["expires"] // 2
