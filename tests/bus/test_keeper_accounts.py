"""Who asks the keeper what, by the accounts of the bus: nodes under their own names, the gateway for tasks alone."""

import pytest

from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests.bus.test_accounts import public, settled
from tests.bus.toys import Bus, run

pytestmark = pytest.mark.bus


@pytest.mark.parametrize("verb", ["variable", "identity"])
def test_a_node_asks_the_keeper_under_its_own_name(bus: Bus, verb: str) -> None:
    """33: n1's question is answered to n1 alone; as n2, a client or a fleet it reaches no keeper, nor is it heard."""

    async def story() -> None:
        await bus.bootstrap()
        async with (
            bus.client() as keeper,
            bus.client(bus.node_login("n1")) as n1,
            bus.client(bus.node_login("n2")) as n2,
            bus.client(bus.login("fleet")) as fleet,
            bus.client(public(bus)) as client,
        ):
            asked, overheard = [], []

            def answer(subject: bytes, reply: bytes, _headers: bytes, _data: bytes) -> None:
                asked.append(subject.decode())
                keeper.send(reply.decode(), b"sealed")

            everyone, own, foreign = (f"ask.{node}.{verb}" for node in ("*", "n1", "n2"))
            assert {everyone} < {subjects.NODE_VARIABLES, subjects.NODE_IDENTITIES}
            await keeper.listen(everyone, answer)
            for thief in (n2, fleet, client):
                for trap in (own, everyone, "_INBOX.node-n1.>", "_R_.>"):
                    await thief.listen(trap, lambda _s, _r, _h, data: overheard.append(data))
            await settled(keeper, n2, fleet, client)
            assert (await n1.request_raw(own, b"{}"))[1] == b"sealed"
            for thief, subject in (
                *((n1, one) for one in (foreign, "ask.n1.other", "ask.n1")),
                *((one, own) for one in (n2, fleet, client)),
            ):
                with pytest.raises(BusUnavailable):
                    await thief.request_raw(subject, b"{}", timeout_s=0.3)
            await settled(n2, fleet, client)
        assert asked == [own]
        assert overheard == []

    run(story())


def test_the_gateway_reads_variables_and_requests_nothing_else(bus: Bus) -> None:
    """For tasks, which have no login of the bus: its own login changes no variable, no key and no job."""

    async def story() -> None:
        await bus.bootstrap()
        others = [
            *(subjects.api("variable", verb) for verb in subjects.API_VARIABLE_VERBS),
            *(subjects.api("keyring", verb) for verb in subjects.API_KEYRING_VERBS),
            *(subjects.api_jobs(verb) for verb in ("submit", "stop")),
            *(subjects.command("variable"), subjects.node_variables("n1")),
        ]
        own = subjects.api("variable", "get")
        others.remove(own)
        async with bus.client() as admin, bus.client("gateway") as gateway:
            asked = []

            def answer(subject: bytes, reply: bytes, _headers: bytes, _data: bytes) -> None:
                asked.append(subject.decode())
                admin.send(reply.decode(), b"sealed")

            for subject in (own, *others):
                await admin.listen(subject, answer)
            await settled(admin)
            assert (await gateway.request_raw(own, b"{}"))[1] == b"sealed"
            for subject in others:
                with pytest.raises(BusUnavailable):
                    await gateway.request_raw(subject, b"{}", timeout_s=0.3)
        assert asked == [own]

    run(story())
