"""What the node's table of rules, resolver and settings say, as text."""

import pytest

from services.agent.drivers.docker.pause import image_layer, pause_program
from services.agent.network.name_files import hosts_file, resolv_conf
from services.agent.network.places import link_name
from services.agent.network.ruleset import GroupRules, table_text
from services.agent.network.settings import BridgeSettings, bridge_settings
from shared.core.runtime.network_messages import PortMapping, PrepareNetwork
from shared.errors import CaravanError, ConfigInvalid

STUB, REAL = (
    "nameserver 127.0.0.53\nsearch lan\n",
    "nameserver 10.0.0.2\nnameserver ::1\nsearch corp\n",
)


def group(number: int, *ports: tuple[int, int], address: str = "") -> GroupRules:
    """A group with mapped ports."""
    found = tuple(
        PortMapping(label=f"p{host}", host=host, inside=to, address=address) for host, to in ports
    )
    return GroupRules(address=f"172.27.64.{number}/20", ports=found)


def order(**more: object) -> PrepareNetwork:
    """A network."""
    own = {"address": "172.27.64.5/20", "hostname": "web", **more}
    return PrepareNetwork(key=1, alloc_id="a", **own)  # type: ignore[arg-type]


def test_the_table_is_one_transaction_that_replaces_itself() -> None:
    """Declared, deleted and written again; the same groups in any order are the same text."""
    one, two = group(5, (8080, 80)), group(6, (8081, 80))
    text = table_text(BridgeSettings(), [two, one])
    assert text == table_text(BridgeSettings(), [one, two])
    assert text.splitlines()[:3] == [
        "table inet caravan",
        "delete table inet caravan",
        "table inet caravan {",
    ]
    assert text.endswith("}\n") and text.count("{") == text.count("}")


def test_a_port_leads_to_its_group_from_outside_and_from_the_node() -> None:
    """By tcp and udp, at all addresses of the node or at the one of its network by name."""
    text = table_text(
        BridgeSettings(), [group(5, (8080, 80)), group(6, (9, 10), address="10.0.0.7")]
    )
    for kind in ("tcp", "udp"):
        rule = f"fib daddr type local {kind} dport 8080 dnat ip to 172.27.64.5:80"
        named = f"ip daddr 10.0.0.7 {kind} dport 9 dnat ip to 172.27.64.6:10"
        assert text.count(rule) == text.count(named) == 2


def test_only_what_is_published_leads_in() -> None:
    """Groups are closed to each other unless the operator wants it; the node's loopback always."""
    between = 'iifname "caravan0" oifname "caravan0" accept'
    closed = table_text(BridgeSettings(), [])
    assert 'oifname "caravan0" drop' in closed and between not in closed
    assert 'iifname "caravan0" ip daddr 127.0.0.0/8 drop' in closed
    assert between in table_text(BridgeSettings(isolate="none"), [])


def test_a_node_may_close_its_own_ports() -> None:
    """All but DNS, the ports that the cluster picks, and those that the operator lists."""
    settings = BridgeSettings(isolate="node", open="8500", port_range=(20_000, 20_100))
    text = table_text(settings, [])
    accepted = [
        line.split()[4] for line in text.splitlines() if "tcp dport" in line and "accept" in line
    ]
    assert accepted == ["53", "20000-20100", "8500"]
    assert 'iifname "caravan0" drop' in text
    assert 'iifname "caravan0" drop' not in table_text(BridgeSettings(), [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SUBNET", "172.27.64.1/20"),
        ("SUBNET", "172.27.64.0/30"),
        ("NAME", "a-very-long-name-of-a-bridge"),
        ("ISOLATE", "yes"),
        ("OPEN", "80,x"),
        ("DNS", "ns.example"),
    ],
)
def test_a_setting_that_cannot_be_is_named(name: str, value: str) -> None:
    """The error has the variable."""
    with pytest.raises(ConfigInvalid, match=f"CARAVAN_AGENT_BRIDGE_{name}"):
        bridge_settings({f"CARAVAN_AGENT_BRIDGE_{name}": value}, (1, 2))


def test_two_agents_have_different_tables_and_links() -> None:
    """A table is named after its bridge, a link after agent and allocation, within the kernel's 15 characters."""
    assert BridgeSettings().table == "caravan"
    assert BridgeSettings(name="other0").table == "caravan_other0"
    links = {link_name(host, token) for host in ("h1", "h2") for token in ("a", "b")}
    assert len(links) == 4 and all(len(one) <= 15 for one in links)


def test_a_resolver_that_cannot_be_reached_is_left_out() -> None:
    """The group's servers, else the operator's, else those that the node's own resolver asks."""
    assert resolv_conf(order(), [STUB, REAL], ()) == "nameserver 10.0.0.2\nsearch corp\n"
    assert resolv_conf(order(), [STUB], ("10.9.9.9",)) == "nameserver 10.9.9.9\nsearch lan\n"
    said = order(dns_servers=("10.0.0.9",), dns_searches=("x", "y"), dns_options=("ndots:2",))
    assert resolv_conf(said, [REAL], ()) == "nameserver 10.0.0.9\nsearch x y\noptions ndots:2\n"
    assert resolv_conf(order(), [STUB], ()) == "search lan\n"


def test_the_group_knows_its_own_name() -> None:
    """Beside the loopback."""
    assert hosts_file(order()).splitlines()[-1] == "172.27.64.5 web"


def test_the_program_that_holds_a_namespace_is_made_here() -> None:
    """A static ELF file of one segment for known machines; others say so."""
    for machine, number in (("x86_64", 62), ("aarch64", 183)):
        program = pause_program(machine)
        assert program[:6] == b"\x7fELF\x02\x01" and program[18] == number
        assert program in image_layer(machine)
    with pytest.raises(CaravanError, match="on mips"):
        pause_program("mips")
