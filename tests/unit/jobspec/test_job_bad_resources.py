"""Asks that cannot be meant: each refused with the path of what is wrong and its line in the file."""

import json
from typing import Any

import pytest

from shared.jobspec.files.load import load_file

GROUP = "Job.TaskGroups[0]"
RESOURCES = f"{GROUP}.Tasks[0].Resources"


def faults(text: str) -> dict[str, tuple[int, str]]:
    """Path -> line and message."""
    found = load_file(text.encode(), "a.nomad.hcl").errors
    return {one.path: (one.line, one.message) for one in found}


def in_resources(inner: str) -> str:
    """A file whose line 6 is `inner`'s first."""
    return f'job "a" {{\n group "g" {{\n task "t" {{\n driver = "any"\n resources {{\n{inner}\n}}\n}}\n}}\n}}'


def in_group(inner: str) -> str:
    """A file whose line 3 is `inner`'s first."""
    return f'job "a" {{\n group "g" {{\n{inner}\n task "t" {{ driver = "any" }}\n}}\n}}'


def in_device(inner: str) -> str:
    """A file whose line 7 is `inner`'s first."""
    return in_resources(f'device "gpu" {{\n{inner}\n}}')


@pytest.mark.parametrize(
    ("inner", "path", "line", "told"),
    [
        ("cores = 0.5", "Cores", 6, "whole number"),
        ("cores = -1", "Cores", 6, "must be 1 to"),
        ("cores = 2\ncpu = 500", "CPU", 7, "either cpu or cores"),
        ("memory = 1.5", "MemoryMB", 6, "whole number"),
        ("memory_max = 5", "MemoryMaxMB", 6, "at least MemoryMB"),
        ('custom "x" { amount = 0 }', "Custom[0].Amount", 6, "more than 0"),
        ('custom "x" { amount = -2 }', "Custom[0].Amount", 6, "more than 0"),
        ('custom "x" { amount = 0.12345 }', "Custom[0].Amount", 6, "at most 4 decimal"),
        ('custom "x" { amount = 1e30 }', "Custom[0].Amount", 6, "at most 2147483647"),
        ('custom "x" { amount = "much" }', "Custom[0].Amount", 6, "must be a number"),
        ('custom "x" { grouping = "near" }', "Custom[0].Grouping", 6, "compact, scatter, strict"),
        ('custom "cores" {}', "Custom[0].Name", 6, "reserved name"),
        ('custom "device.gpu" {}', "Custom[0].Name", 6, "begin with device."),
        ('custom "" {}', "Custom[0].Name", 6, "must not be empty"),
        ('custom "a" {}\ncustom "a" {}', "Custom[1].Name", 7, "another custom block"),
        ('numa { affinity = "never" }', "NUMA.Affinity", 6, "none, prefer, require"),
        ('device "" {}', "Devices[0].Name", 6, "type must not be empty"),
        ('device "nvidia/" {}', "Devices[0].Name", 6, "type must not be empty"),
        ('device "/gpu" {}', "Devices[0].Name", 6, "vendor must not be empty"),
        ('device "a/b/" {}', "Devices[0].Name", 6, "model must not be empty"),
        ('device "gpu" {\n count = 0\n}', "Devices[0].Count", 7, "more than 0"),
        ('device "gpu" {\n count = -1\n}', "Devices[0].Count", 7, "more than 0"),
        ('device "gpu" {\n count = 0.00001\n}', "Devices[0].Count", 7, "at most 4 decimal"),
        ('device "gpu" {\n count = 5000\n}', "Devices[0].Count", 7, "at most 1024"),
    ],
)
def test_impossible_amounts_are_refused(inner: str, path: str, line: int, told: str) -> None:
    """Nothing, less than nothing, too fine, too much, or under a name that means something else."""
    found = faults(in_resources(inner))
    assert list(found) == [f"{RESOURCES}.{path}"]
    assert found[f"{RESOURCES}.{path}"][0] == line
    assert told in found[f"{RESOURCES}.{path}"][1]


@pytest.mark.parametrize(
    ("inner", "path", "line", "told"),
    [
        ("count = 1\nfirst_available { count = 2 }", "Count", 7, "not beside them"),
        ("first_available {}\nfirst_available { count = 0 }", "FirstAvailable[1].Count", 8, "more"),
        ('first_available { name = "a/" }', "FirstAvailable[0].Name", 7, "type must not be empty"),
    ],
)
def test_alternatives_say_themselves_how_many(inner: str, path: str, line: int, told: str) -> None:
    """A count beside first_available would be one more, of unclear rank; each option is checked as a block is."""
    found = faults(in_device(inner))
    assert list(found) == [f"{RESOURCES}.Devices[0].{path}"]
    at, message = found[f"{RESOURCES}.Devices[0].{path}"]
    assert at == line
    assert told in message


