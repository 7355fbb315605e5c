"""A follower that is in no hurry: it hears of everything, in order, and of a burst at once."""

import asyncio

import pytest

from shared.bus.jetstream.pull_consumer import CurrentConnection, DeliveryPosition, PullConsumer
from tests.bus.toys import Bus, append, run, until

pytestmark = pytest.mark.bus
LULL_S = 0.02


def test_nothing_is_missed_and_bursts_come_together(bus: Bus) -> None:
    """Singles, bursts beyond its credit, and silence between: each message once, in order, by one consumer."""

    async def story() -> None:
        await bus.bootstrap()
        async with bus.client() as client:
            seen: list[int] = []

            def deliver(
                at: DeliveryPosition, _subject: bytes, _headers: bytes, _data: bytes
            ) -> None:
                seen.append(at.stream_seq)
                loop.call_soon(pull.give_back)

            loop = asyncio.get_running_loop()
            pull = PullConsumer(
                CurrentConnection(client),
                stream="LOG_1",
                deliver=deliver,
                credit=8,
                owner="toy",
                lull_s=LULL_S,
            )
            pull.open()
            sent = 0
            for burst in (1, 1, 3, 40, 1, 8, 9, 1):
                for _ in range(burst):
                    sent += 1
                    await append(client, b"%d" % sent, msg_id=str(sent))
                await until(lambda sent=sent: len(seen) == sent)
            assert seen == list(range(1, sent + 1))
            assert pull.made == 1
            pull.close()

    run(story())
