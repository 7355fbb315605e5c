"""Job files in every format: the JSON they become, and faults with file, line and path."""

import json
import subprocess
import sys
from typing import Any

import pytest

from shared.errors import CommandInvalid
from shared.jobspec.defaults import migrate_of, update_of
from shared.jobspec.load import PARSE_BYTES_MAX, Loaded, load_file, parse_request, parse_text
from shared.jobspec.submission import JobInvalid

SECOND = 1_000_000_000


def job(text: str, name: str = "x.nomad.hcl", **given: Any) -> dict[str, Any]:
    """Read a file without faults; return its job."""
    found = load_file(text.encode(), name, **given)
    assert found.errors == ()
    value: dict[str, Any] = json.loads(found.body)["Job"]
    return value


def task(inner: str) -> dict[str, Any]:
    """Read a task of one file; return its JSON."""
    text = f'job "a" {{\n group "g" {{\n task "t" {{\n driver = "docker"\n{inner}\n}}\n}}\n}}'
    found: dict[str, Any] = job(text)["TaskGroups"][0]["Tasks"][0]
    return found


def group(inner: str) -> dict[str, Any]:
    """Read a group of one file; return its JSON."""
    text = f'job "a" {{\n group "g" {{\n{inner}\n task "t" {{ driver = "docker" }}\n}}\n}}'
    found: dict[str, Any] = job(text)["TaskGroups"][0]
    return found


def errors(found: Loaded) -> list[tuple[int, str]]:
    return [(one.line, one.path) for one in found.errors]


HELLO = """
job "hello" {
  type        = "batch"
  datacenters = ["dc1", "dc-*"]
  priority    = "70"
  meta { team = "a" }

  group "web" {
    count = 3
    restart {
      attempts = 2
      interval = "1h30m"
      delay    = "500ms"
      mode     = "fail"
    }
    task "main" {
      driver       = "raw_exec"
      kill_timeout = "10s"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo ${NOMAD_ALLOC_INDEX} on ${node.class}"]
      }
      env {
        PORT = 80
        ON   = true
      }
      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
"""
HELLO_JSON = {
    "ID": "hello",
    "Name": "hello",
    "Type": "batch",
    "Datacenters": ["dc1", "dc-*"],
    "Priority": 70,
    "Meta": {"team": "a"},
    "TaskGroups": [
        {
            "Name": "web",
            "Count": 3,
            "RestartPolicy": {
                "Attempts": 2,
                "Interval": 5400 * SECOND,
                "Delay": SECOND // 2,
                "Mode": "fail",
            },
            "Tasks": [
                {
                    "Name": "main",
                    "Driver": "raw_exec",
                    "KillTimeout": 10 * SECOND,
                    "Config": {
                        "command": "/bin/sh",
                        "args": ["-c", "echo ${NOMAD_ALLOC_INDEX} on ${node.class}"],
                    },
                    "Env": {"PORT": "80", "ON": "true"},
                    "Resources": {"CPU": 500, "MemoryMB": 256},
                }
            ],
        }
    ],
}


def test_hcl_becomes_nomads_json() -> None:
    """Names, labels, durations and simple types of HCL become those of Nomad's JSON; references stay."""
    assert job(HELLO) == HELLO_JSON


