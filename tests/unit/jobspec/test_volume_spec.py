"""Specifications of host volumes: HCL, JSON and the API's names say the same; what cannot be is named with its line."""

import json
from typing import Any

import pytest

from schemas.host_volumes import VolumeCapability, VolumeSpec
from schemas.jobs import Constraint
from shared.errors import CommandInvalid
from shared.jobspec.volume_spec import read_size, read_volume_hcl, read_volume_json

HCL = """
id           = "6f1f2d4e-0000-4000-8000-000000000001"
name         = "data"
type         = "host"
plugin_id    = "mkdir"
node_pool    = "prod"
node_id      = "n1"
capacity_min = "10GiB"
capacity_max = "20G"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
constraint {
  attribute = "${attr.kernel.name}"
  value     = "linux"
}
constraint {
  attribute = "${attr.cpu.arch}"
  regexp    = "amd.*"
}
parameters {
  uid  = 1000
  mode = "0750"
}
"""
API: dict[str, Any] = {
    "ID": "6f1f2d4e-0000-4000-8000-000000000001",
    "Namespace": "default",
    "Name": "data",
    "PluginID": "mkdir",
    "NodePool": "prod",
    "NodeID": "n1",
    "RequestedCapacityMinBytes": 10 << 30,
    "RequestedCapacityMaxBytes": 20_000_000_000,
    "RequestedCapabilities": [
        {"AccessMode": "single-node-writer", "AttachmentMode": "file-system"}
    ],
    "Constraints": [
        {"LTarget": "${attr.kernel.name}", "Operand": "=", "RTarget": "linux"},
        {"LTarget": "${attr.cpu.arch}", "Operand": "regexp", "RTarget": "amd.*"},
    ],
    "Parameters": {"uid": "1000", "mode": "0750"},
    "State": "ready",
    "HostPath": "/x",
    "Allocations": None,
}
FILE = {
    "name": "data",
    "capacity": "1KiB",
    "capability": [{"access_mode": "single-node-writer"}],
    "parameters": [{"uid": 1}],
}


def test_hcl_and_the_api_say_the_same() -> None:
    """Units, short forms of constraints and numbers among the parameters included."""
    found = read_volume_hcl(HCL)
    assert found == read_volume_json(json.dumps(API).encode())
    assert (found.id, found.node_id) == (API["ID"], "n1")
    assert found.spec == VolumeSpec(
        id="",
        name="data",
        plugin="mkdir",
        node_pool="prod",
        constraints=(
            Constraint(left="${attr.kernel.name}", operator="=", right="linux"),
            Constraint(left="${attr.cpu.arch}", operator="regexp", right="amd.*"),
        ),
        capacity_min_bytes=10 << 30,
        capacity_max_bytes=20_000_000_000,
        capabilities=(VolumeCapability(access_mode="single-node-writer"),),
        parameters={"mode": "0750", "uid": "1000"},
    )


def test_a_file_in_json_has_the_names_of_hcl() -> None:
    """A block may be a list of one; `capacity` is both bounds."""
    spec = read_volume_json(json.dumps(FILE).encode()).spec
    assert (spec.plugin, spec.capacity_min_bytes, spec.capacity_max_bytes) == ("mkdir", 1024, 1024)
    assert spec.parameters == {"uid": "1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "a"\ntype = "csi"', "line 2: type: csi is not built"),
        (
            'nam = "a"',
            "line 1: 'nam' is not built, or not part of a host volume; did you mean name?",
        ),
        ('name = "a"\n\nmount_options {}', "line 3: 'mount_options' is not built"),
        ('name = "a"\nnamespace = "b"', "line 2: namespace: namespaces are not built"),
        ("name = 3", "line 1: name: must be a text"),
        ('name = ""', "line 1: name: must not be empty"),
        ("", "name: must not be empty"),
        ('name = "a"\ncapacity_min = "ten"', "line 2: capacity_min: must be a number of bytes"),
        ('name = "a"\ncapability {\n  mode = "x"\n}', "line 3: 'mode' is not built"),
        (
            'name = "a"\nparameters {\n  x = ["y"]\n}',
            "line 2: parameters: its values must be texts",
        ),
        ('name = "a"\nparameters "x" {}', "line 2: 'parameters' is not built"),
        ('}\nvolume {\n  name = "a"', "one list of attributes and blocks"),
        ("name = =", "line 1:"),
    ],
)
def test_what_cannot_be_is_named_with_its_line(text: str, message: str) -> None:
    """Nothing is ignored."""
    with pytest.raises(CommandInvalid) as err:
        read_volume_hcl(text)
    assert message in err.value.message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "a JSON object"),
        ({"Name": "a", "Secrets": {}}, "'Secrets' is not built"),
        ({"Name": "a", "Constraints": ["x"]}, "must be a list of objects"),
        ({"Name": "a", "Parameters": 3}, "parameters: must be"),
        ({"Name": "a", "RequestedCapacityMinBytes": True}, "capacity_min: must be a number"),
    ],
)
def test_what_cannot_be_in_json_is_named(value: Any, message: str) -> None:
    """By the name of its field."""
    with pytest.raises(CommandInvalid) as err:
        read_volume_json(json.dumps(value).encode())
    assert message in err.value.message


def test_sizes() -> None:
    """Binary units have an i, as in Nomad."""
    texts = ("7", "1K", "1KiB", "1.5GiB", "2 TB", "1i", "1XB", "-1", "")
    assert [read_size(one) for one in texts] == [
        *(7, 1000, 1024, 3 << 29, 2 * 10**12),
        *(None, None, None, None),
    ]
