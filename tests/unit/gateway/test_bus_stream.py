"""What the gateway hears through FastStream, what its middleware counts, and the page of all subjects."""

import asyncio
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from faststream.nats import NatsBroker, TestNatsBroker

from schemas.envelope import ENCODER
from schemas.evaluations import Presence
from services.gateway.edge.bus.middleware import BusCounts, counting, trace_of
from services.gateway.edge.bus.page import render_page
from services.gateway.edge.bus.stream import _undecoded, make_router
from services.gateway.edge.bus.workers import SILENT_S, PresentServices
from shared.protocol import subjects
from shared.protocol.contract import SUBJECTS

DOCUMENT = Path(__file__).parents[3] / "schemas" / "asyncapi.json"


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


def presence(instance: str, *, active: bool = True) -> bytes:
    """A scheduler's word."""
    return ENCODER.encode(Presence(role="scheduler", instance=instance, seq=7, active=active))


def test_services_are_listed_while_they_are_heard() -> None:
    """By role and instance; one that leaves, or is silent too long, is forgotten; nonsense is counted and harmless."""
    clock, present, counts = Clock(), PresentServices(), BusCounts()
    broker = NatsBroker(
        decoder=_undecoded,
        middlewares=(counting(counts),),
        routers=(make_router(present, clock),),
    )

    async def story() -> list[list[str]]:
        found: list[list[str]] = []

        def look() -> None:
            found.append([one.instance for one in present.present(clock())])

        async with TestNatsBroker(broker) as bus:
            for body in (presence("b"), presence("a"), b"\xff{", b"[1]"):
                await bus.publish(body, subjects.presence("scheduler", "x"))
            look()
            await bus.publish(presence("a", active=False), subjects.presence("scheduler", "a"))
            look()
            clock.now_s = SILENT_S + 1
            look()
        return found

    assert asyncio.run(story()) == [["a", "b"], ["b"], []]
    assert (counts.messages, counts.failed) == (5, 0)
    assert set(counts.metrics()) >= {"caravan_gateway_bus_messages_total"}


def test_the_gateway_hears_nothing_under_names_of_roles_with_a_leader() -> None:
    """A candidate asks the bus whether there is a listener under the holder's name: the gateway's would pass for it."""
    router = make_router(PresentServices(), Clock())
    heard = [one.subject.broker_address for one in router.subscribers]
    assert heard == ["presence.scheduler.*"]


def test_a_failure_is_counted_and_raised() -> None:
    """The middleware hides nothing."""
    counts = BusCounts()
    broker = NatsBroker(middlewares=(counting(counts),))

    @broker.subscriber("x")
    async def fail() -> None:
        raise ZeroDivisionError

    async def story() -> None:
        async with TestNatsBroker(broker) as bus:
            await bus.publish(b"", "x")

    with pytest.raises(ZeroDivisionError):
        asyncio.run(story())
    assert (counts.messages, counts.failed) == (1, 1)


@pytest.mark.parametrize(
    ("headers", "is_continued"),
    [
        ({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, True),
        ({"traceparent": "nonsense"}, False),
        ({"traceparent": f"00-{'A' * 32}-{'b' * 16}-01"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_a_trace_is_continued_where_a_message_names_one(
    headers: Any, *, is_continued: bool
) -> None:
    """Else a new one begins."""
    trace, parent = trace_of(headers)
    assert (trace == "a" * 32, parent == "b" * 16) == (is_continued, is_continued)
    assert re.fullmatch(r"[0-9a-f]{32}", trace)


class Page(HTMLParser):
    """What a page links to, and its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("href", "src"):
                self.links.append(value or "")
            elif name == "id":
                self.ids.append(value or "")


def test_the_page_shows_every_subject_and_asks_no_other_origin() -> None:
    """Each subject has a section, each link of the page leads to one, and nothing is loaded but the own style."""
    text = render_page(json.loads(DOCUMENT.read_text(encoding="utf-8")))
    page = Page()
    page.feed(text)
    assert all(f"<code>{one.address}</code>" in text for one in SUBJECTS)
    inner = [one.removeprefix("#") for one in page.links if one.startswith("#")]
    assert len(inner) > len(SUBJECTS)
    assert set(inner) <= set(page.ids)
    assert {one for one in page.links if not one.startswith("#")} == {
        "/ui/style.css",
        "/bus/asyncapi.json",
    }
    assert page.tags.isdisjoint({"script", "img", "style", "iframe"})


def test_texts_of_the_document_stay_text() -> None:
    """What a description holds is no markup."""
    hostile = "<img src=x onerror=alert(1)>"
    document = {
        "info": {"title": hostile, "version": hostile, "description": hostile},
        "channels": {"a": {"address": hostile, "description": hostile, "messages": {}}},
        "operations": {},
        "components": {"schemas": {hostile: {"type": hostile, "description": hostile}}},
    }
    page = Page()
    page.feed(render_page(document))
    assert "img" not in page.tags