HELLO_YAML = """
job:
  id: hello
  name: hello
  type: batch
  datacenters: [dc1, "dc-*"]
  priority: 70
  meta: {team: a}
  groups:
    - name: web
      count: 3
      restart: {attempts: 2, interval: 1h30m, delay: 500ms, mode: fail}
      tasks:
        - name: main
          driver: raw_exec
          kill_timeout: 10s
          config:
            command: /bin/sh
            args: ["-c", "echo ${NOMAD_ALLOC_INDEX} on ${node.class}"]
          env: {PORT: 80, "ON": true}
          resources: {cpu: 500, memory: 256}
"""
HELLO_TOML = """
[job.hello]
type = "batch"
datacenters = ["dc1", "dc-*"]
priority = 70
meta = { team = "a" }
[job.hello.group.web]
count = 3
restart = { attempts = 2, interval = "1h30m", delay = "500ms", mode = "fail" }
[job.hello.group.web.task.main]
driver = "raw_exec"
kill_timeout = "10s"
config = { command = "/bin/sh", args = ["-c", "echo ${NOMAD_ALLOC_INDEX} on ${node.class}"] }
env = { PORT = 80, ON = true }
resources = { cpu = 500, memory = 256 }
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (HELLO_YAML, "x.yaml"),
        (HELLO_TOML, "x.toml"),
        (json.dumps({"Job": HELLO_JSON}), "x.json"),
        (json.dumps(HELLO_JSON), "x.nomad.json"),
        (json.dumps(HELLO_JSON), "-"),
        (json.dumps({"job": {"hello": HELLO_JSON}}), "x.json"),
        (HELLO, "-"),
        (HELLO, "x.nomad"),
    ],
)
def test_every_format_says_the_same(text: str, name: str) -> None:
    """One job written in YAML, TOML, JSON of both kinds and HCL is one job; the name or the first character tells."""
    assert job(text, name) == HELLO_JSON


def test_faults_of_hcl_come_together_with_line_and_path() -> None:
    """Faults of evaluation, of types and of the job itself are told together, each once, with file, line and path."""
    text = """job "a b" {
  priority = "high"
  type     = "cron"
  group "g" {
    count = -1
    network {
      port "http" { static = "x" }
    }
    task "t" {
      driver = upperr("docker")
      resources {
        memory = 5
      }
      kill_timeout = "soon"
      env = ["A"]
    }
  }
}
"""
    found = load_file(text.encode(), "x.nomad.hcl")
    assert found.submission is None
    assert {one.file for one in found.errors} == {"x.nomad.hcl"}
    assert sorted(errors(found)) == sorted(
        [
            (1, "Job.ID"),
            (2, "Job.Priority"),
            (3, "Job.Type"),
            (5, "Job.TaskGroups[0].Count"),
            (7, "Job.TaskGroups[0].Networks[0].DynamicPorts[0].Value"),
            (10, ""),
            (12, "Job.TaskGroups[0].Tasks[0].Resources.MemoryMB"),
            (14, "Job.TaskGroups[0].Tasks[0].KillTimeout"),
            (15, "Job.TaskGroups[0].Tasks[0].Env"),
        ]
    )
    told = {one.line: one.message for one in found.errors}
    assert told[10] == "unknown function upperr(); did you mean upper?"
    assert told[14] == "'soon' is no duration like 30s, 5m or 1h30m"
    assert told[2] == "must be a number, was 'high'"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (
            (
                '{"Job": {\n "ID": "a",\n "Priority": 200,\n "TaskGroups": [\n {"Name": "g",\n'
                ' "Count": "x", "Tasks": [{"Name": "t", "Driver": "d"}]}]}}'
            ),
            "x.json",
            [(3, "Job.Priority"), (6, "Job.TaskGroups[0].Count")],
        ),
        (
            '{\n "ID": "a",\n "TaskGroups": [\n {"Name": "g", "Tasks": [\n {"Name": "t"}]}]}',
            "x.json",
            [(5, "Job.TaskGroups[0].Tasks[0].Driver")],
        ),
        (
            "id: a\npriority: 200\ngroups:\n- name: g\n  count: x\n  tasks: [{name: t, driver: d}]\n",
            "x.yml",
            [(2, "Job.Priority"), (5, "Job.TaskGroups[0].Count")],
        ),
        ("a: 1\n b: 2\n", "x.yaml", [(2, "")]),
        ("a = 1\nb = \n", "x.toml", [(2, "")]),
        (
            (
                'id = "a"\npriority = 200\n[[group]]\nname = "f"\n[[group.task]]\nname = "t"\ndriver = "d"\n'
                '[[group]]\nname = "g"\ncount = -1\n[group.task.t]\ndriver = ""\n'
            ),
            "x.toml",
            [
                (2, "Job.Priority"),
                (10, "Job.TaskGroups[1].Count"),
                (12, "Job.TaskGroups[1].Tasks[0].Driver"),
            ],
        ),
        ('{"Job": {\n "ID": 1,,\n}}', "x.json", [(2, "")]),
        ('job "a" {\n  group "g" {\n', "x.hcl", [(2, "")]),
        ("", "x.hcl", [(1, "")]),
        ('group "g" {}\n', "x.hcl", [(1, "")]),
        ('job "a" {}\njob "b" {}', "x.hcl", [(2, ""), (1, "Job.TaskGroups")]),
    ],
)
def test_each_format_tells_lines(text: str, name: str, expected: list[tuple[int, str]]) -> None:
    """A fault says on which line it stands, whatever the format."""
    assert sorted(errors(load_file(text.encode(), name))) == sorted(expected)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b]\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, "anchors and aliases are not read"),
        ("a: !!python/object/apply:os.system [ls]\n", "tags are not read"),
        ("a: 1\na: 2\n", "'a' comes twice"),
        ("[" * 200 + "]" * 200, "nested deeper"),
        ("- a\n", "expected an object that is a job"),
        (
            "a: 1\n---\nb: 2\n",
            "expected a single document in the stream, but found another document",
        ),
        ("id: \x00\n", "YAML"),
        ("x" * 300_000, "at most"),
    ],
)
def test_yaml_is_plain_data(text: str, told: str) -> None:
    """Aliases, tags, duplicate keys and depth are refused in YAML with one line."""
    (fault,) = load_file(text.encode(), "x.yaml").errors
    assert told in fault.message
    assert "\n" not in fault.message


def test_yaml_words_stay_words() -> None:
    """`yes`, `no`, dates and octals of YAML are what was written; only true and false are bools."""
    text = (
        "id: a\nmeta: {a: yes, b: no, c: 2024-01-01, d: 0o17, e: true}\n"
        "groups: [{name: g, tasks: [{name: t, driver: d}]}]"
    )
    assert job(text, "x.yaml")["Meta"] == {
        "a": "yes",
        "b": "no",
        "c": "2024-01-01",
        "d": "0o17",
        "e": "true",
    }


def test_old_shapes_run_unchanged() -> None:
    """A file as the million-container one was written: disk and network in resources, mbits, restart mode fail."""
    text = """
