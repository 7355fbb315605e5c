"""The parameter `wait` of a blocking query."""

import pytest

from services.gateway.edge.call import _duration_s
from services.gateway.edge.faults import HttpFault


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5.0), ("1m30s", 90.0), ("250ms", 0.25), ("5", 5.0), ("1.5", 1.5), ("0", 0.0)],
)
def test_a_wait_is_a_duration_or_seconds(text: str, seconds: float) -> None:
    """A duration in Go's syntax, or a number alone: seconds."""
    assert _duration_s("wait", text) == seconds


@pytest.mark.parametrize("text", ["soon", "-1s", "-1", "s", "1x", "1h x", "1d", "²", "nan"])
def test_another_text_is_refused(text: str) -> None:
    """The answer is 400 and names the parameter."""
    with pytest.raises(HttpFault, match="'wait'") as fault:
        _duration_s("wait", text)
    assert fault.value.status == 400
