"""Blocks of job files: where each stands in Nomad's JSON, in short forms and long ones."""

from typing import Any

import pytest

from shared.jobspec.files.load import load_file
from tests.unit.jobspec.test_job_files import SECOND, job


def task(inner: str) -> dict[str, Any]:
    """Read a task of one file; return its JSON."""
    beside = 'task "beside" { driver = "any" }\n volume "data" { source = "data" }'
    text = (
        f'job "a" {{\n group "g" {{\n task "t" {{\n driver = "any"\n{inner}\n}}\n{beside}\n}}\n}}'
    )
    found: dict[str, Any] = job(text)["TaskGroups"][0]["Tasks"][0]
    return found


def group(inner: str) -> dict[str, Any]:
    """Read a group of one file; return its JSON."""
    text = f'job "a" {{\n group "g" {{\n{inner}\n task "t" {{ driver = "any" }}\n}}\n}}'
    found: dict[str, Any] = job(text)["TaskGroups"][0]
    return found


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("distinct_hosts = true", {"Operand": "distinct_hosts", "RTarget": "true"}),
        (
            'distinct_property = "${meta.rack}"\nvalue = 2',
            {"Operand": "distinct_property", "LTarget": "${meta.rack}", "RTarget": "2"},
        ),
        (
            'attribute = "${attr.v}"\nversion = ">= 1.2"',
            {"Operand": "version", "LTarget": "${attr.v}", "RTarget": ">= 1.2"},
        ),
        (
            'attribute = "${attr.k}"\nset_contains = "a,b"',
            {"Operand": "set_contains", "LTarget": "${attr.k}", "RTarget": "a,b"},
        ),
        ('is_set = "${attr.x}"', {"Operand": "is_set", "LTarget": "${attr.x}"}),
        (
            'attribute = "${attr.a}"\noperator = "!="\nvalue = "x"',
            {"Operand": "!=", "LTarget": "${attr.a}", "RTarget": "x"},
        ),
    ],
)
def test_constraints_in_short(short: str, full: dict[str, str]) -> None:
    """The short forms of constraints are written out in the JSON."""
    assert group(f"constraint {{\n{short}\n}}")["Constraints"] == [full]


def test_ports_with_a_number_stand_apart() -> None:
    """Static ports are reserved ports in Nomad's JSON, the others dynamic ones."""
    found = group(
        'network {\n mode = "bridge"\n port "a" { static = 80 }\n port "b" { to = 90 }\n'
        ' dns { servers = ["1.1.1.1"] }\n}'
    )
    assert found["Networks"] == [
        {
            "Mode": "bridge",
            "DNS": {"Servers": ["1.1.1.1"]},
            "ReservedPorts": [{"Label": "a", "Value": 80}],
            "DynamicPorts": [{"Label": "b", "To": 90}],
        }
    ]


def test_blocks_of_a_task_find_their_places() -> None:
    """Lifecycle, logs, templates, services and their checks stand where Nomad's JSON has them."""
    found = task("""
lifecycle {
  hook    = "prestart"
  sidecar = true
}
logs {
  max_files     = 2
  max_file_size = 5
}
template {
  data        = <<-EOT
    a={{ env "X" }}
    EOT
  destination = "local/x"
  splay       = "1m"
}
service {
  port     = "8080"
  provider = "nomad"
  check {
    type     = "http"
    path     = "/"
    interval = "10s"
    timeout  = "2s"
    header { Authorization = ["Basic x"] }
    check_restart { limit = 3 }
  }
}
""")
    assert found["Lifecycle"] == {"Hook": "prestart", "Sidecar": True}
    assert found["LogConfig"] == {"MaxFiles": 2, "MaxFileSizeMB": 5}
    assert found["Templates"][0]["EmbeddedTmpl"] == 'a={{ env "X" }}\n'
    assert found["Templates"][0]["Splay"] == 60 * SECOND
    check = found["Services"][0]["Checks"][0]
    assert (check["Interval"], check["Header"]) == (10 * SECOND, {"Authorization": ["Basic x"]})
    assert check["CheckRestart"] == {"Limit": 3}


def test_rarer_blocks_of_a_task_find_their_places() -> None:
    """Identities, scaling, volume mounts and artifacts stand where Nomad's JSON has them."""
    found = task("""
identity { env = true }
identity {
  name = "vault"
  aud  = ["vault.io"]
  ttl  = "1h"
}
scaling "cpu" {
  max = 1000
  policy {
    check "a" { strategy "x" {} }
  }
}
volume_mount {
  volume      = "data"
  destination = "/data"
}
artifact {
  source = "https://example.org/x.tgz"
  options { checksum = "md5:00000000000000000000000000000000" }
}
""")
    assert found["Identity"] == {"Env": True}
    assert found["Identities"] == [
        {"Name": "vault", "Audience": ["vault.io"], "TTL": 3600 * SECOND}
    ]
    assert found["ScalingPolicies"][0]["Type"] == "vertical_cpu"
    inner = found["ScalingPolicies"][0]["Policy"]
    assert inner == {"check": [{"a": [{"strategy": [{"x": [{}]}]}]}]}
    assert found["VolumeMounts"] == [{"Volume": "data", "Destination": "/data"}]
    assert found["Artifacts"][0]["GetterOptions"] == {"checksum": "md5:" + "0" * 32}


def test_a_drivers_config_keeps_its_shape() -> None:
    """Inside config, blocks are lists of objects, by label where they have one; values keep their types."""
    found = task("""
config {
  image = "x"
  ports = ["http"]
  privileged = true
  mount {
    type = "bind"
  }
  mount { type = "tmpfs" }
  logging {
    type = "json"
    config { max = 3 }
  }
}""")
    assert found["Config"] == {
        "image": "x",
        "ports": ["http"],
        "privileged": True,
        "mount": [{"type": "bind"}, {"type": "tmpfs"}],
        "logging": [{"type": "json", "config": [{"max": 3}]}],
    }


def test_a_task_alone_and_a_shared_vault() -> None:
    """A task beside groups is a group of its own; a vault block of job or group goes to the tasks that have none."""
    found = job("""
job "a" {
  vault { policies = ["outer"] }
  task "alone" { driver = "any" }
  group "g" {
    task "x" { driver = "any" }
    task "y" {
      driver = "any"
      vault { role = "own" }
    }
  }
}
""")
    assert [one["Name"] for one in found["TaskGroups"]] == ["alone", "g"]
    vaults = [one["Vault"] for group in found["TaskGroups"] for one in group["Tasks"]]
    assert vaults == [{"Policies": ["outer"]}, {"Policies": ["outer"]}, {"Role": "own"}]


def test_update_and_migrate_blocks_are_kept_by_level() -> None:
    """The update and migrate blocks of job and groups are read, unset fields as None."""
    text = """
job "a" {
  update {
    max_parallel = 3
    canary       = 1
  }
  group "g" {
    update { max_parallel = 2 }
    task "t" { driver = "d" }
  }
  group "h" {
    migrate { health_check = "task_states" }
    task "t" { driver = "d" }
  }
}
"""
    submission = load_file(text.encode(), "x.hcl", accept=["accept_unbuilt"]).submission
    assert submission is not None and submission.job is not None
    of = submission.job
    first, second = of.groups
    assert of.update is not None and (of.update.max_parallel, of.update.canary) == (3, 1)
    assert first.update is not None and (first.update.max_parallel, first.update.canary) == (
        2,
        None,
    )
    assert second.migrate is not None and second.update is None
    assert (second.migrate.health_check, second.migrate.healthy_deadline_ns) == (
        "task_states",
        None,
    )