job "bench-docker" {
  datacenters = ["dc1"]
  type = "batch"
  constraint {
    attribute = "${node.class}"
    value     = "class_1"
  }
  group "classlogger" {
    count = 20
    restart {
      mode     = "fail"
      attempts = 3
      interval = "5m"
      delay    = "2s"
    }
    task "logger" {
      driver = "docker"
      config {
        image        = "hashicorp/nomad-c1m:0.1"
        network_mode = "host"
      }
      resources {
        cpu    = 20
        memory = 15
        disk   = 10
        network {
          mbits = 1
          port "http" {}
        }
      }
    }
  }
}
"""
    found = load_file(text.encode(), "classlogger.nomad")
    assert found.errors == ()
    (warning,) = found.warnings
    assert "Resources.DiskMB" in warning
    command = found.register("s-1")
    assert (command.groups[0].count, command.groups[0].cpu_mhz) == (20, 20)
    assert command.groups[0].constraints[0].left == "${node.class}"
    resources = json.loads(found.body)["Job"]["TaskGroups"][0]["Tasks"][0]["Resources"]
    assert resources["Networks"] == [{"MBits": 1, "DynamicPorts": [{"Label": "http"}]}]


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
  port     = "http"
  provider = "nomad"
  check {
    type     = "http"
    interval = "10s"
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
  options { checksum = "md5:1" }
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
    assert found["Artifacts"][0]["GetterOptions"] == {"checksum": "md5:1"}


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
  task "alone" { driver = "docker" }
  group "g" {
    task "x" { driver = "docker" }
    task "y" {
      driver = "docker"
      vault { role = "own" }
    }
  }
}
""")
    assert [one["Name"] for one in found["TaskGroups"]] == ["alone", "g"]
    vaults = [one["Vault"] for group in found["TaskGroups"] for one in group["Tasks"]]
    assert vaults == [{"Policies": ["outer"]}, {"Policies": ["outer"]}, {"Role": "own"}]


