"""What a node offers beside CPU, memory and disk: read from files, counted, pretended, and divided."""

from pathlib import Path

import pytest

from schemas.base import NodeId
from schemas.nodes import Instance, NodeSpec, Pool
from services.agent.__main__ import agent_share
from services.agent.fingerprint.host import HostFacts, HostReserved, NodeNaming, node_spec
from services.agent.fingerprint.pools import (
    FakeGpus,
    collect_pools,
    cores_pool,
    parse_ranges,
    read_pools,
)
from services.agent.settings import agent_settings
from shared.errors import ConfigInvalid

GIVEN = {"CARAVAN_AGENT_NODE_ID": "n1", "CARAVAN_AGENT_DATA_DIR": "d"}
JSON = """[{"name": "licence", "amount": 2.5},
 {"name": "device.fpga", "instances": ["a", {"id": "b", "group": 1}], "vendor": "x", "attributes": {"lut": "9"}},
 {"name": "scanner", "instances": 2}]"""
TOML = """
[[pools]]
name = "licence"
amount = 2.5

[[pools]]
name = "device.fpga"
instances = ["a", { id = "b", group = 1 }]
vendor = "x"
attributes = { lut = "9" }

[[pools]]
name = "scanner"
instances = 2
"""


def file(tmp_path: Path, text: str, name: str = "pools.json") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "name"), [(JSON, "p.json"), (TOML, "p.toml"), (f'{{"pools": {JSON}}}', "p")]
)
def test_a_file_says_what_a_node_offers(tmp_path: Path, text: str, name: str) -> None:
    """Sums in units with decimals, instances by name, with groups, or only counted; JSON and TOML alike."""
    assert read_pools(file(tmp_path, text, name)) == (
        Pool(name="licence", amount=25_000),
        Pool(
            name="device.fpga",
            instances=(Instance(id="a"), Instance(id="b", group=1)),
            vendor="x",
            attributes={"lut": "9"},
        ),
        Pool(name="scanner", instances=(Instance(id="scanner-0"), Instance(id="scanner-1"))),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "truncated"),
        ('[{"amount": 1}]', "`name`"),
        ('[{"name": "", "amount": 1}]', "needs a name"),
        ('[{"name": "cores", "instances": 2}]', 'pool name "cores" is reserved'),
        ('[{"name": "x"}]', "set either amount or instances"),
        ('[{"name": "x", "amount": 1, "instances": 2}]', "set either amount or instances"),
        ('[{"name": "x", "amount": -1}]', "more than 0"),
        ('[{"name": "x", "amount": 0.00001}]', "4 decimal places"),
        ('[{"name": "x", "instances": 100000}]', "at most 1024"),
        ('[{"name": "x", "amuont": 1}]', "amuont"),
        ('[{"name": "x", "instances": [5]}]', "pools[0]"),
    ],
)
def test_a_wrong_file_stops_the_agent_with_its_name(tmp_path: Path, text: str, told: str) -> None:
    """A mistake in the file is an error that names the file and the place; it is not skipped."""
    path = file(tmp_path, text)
    with pytest.raises(ConfigInvalid) as caught:
        read_pools(path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """An agent with a file of pools in its settings does not start without it."""
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        read_pools(tmp_path / "none.json")


def test_cores_are_instances_with_their_part_of_the_memory() -> None:
    """Every core that is not kept for the node is an instance; its group is its NUMA node."""
    (pool,) = cores_pool({0: 0, 1: 0, 2: 1, 3: 1}, frozenset({0}))
    assert pool.name == "cores"
    assert [(one.id, one.group) for one in pool.instances] == [("1", 0), ("2", 1), ("3", 1)]
    assert cores_pool({0: 0}, frozenset({0})) == ()


def test_reserved_cores_take_their_mhz_along() -> None:
    """Reserved cores are for the node's own processes: their MHz are not offered."""
    facts = HostFacts(cpuinfo="cpu MHz : 2000.0\n", cores=4, core_groups=dict.fromkeys(range(4), 0))
    spec = node_spec(
        facts,
        NodeNaming(node_id="n1"),
        drivers={},
        reserved=HostReserved(cpu_mhz=500, cores=frozenset({3, 9})),
        pools=(Pool(name="x", amount=1),),
    )
    assert (spec.core_mhz, spec.cpu_mhz) == (2000, 5500)
    assert [(pool.name, len(pool.instances)) for pool in spec.pools] == [("cores", 3), ("x", 0)]


def test_fake_gpus_are_called_fake() -> None:
    """Simulated devices are marked: the node's attributes and each device name them as fake."""
    fake = FakeGpus("nvidia/gpu/a100:2, amd/gpu/mi300:1")
    first, second = collect_pools([object(), fake])
    assert (first.name, first.vendor, first.model) == ("device.gpu", "nvidia", "a100")
    assert [one.id for one in (*first.instances, *second.instances)] == [
        *("fake-a100-0", "fake-a100-1"),
        "fake-mi300-0",
    ]
    assert first.attributes == second.attributes == {"fake": "true"}
    assert "FAKE" in fake.fingerprint()["fake.devices"]


@pytest.mark.parametrize(
    "text", ["gpu:1", "nvidia/gpu/a100", "nvidia/gpu/a100:0", "a//b:1", "a/b/c:x"]
)
def test_a_wrong_fake_is_named(text: str) -> None:
    """A slip in a test's settings is no empty node."""
    with pytest.raises(ConfigInvalid, match="vendor/type/model:count"):
        FakeGpus(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [("", ()), ("22", (22,)), ("8-10, 9,22", (8, 9, 10, 22)), (" 1 - 2 ,", (1, 2))],
)
def test_numbers_and_ranges(text: str, found: tuple[int, ...]) -> None:
    """Each number once, ascending."""
    assert parse_ranges(text, "X", 100) == found


@pytest.mark.parametrize("text", ["a", "1-", "-1", "5-3", "101", "1-2-3", "99999999999"])
def test_wrong_numbers_name_the_setting(text: str) -> None:
    """What is no number, turned around or too high is an error that names the setting."""
    with pytest.raises(ConfigInvalid, match="SETTING"):
        parse_ranges(text, "SETTING", 100)


def test_agents_of_one_machine_share_its_cores_and_ports() -> None:
    """Together they have every core and every port once; what was declared is each one's own."""
    pools = (*cores_pool(dict.fromkeys(range(5), 0), frozenset()), Pool(name="x", amount=1))
    machine = NodeSpec(node_id=NodeId("n1"), cpu_mhz=3000, pools=pools)
    parts = [
        agent_share(
            machine,
            agent_settings(
                {
                    **GIVEN,
                    "CARAVAN_AGENT_SHARES": "3",
                    "CARAVAN_AGENT_SHARE": str(share),
                    "CARAVAN_AGENT_PORT_MIN": "100",
                    "CARAVAN_AGENT_PORT_MAX": "199",
                    "CARAVAN_AGENT_RESERVED_PORTS": "22",
                }
            ),
        )
        for share in range(3)
    ]
    cores = [one.id for part in parts for pool in part.pools for one in pool.instances]
    assert cores == ["0", "1", "2", "3", "4"]
    ports = [port for part in parts for port in range(part.port_min, part.port_max + 1)]
    assert ports == list(range(100, 200))
    assert all(part.pools[-1].name == "x" and part.reserved_ports == (22,) for part in parts)


def test_a_share_that_is_not_there_is_refused() -> None:
    """The fourth of three would have what the others have."""
    with pytest.raises(ConfigInvalid, match="SHARE"):
        agent_settings({**GIVEN, "CARAVAN_AGENT_SHARES": "3", "CARAVAN_AGENT_SHARE": "3"})
