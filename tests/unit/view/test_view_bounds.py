"""What the view holds is bounded."""

import msgspec
import pytest

from shared.core.runtime.messages import Effect, Message, Reply, Send
from shared.protocol import subjects
from tests.unit.view.test_view import small
from tests.unit.view.view_story import Story


def test_held_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions beyond the bound are answered at once that the state is too old; the held ones continue waiting."""
    monkeypatch.setattr("services.view.queries.HELD_MAX", 2)
    story = small()
    story.start()
    effects = story.feed(*(story.message("jobs", min_seq=7) for _ in range(3)))
    (refused,) = [one for one in effects if isinstance(one, Reply)]
    assert msgspec.json.decode(refused.data)["error"]["code"] == "unavailable"
    story.node("n3")
    assert len([one for one in story.later() if isinstance(one, Reply)]) == 2


def test_held_questions_are_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few large questions are bounded, too; what is answered makes room again."""
    story = small()
    story.start()
    asked = [story.message("jobs", id=name * 100, min_seq=7) for name in "abc"]
    monkeypatch.setattr("services.view.queries.HELD_BYTES_MAX", 2 * len(asked[0].data))
    refused = [one for one in story.feed(*asked) if isinstance(one, Reply)]
    assert [one.token for one in refused] == [asked[2].token]
    story.node("n3")
    assert len([one for one in story.later() if isinstance(one, Reply)]) == 2
    later = [story.message("jobs", id="e" * 100, min_seq=8) for _ in range(2)]
    assert not [one for one in story.feed(*later) if isinstance(one, Reply)]


def codes(effects: list[Effect]) -> list[str]:
    """Codes of the refusals among the answers."""
    answers = [msgspec.json.decode(one.data) for one in effects if isinstance(one, Reply)]
    return [one["error"]["code"] for one in answers if one.get("error")]


def request(token: int, **body: object) -> Message:
    """A request of an operator."""
    data = msgspec.json.encode(body)
    return Message("door-node", subjects.api("node", "set_meta"), data, token, reply=True)


def test_operator_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is too large, or one of too many, is refused and leads to no command."""
    monkeypatch.setattr("services.view.operator_api.WAITING_MAX", 2)
    monkeypatch.setattr("services.view.operator_api.REQUEST_BYTES_MAX", 100)
    story = Story()
    story.node("n1")
    story.start()
    large = story.feed(request(1, node_id="n1", change={"a": "x" * 100}))
    assert codes(large) == ["too_large"]
    effects = story.feed(*(request(2 + n, node_id="n1", change={"a": str(n)}) for n in range(3)))
    assert codes(effects) == ["unavailable"]
    commands = [one for one in (*large, *effects) if isinstance(one, Send)]
    assert len([one for one in commands if one.subject == subjects.command("operator")]) == 2