def test_alternatives_are_bounded() -> None:
    """Five by four is more than is tried; four by four is not."""

    def file(first: int, second: int) -> str:
        return in_resources(
            'device "a" {\n' + "first_available {}\n" * first + '}\ndevice "b" {\n'
            + "first_available {}\n" * second + "}"
        )  # fmt: skip

    assert faults(file(4, 4)) == {}
    found = faults(file(5, 4))
    assert list(found) == [f"{GROUP}.Tasks"]
    assert found[f"{GROUP}.Tasks"][1].startswith("20 combinations")


def test_a_group_asks_for_a_hundred_things_at_most() -> None:
    """Each ask stands in every alternative: more would be a job of megabytes."""
    blocks = "\n".join(f'device "d{at}" {{}}' for at in range(101))
    found = faults(in_resources(blocks))
    assert list(found) == [f"{GROUP}.Tasks"]
    assert "101 devices" in found[f"{GROUP}.Tasks"][1]


def test_a_job_that_grows_too_long_is_refused_before_it_is_compiled() -> None:
    """A few hundred bytes of alternatives must not become megabytes, however many groups they stand in."""
    ways = 'device "a" {\n' + "first_available {}\n" * 16 + "}\n"
    more = "\n".join(f'device "d{at}" {{}}' for at in range(50))
    groups = "\n".join(
        f'group "g{at}" {{\n task "t" {{\n driver = "any"\n resources {{\n{ways}{more}\n}}\n}}\n}}'
        for at in range(7)
    )
    found = faults(f'job "a" {{\n{groups}\n}}')
    assert list(found) == ["Job.TaskGroups"]
    assert "5712 resource requests" in found["Job.TaskGroups"][1]


@pytest.mark.parametrize("block", ["constraint", "affinity"])
@pytest.mark.parametrize(
    ("rule", "field", "told"),
    [
        ('operator = "=~"\nvalue = "x"', "Operand", "unknown operator"),
        ('operator = "distinct_hosts"\nvalue = "true"', "Operand", "unknown operator"),
        ('operator = "version"\nvalue = ">= x.y"', "RTarget", "version"),
        ('operator = "semver"\nvalue = "x"', "RTarget", "version"),
        ('operator = "regexp"\nvalue = "["', "RTarget", "regular expression"),
        (f'operator = "regexp"\nvalue = "({"a{1000}" * 9}){{1000}}"', "RTarget", ""),
    ],
)
def test_rules_of_devices_are_checked_as_those_of_nodes(
    block: str, rule: str, field: str, told: str
) -> None:
    """Unknown operators, impossible versions and patterns that would explode are refused, not tried."""
    name = {"constraint": "Constraints", "affinity": "Affinities"}[block]
    found = faults(in_device(f'{block} {{\nattribute = "${{device.model}}"\n{rule}\n}}'))
    assert list(found) == [f"{RESOURCES}.Devices[0].{name}[0].{field}"]
    line, message = next(iter(found.values()))
    assert line == (9 if field == "Operand" else 10)
    assert told in message


def test_patterns_that_explode_are_refused_for_nodes_too() -> None:
    """A pattern that would cost more than is allowed is a fault of the job, not a scheduler's trouble."""
    text = f'constraint {{\n attribute = "${{meta.a}}"\n operator = "regexp"\n value = "({"a{1000}" * 9}){{1000}}"\n}}'
    assert [(path, line) for path, (line, _) in faults(in_group(text)).items()] == [
        (f"{GROUP}.Constraints[0].RTarget", 6)
    ]


@pytest.mark.parametrize(
    ("inner", "path", "line", "told"),
    [
        ('port "a" { static = 65536 }', "ReservedPorts[0].Value", 4, "1 to 65535"),
        ('port "a" { static = -1 }', "ReservedPorts[0].Value", 4, "1 to 65535"),
        ('port "a" { to = 70000 }', "DynamicPorts[0].To", 4, "-1 to 65535"),
        ('port "a" {}\nport "a" {}', "DynamicPorts[1].Label", 5, "named 'a'"),
        ('port "a" {}\nport "a" { static = 1 }', "DynamicPorts[0].Label", 4, "named 'a'"),
        (
            'port "x" {}\nport "a" { static = 1 }\nport "b" { static = 1 }',
            "ReservedPorts[1].Value",
            6,
            "the number 1",
        ),
        ('port "" {}', "DynamicPorts[0].Label", 4, "must not be empty"),
        ('port "a" { static = "http" }', "DynamicPorts[0].Value", 4, "must be a number"),
    ],
)
def test_impossible_ports_are_refused(inner: str, path: str, line: int, told: str) -> None:
    """A port has a number from 1 to 65535 and a name of its own."""
    found = faults(in_group(f"network {{\n{inner}\n}}"))
    assert list(found) == [f"{GROUP}.Networks[0].{path}"]
    at, message = found[f"{GROUP}.Networks[0].{path}"]
    assert at == line
    assert told in message


