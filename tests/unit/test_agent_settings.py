"""How an agent is configured, and what bad settings get."""

import pytest

from services.agent.__main__ import agent_settings
from shared.errors import ConfigInvalid

GIVEN = {"CARAVAN_AGENT_NODE_ID": "n1", "CARAVAN_AGENT_DATA_DIR": "d"}


def test_the_dangerous_is_off_unless_asked_for() -> None:
    """Without a word raw_exec is off, and tasks outlive their agent."""
    found = agent_settings(GIVEN)
    assert (found.raw_exec, found.end_tasks) == (False, False)
    asked = agent_settings({**GIVEN, "CARAVAN_AGENT_RAW_EXEC": "1", "CARAVAN_AGENT_END_TASKS": "1"})
    assert (asked.raw_exec, asked.end_tasks) == (True, True)


@pytest.mark.parametrize(
    "change",
    [
        {"CARAVAN_AGENT_NODE_ID": ""},
        {"CARAVAN_AGENT_DATA_DIR": ""},
        {"CARAVAN_AGENT_RAW_EXEC": "perhaps"},
        {"CARAVAN_AGENT_CPU_MHZ": "many"},
    ],
)
def test_a_bad_setting_is_named(change: dict[str, str]) -> None:
    """A setting that cannot be used stops the agent with its name."""
    with pytest.raises(ConfigInvalid, match="CARAVAN_AGENT_"):
        agent_settings({**GIVEN, **change})