@pytest.mark.parametrize(
    ("inner", "path"),
    [
        ("meta { a = 1 }\nmeta { b = 2 }", "Job.Meta"),
        ('update "x" {}', "Job.Update"),
        ("group {}", "Job.TaskGroups[0].Name"),
        ("update = 3", "Job.Update"),
        ('datacenters = "dc1"', "Job.Datacenters"),
        ("priority = 1.5", "Job.Priority"),
        ("priority = 99999999999999999999999", "Job.Priority"),
        ('all_at_once = "maybe"', "Job.AllAtOnce"),
    ],
)
def test_blocks_of_a_wrong_form_are_told(inner: str, path: str) -> None:
    """A block twice, with a label too many or too few, or a value of a wrong type is a fault with its path."""
    text = f'job "a" {{\n{inner}\n group "g" {{ task "t" {{ driver = "d" }} }}\n}}'
    assert path in {one.path for one in load_file(text.encode(), "x.hcl").errors}


def test_what_nobody_knows_is_named() -> None:
    """An unknown name is kept and named with what it may have been meant to be; so is a strange reference."""
    text = (
        'job "a" {\n meta { x = "${vars.y} ${FOO} ${attr.z}" }\n group "g" {\n'
        ' cuont = 3\n task "t" { driver = "d" } } }'
    )
    found = load_file(text.encode(), "x.hcl")
    warnings = " ".join(found.warnings)
    assert "Job.TaskGroups[0].cuont" in warnings
    assert "${vars.y} on line 2" in warnings
    assert "FOO" not in warnings
    assert "attr.z" not in warnings


def test_parse_gives_the_json_of_a_text() -> None:
    """api.jobs.parse takes HCL as it is or in a JobText with variables, and gives the job unvalidated."""
    assert json.loads(parse_request(HELLO.encode()).job) == HELLO_JSON
    text = 'variable "n" {}\njob "a" { priority = var.n }'
    body = json.dumps({"JobHCL": text, "Variables": "n = 7", "Canonicalize": True}).encode()
    assert json.loads(parse_request(body).job) == {"ID": "a", "Name": "a", "Priority": 7}
    with pytest.raises(JobInvalid) as caught:
        parse_text('job "a" {\n x = file("/etc/passwd")\n y = nope()\n}')
    assert [one.line for one in caught.value.errors] == [2, 3]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b'{"JobHCL": 3}',
        b"{}",
        b"a" * (PARSE_BYTES_MAX + 1),
        b'job "a" {',
        b'job "a" { x = "\\u0000" \n y = [for a in range(1000): range(1000)] }',
    ],
)
def test_parse_refuses_in_words(body: bytes) -> None:
    """A body that is no job file is refused with a reason, never a crash."""
    with pytest.raises(CommandInvalid) as caught:
        parse_request(body)
    assert caught.value.message


def test_reading_json_imports_neither_hcl_nor_yaml() -> None:
    """Roles that read JSON alone start without the parsers of job files."""
    code = (
        "import sys, shared.jobspec.load as l; l.load_file(b'{}', 'x.json');"
        "print([m for m in sys.modules if m in ('yaml', 'shared.jobspec.hcl.parsing')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_update_and_migrate_resolve_field_by_field() -> None:
    """A group's update block goes over the job's, which goes over Nomad's defaults, each field for itself."""
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
    submission = load_file(text.encode(), "x.hcl").submission
    assert submission is not None and submission.job is not None
    of = submission.job
    first, second = (update_of(of, one) for one in of.groups)
    assert (first.max_parallel, first.canary, first.progress_deadline_ns) == (2, 1, 600 * SECOND)
    assert (second.max_parallel, second.health_check) == (3, "checks")
    migrate = migrate_of(of, of.groups[1])
    assert (migrate.health_check, migrate.healthy_deadline_ns) == ("task_states", 300 * SECOND)
