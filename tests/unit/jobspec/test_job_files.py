"""Job files in every format: the JSON they become, and faults with file, line and path."""

import json
import subprocess
import sys
from typing import Any

import pytest

from shared.errors import CommandInvalid
from shared.jobspec.files.load import (
    PARSE_BYTES_MAX,
    LoadedJobFile,
    load_file,
    parse_request,
    parse_text,
)
from shared.jobspec.submission import JobInvalid, read_submission

SECOND = 1_000_000_000


def job(text: str, name: str = "x.nomad.hcl", **given: Any) -> dict[str, Any]:
    """Read a file without faults; return its job."""
    found = load_file(text.encode(), name, accept=["accept_unbuilt"], **given)
    assert found.errors == ()
    value: dict[str, Any] = json.loads(found.body)["Job"]
    return value


def errors(found: LoadedJobFile) -> list[tuple[int, str]]:
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
    """Errors of evaluation, of types and of the job are reported together, each once, with file, line and path."""
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
    assert told[14] == "'soon' is not a duration; expected for example 30s, 5m or 1h30m"
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
        (BOMB, "anchors and aliases are not supported"),
        ("a: !!python/object/apply:os.system [ls]\n", "tags are not supported"),
        ("a: 1\na: 2\n", "'a' is a duplicate key"),
        ("[" * 200 + "]" * 200, "nested deeper"),
        ("- a\n", "expected a job object"),
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
    """An unknown name that was accepted is kept and named; so is a strange reference."""
    text = (
        'job "a" {\n meta { x = "${vars.y} ${FOO} ${attr.z} ${node.unique.nmae} ${env.HOME}"\n'
        ' y = "${node.unique.name} ${node.class} ${env["HOME"]} ${PATH}" }\n group "g" {\n'
        ' cuont = 3\n task "t" { driver = "d" } } }'
    )
    found = load_file(text.encode(), "x.hcl", accept=["accept_unknown"])
    warnings = " ".join(found.warnings)
    assert "Job.TaskGroups[0].cuont" in warnings
    assert "${vars.y} on line 2, ${node.unique.nmae} on line 2, ${env.HOME} on line 2" in warnings
    assert "node.unique.name" not in warnings and "node.class" not in warnings
    assert "[" not in warnings.partition("unknown references")[2] and "PATH" not in warnings
    assert "FOO" not in warnings
    assert "attr.z" not in warnings


def test_parse_gives_the_json_of_a_text() -> None:
    """api.jobs.parse takes HCL as it is or in a JobText with variables, and gives the job unvalidated."""
    assert json.loads(parse_request(HELLO.encode()).job) == HELLO_JSON
    text = 'variable "n" {}\njob "a" { priority = var.n }'
    body = json.dumps({"JobHCL": text, "Variables": "n = 7", "Canonicalize": False}).encode()
    assert json.loads(parse_request(body).job) == {"ID": "a", "Name": "a", "Priority": 7}
    with pytest.raises(JobInvalid) as caught:
        parse_text('job "a" {\n x = file("/etc/passwd")\n y = nope()\n}')
    assert [one.line for one in caught.value.errors] == [2, 3]


def test_parse_fills_in_defaults_on_request() -> None:
    """With Canonicalize every field of Nomad's job is there; the result can be submitted."""
    text = 'job "hello" { group "g" { task "t" { driver = "any" } } }'
    body = json.dumps({"JobHCL": text, "Canonicalize": True}).encode()
    filled = json.loads(parse_request(body).job)
    assert (filled["Type"], filled["Priority"], filled["Datacenters"]) == ("service", 50, ["*"])
    (group,) = filled["TaskGroups"]
    assert group["RestartPolicy"]["Attempts"] == 2 and group["Update"]["MaxParallel"] == 1
    assert (filled["ID"], filled["Name"], filled["Region"]) == ("hello", "hello", "global")
    assert read_submission(json.dumps({"Job": filled}).encode(), "submit").groups
    with pytest.raises(JobInvalid) as caught:
        parse_text('job "a" { group "g" { count = -9999999999999999999 } }', is_filled=True)
    assert caught.value.errors


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"Variable": "n = 1"}, "Variable"),
        ({"canonicalize": True}, "canonicalize"),
        ({"Region": "global"}, "Region"),
        ({"HCLv1": True}, "HCLv1"),
    ],
)
def test_parse_refuses_what_it_does_not_know(more: dict[str, object], path: str) -> None:
    """A key that no client of Nomad sends would be dropped without a word: it is refused by name."""
    body = json.dumps({"JobHCL": HELLO, "HCLv1": False, "Canonicalize": False}).encode()
    assert parse_request(body).job
    with pytest.raises(CommandInvalid) as caught:
        parse_request(json.dumps({"JobHCL": HELLO} | more).encode())
    assert caught.value.path == path


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b'{"JobHCL": 3}',
        b'{"JobHCL": "job \\"a\\" {}", "JobHCL": "job \\"b\\" {}"}',
        b"{}",
        b"a" * (PARSE_BYTES_MAX + 1),
        b'job "a" {',
        b'job "a" { x = [for i in range(1000) : format("%999d", i)] }',
        (
            b'locals { y = join("", [for i in range(1000) : "- a"]) }\njob "a" { x = [yamldecode(local.y), '
            b"[for i in range(99) : yamldecode(local.y)]] }"
        ),
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
        "import sys, shared.jobspec.files.load as l; l.load_file(b'{}', 'x.json');"
        "print([m for m in sys.modules if m in ('yaml', 'shared.jobspec.hcl.syntax.parser')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
