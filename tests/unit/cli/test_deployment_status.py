"""What `deployment status` says of the time that a group waits."""

import pytest

from schemas.projections import DeploymentWait
from services.cli.deployment.status import since_text

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("paused", "; paused for 1m"),
        ("held", "; held for 1m"),
        ("health", "; last progress 1m ago"),
    ],
)
def test_a_wait_says_what_its_time_is_of(why: str, text: str) -> None:
    """A pause and a hold are no progress; without a time nothing is said of it."""
    wait = DeploymentWait(group="g", why=why, reason="r", since_ns=10 * SECOND)
    assert since_text(wait, 100 * SECOND) == text
    assert since_text(DeploymentWait(group="g", why=why, reason="r"), 100 * SECOND) == ""
