"""What the command line sends with an operator's request: the seq at which it was made."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from schemas.answers import PolicyAnswer
from schemas.base import Wire
from schemas.nodes import Pool
from schemas.operator import (
    ConfirmDeathRequest,
    DrainRequest,
    EligibilityRequest,
    MetaRequest,
    OperatorVerdict,
    PolicyRequest,
    PoolRequest,
    StopRequest,
)
from schemas.policy import Policy
from services.cli.runtime import operator_client
from shared.protocol import subjects
from shared.protocol.operator_verbs import VERBS

SEEN = 41
REQUESTS: tuple[Wire, ...] = (
    PolicyRequest(change={"algorithm": "spread"}),
    EligibilityRequest(node_id="n1", eligible=False),
    DrainRequest(node_id="n1", draining=True),
    MetaRequest(node_id="n1", change={"rack": "r1"}),
    ConfirmDeathRequest(node_id="n1"),
    PoolRequest(pool=Pool(name="licence", amount=5)),
)


class Recorder:
    """A bus whose view is at SEEN and accepts every request; the first answer of a verb is `pending`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def request_bytes(self, subject: str, body: bytes, timeout_s: float) -> bytes:
        """Answer as the view does."""
        self.asked.append((subject, msgspec.json.decode(body)))
        if subject.startswith("query."):
            return msgspec.json.encode(PolicyAnswer(seq=SEEN, policy=Policy()))
        status = "accepted" if self.asked.count(self.asked[-1]) > 1 else "pending"
        return msgspec.json.encode(OperatorVerdict(request_id="r", status=status))


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Commands talk to the recorder."""
    recorder = Recorder()

    def with_bus(work: Callable[[Any], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            return await work(recorder)

        return asyncio.run(run())

    monkeypatch.setattr(operator_client, "with_bus", with_bus)
    return recorder


@pytest.mark.parametrize("body", REQUESTS, ids=lambda one: type(one).__name__)
def test_every_copy_of_a_request_names_the_seq_at_which_it_was_made(
    bus: Recorder, body: Wire
) -> None:
    """The view's seq is asked once, before the first copy; a copy sent again does not claim to have seen more."""
    assert operator_client.request_verdict(body).status == "accepted"
    (first, _), *copies = bus.asked
    assert first == subjects.query("policy")
    assert [sent["seen_seq"] for _, sent in copies] == [SEEN, SEEN]


def test_a_request_whose_late_copy_does_no_harm_asks_nothing_first(bus: Recorder) -> None:
    """Only what a newer request may undo needs a seq."""
    operator_client.request_verdict(StopRequest(alloc_id="a"))
    assert {subject for subject, _ in bus.asked} == {subjects.api("alloc", "stop")}


def test_no_request_with_a_seq_is_forgotten() -> None:
    """Each verb whose body has `seen_seq` is among those tested here."""
    with_seq = {row.request for row in VERBS if "seen_seq" in row.request.__struct_fields__}
    assert with_seq == {type(one) for one in REQUESTS}
