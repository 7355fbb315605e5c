"""What the view holds is bounded."""

import msgspec
import pytest

from shared.core.runtime.messages import Reply
from tests.unit.view.test_view import small


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
