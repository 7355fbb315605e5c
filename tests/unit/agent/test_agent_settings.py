"""How an agent is configured, and what bad settings get."""

import pytest

from schemas.base import NodeId
from schemas.nodes import NodeSpec
from services.agent.__main__ import agent_share, host_networks
from services.agent.inputs.vault.settings import vault_settings
from services.agent.settings import agent_settings
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


def test_agents_of_one_machine_share_it() -> None:
    """Three agents have a third each of what the machine has; what a setting says is taken as it is."""
    machine = NodeSpec(node_id=NodeId("n1"), cpu_mhz=6000, memory_mib=3000, disk_mib=900)
    third = agent_share(machine, agent_settings({**GIVEN, "CARAVAN_AGENT_SHARES": "3"}))
    assert (third.cpu_mhz, third.memory_mib, third.disk_mib) == (2000, 1000, 300)
    told = {"CARAVAN_AGENT_SHARES": "3", "CARAVAN_AGENT_CPU_MHZ": "500"}
    assert agent_share(machine, agent_settings({**GIVEN, **told})).cpu_mhz == 500
    assert agent_share(machine, agent_settings(GIVEN)) == machine


def test_networks_by_name_are_addresses() -> None:
    """A slip of the pen is found when the agent starts, not when a port is published."""
    found = host_networks("public=203.0.113.7, private=10.0.0.7")
    assert found == {"host_network.public": "203.0.113.7", "host_network.private": "10.0.0.7"}
    with pytest.raises(ConfigInvalid, match="HOST_NETWORKS: 'public=nowhere'"):
        host_networks("public=nowhere")


def test_a_node_offers_vault_where_its_operator_named_one() -> None:
    """Without an address there is no attribute, and nothing is read of the rest."""
    assert vault_settings({}).attributes() == {}
    said = {"CARAVAN_AGENT_VAULT_ADDR": "https://vault.example:8200/"}
    found = vault_settings({**said, "CARAVAN_AGENT_VAULT_JWT_PATH": "/jwt/"})
    assert (found.addr, found.jwt_path) == ("https://vault.example:8200", "jwt")
    assert found.attributes() == {"vault.accessible": "true"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ADDR", "vault.example:8200"),
        ("ADDR", "https://vault.example/v1"),
        ("ADDR", "https://user:word@vault.example"),
        ("ADDR", "https://vault.example:many"),
        ("CACERT", "/nowhere/ca.pem"),
        ("JWT_PATH", "/"),
        ("JWT_PATH", "a?b"),
    ],
)
def test_a_bad_setting_of_vault_is_named(name: str, value: str) -> None:
    """The agent does not start with it."""
    given = {"CARAVAN_AGENT_VAULT_ADDR": "https://v.example", f"CARAVAN_AGENT_VAULT_{name}": value}
    with pytest.raises(ConfigInvalid, match=f"CARAVAN_AGENT_VAULT_{name}"):
        vault_settings(given)