def test_sixty_five_thousand_ports_are_refused() -> None:
    """More ports than a group may have are one fault, not as many as there are."""
    text = 'network {\n dynamic "port" {\n for_each = range(0, 101)\n labels = ["p${port.value}"]\n content {}\n }\n}'
    found = faults(in_group(text))
    assert list(found) == [f"{GROUP}.Networks[0]"]
    assert "101 ports" in found[f"{GROUP}.Networks[0]"][1]


def json_faults(networks: Any) -> dict[str, str]:
    job = {
        "ID": "a",
        "TaskGroups": [
            {"Name": "g", "Networks": networks, "Tasks": [{"Name": "t", "Driver": "any"}]}
        ],
    }
    found = load_file(json.dumps({"Job": job}).encode(), "a.json").errors
    return {one.path: one.message for one in found}


def test_a_reserved_port_of_the_json_has_a_number() -> None:
    """In Nomad's JSON a reserved port without a number, or a dynamic one with one, contradicts itself."""
    assert list(json_faults([{"ReservedPorts": [{"Label": "a", "Value": 0}]}])) == [
        f"{GROUP}.Networks[0].ReservedPorts[0].Value"
    ]
    assert list(json_faults([{"DynamicPorts": [{"Label": "a", "Value": 80}]}])) == [
        f"{GROUP}.Networks[0].DynamicPorts[0].Value"
    ]


@pytest.mark.parametrize(
    ("targets", "path", "told"),
    [
        ((("a", 60), ("b", 41)), "SpreadTarget", "sum to 101"),
        ((("a", 10), ("a", 20)), "SpreadTarget[1].Value", "another target names 'a'"),
        ((("a", 101),), "SpreadTarget[0].Percent", "0 to 100"),
    ],
)
def test_conflicting_spread_targets_are_refused(
    targets: tuple[tuple[str, int], ...], path: str, told: str
) -> None:
    """Targets share a hundred percent, each value named once."""
    blocks = "\n".join(f'target "{name}" {{ percent = {share} }}' for name, share in targets)
    found = faults(in_group(f'spread {{\n attribute = "${{meta.rack}}"\n{blocks}\n}}'))
    assert told in found[f"{GROUP}.Spreads[0].{path}"][1]
    assert found[f"{GROUP}.Spreads[0].{path}"][0] >= 4


@pytest.mark.parametrize(
    ("inner", "path", "line"),
    [
        ('disconnect {\n reconcile = "newest"\n}', "Disconnect.Reconcile", 4),
        ('disconnect {\n lost_after = "-1s"\n}', "Disconnect.LostAfter", 4),
        ('disconnect {}\nmax_client_disconnect = "1h"', "MaxClientDisconnect", 4),
    ],
)
def test_disconnect_is_checked(inner: str, path: str, line: int) -> None:
    """An unknown strategy, a time before now, or the same said twice."""
    found = faults(in_group(inner))
    assert [(at, where) for at, (where, _) in found.items()] == [(f"{GROUP}.{path}", line)]


@pytest.mark.parametrize(
    ("inner", "path", "told"),
    [
        ('mode = "nat"', "Mode", "host, bridge or none"),
        ('mode = "cni/mesh"', "Mode", "not built yet; mode bridge needs none"),
        ('mode = "bridge"\nhostname = "a..b"', "Hostname", "letters, digits, dots and dashes"),
        ('mode = "bridge"\nhostname = "${node.unique.name}"', "Hostname", "not interpolated"),
        ('mode = "host"\nhostname = "a b"', "Hostname", "letters, digits, dots and dashes"),
    ],
)
def test_a_network_that_nobody_has_is_refused(inner: str, path: str, told: str) -> None:
    """A mode is one of three, a host name is a name of DNS."""
    line, message = faults(in_group(f"network {{\n{inner}\n}}"))[f"{GROUP}.Networks[0].{path}"]
    assert told in message
    assert line == 3 + len(inner.splitlines())


def test_a_plain_process_has_no_network_of_its_own() -> None:
    """None cannot be given to raw_exec, so it is not promised."""
    text = 'job "a" {\n group "g" {\n network { mode = "none" }\n task "t" { driver = "raw_exec" }\n}\n}'
    assert "has the node's network" in faults(text)[f"{GROUP}.Networks[0].Mode"][1]
