"""The blocks of a job that make others of it: what is refused, with its place, and what the core gets."""

import base64
import json
from typing import Any

import pytest

from schemas.jobs import ParameterizedBlock, PeriodicBlock, RegisterJob
from schemas.launches import DispatchJob
from shared.errors import CommandInvalid
from shared.jobspec.files.load import load_file
from shared.jobspec.submission import JobInvalid, SubmissionCache, read_submission, to_command
from tests.unit.jobspec.test_jobspec import a_job


def body(job: dict[str, Any]) -> bytes:
    """A submission."""
    return json.dumps({"Job": job}).encode()


def read(**job: Any) -> RegisterJob:
    """The command of a batch job."""
    found = to_command(read_submission(body(a_job(**{"Type": "batch"} | job)), "submit"), "s")
    assert isinstance(found, RegisterJob)
    return found


def refused(**job: Any) -> dict[str, str]:
    """The errors of a batch job, by path."""
    with pytest.raises(JobInvalid) as fault:
        read(**job)
    return {one.path: one.message for one in fault.value.errors}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"Specs": ["@daily", "0 3 * * *"]}, {"crons": ("@daily", "0 3 * * *")}),
        (
            {"Spec": "0 3 * * *", "TimeZone": "Europe/Berlin", "ProhibitOverlap": True},
            {"crons": ("0 3 * * *",), "time_zone": "Europe/Berlin", "prohibit_overlap": True},
        ),
        ({"Specs": ["@daily"], "Enabled": False}, {"crons": ("@daily",), "enabled": False}),
        ({"Specs": ["0 0 1 1 * 2020"]}, {"crons": ("0 0 1 1 * 2020",)}),
    ],
)
def test_a_periodic_block_is_compiled(block: dict[str, Any], expected: dict[str, Any]) -> None:
    """The older `cron` is one of `crons`; a spec whose years have passed is no error."""
    command = read(Periodic=block)
    assert command.periodic == PeriodicBlock(**expected)
    assert not command.stopped and not command.warnings


@pytest.mark.parametrize(
    ("block", "path", "word"),
    [
        ({}, "Specs", "at least one"),
        ({"Spec": "@daily", "Specs": ["@daily"]}, "Spec", "exclude each other"),
        ({"Specs": ["@daily", "* * *"]}, "Specs[1]", "5 to 7 fields"),
        ({"Specs": ["61 * * * *"]}, "Specs[0]", "minute"),
        (
            {"Spec": "0 0 30 2 *"},
            "Spec",
            "never matches a date; read as: second 0, minute 0, hour 0",
        ),
        ({"Specs": ["@daily"], "TimeZone": "Moon/Base"}, "TimeZone", "not a time zone"),
        ({"Specs": ["@daily"], "SpecType": "moon"}, "SpecType", "must be cron"),
        ({"Specs": ["@daily"] * 101}, "Specs", "at most 100"),
    ],
)
def test_a_periodic_block_that_cannot_fire_is_refused(
    block: dict[str, Any], path: str, word: str
) -> None:
    """Each error names its spec and says what it reads; a disabled block is not looked at, as in Nomad."""
    assert word in refused(Periodic=block)[f"Job.Periodic.{path}"]
    assert read(Periodic=block | {"Enabled": False}).periodic


def test_only_jobs_that_end_are_periodic_and_their_children_need_room_for_their_ids() -> None:
    """A child's id has 20 characters more than its parent's; the cache of equal jobs does not hide that."""
    daily = {"Specs": ["@daily"]}
    assert "of type 'service'" in refused(Type="service", Periodic=daily)["Job.Periodic"]
    assert "too long" in refused(ID="x" * 120, Periodic=daily)["Job.ID"]
    memo = SubmissionCache()
    short = a_job(ID="x", Name="n", Type="batch", Periodic=daily)
    read_submission(body(short), "submit", memo=memo)
    with pytest.raises(JobInvalid):
        read_submission(body(short | {"ID": "x" * 120}), "submit", memo=memo)


def test_the_line_of_a_bad_spec_is_named() -> None:
    """A job file's error has the line of the spec."""
    source = b"""job "cron" {
  type = "batch"
  periodic {
    crons = [
      "@daily",
      "0 0 30 2 *",
    ]
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config { command = "/bin/true" }
    }
  }
}
"""
    (error,) = load_file(source, "cron.nomad.hcl").errors
    assert (error.path, error.line) == ("Job.Periodic.Specs[1]", 4)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({}, ParameterizedBlock()),
        (
            {"Payload": "required", "MetaRequired": ["b", "a"], "MetaOptional": ["c"]},
            ParameterizedBlock(payload="required", meta_required=("a", "b"), meta_optional=("c",)),
        ),
    ],
)
def test_a_parameterized_block_is_compiled(
    block: dict[str, Any], expected: ParameterizedBlock
) -> None:
    """An empty block is one: any payload, no meta."""
    command = read(ParameterizedJob=block)
    assert command.parameterized == expected and not command.stopped


@pytest.mark.parametrize(
    ("job", "path", "word"),
    [
        ({"ParameterizedJob": {"Payload": "maybe"}}, "Job.ParameterizedJob.Payload", "one of"),
        (
            {"ParameterizedJob": {"MetaRequired": ["a"], "MetaOptional": ["a"]}},
            "Job.ParameterizedJob.MetaOptional",
            "name it once",
        ),
        ({"ParameterizedJob": {}, "Type": "system"}, "Job.ParameterizedJob", "of type 'system'"),
        ({"ParameterizedJob": {}, "ID": "x" * 100}, "Job.ID", "too long"),
        (
            {"ParameterizedJob": {"MetaRequired": [""]}},
            "Job.ParameterizedJob.MetaRequired",
            "1 to 128",
        ),
    ],
)
def test_a_parameterized_block_that_makes_no_sense_is_refused(
    job: dict[str, Any], path: str, word: str
) -> None:
    """Each error has its place."""
    assert word in refused(**job)[path]


@pytest.mark.parametrize(
    ("file", "word"),
    [
        ("", "must name a file"),
        ("/etc/passwd", "relative path"),
        ("../up", "relative path"),
        ("a//b", "relative path"),
        ("a/./b", "relative path"),
        ("x" * 300, "at most 256"),
        ("in/scene.json", ""),
    ],
)
def test_a_payload_file_stays_below_local(file: str, word: str) -> None:
    """A path that leaves the directory is refused at submission; a job that is not dispatched has no payload."""
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/true"},
        "DispatchPayload": {"File": file},
    }
    groups = [{"Name": "web", "Tasks": [task]}]
    path = "Job.TaskGroups[0].Tasks[0].DispatchPayload"
    if word:
        assert word in refused(ParameterizedJob={}, TaskGroups=groups)[f"{path}.File"]
    else:
        assert read(ParameterizedJob={}, TaskGroups=groups).parameterized
        assert "only a parameterized job" in refused(TaskGroups=groups)[path]


def dispatch(**fields: Any) -> DispatchJob:
    """The command of a dispatch."""
    found = read_submission(json.dumps({"JobID": "render"} | fields).encode(), "dispatch")
    command = to_command(found, "d1")
    assert isinstance(command, DispatchJob)
    return command


def test_a_dispatch_is_read() -> None:
    """The payload is decoded, what is absent is empty; its digest tells contents apart, not submission ids."""
    plain = dispatch()
    assert (plain.job_id, plain.payload, plain.meta, plain.token) == ("render", b"", {}, "")
    full = dispatch(Payload="AAE=", Meta={"b": "2", "a": "1"}, IdempotencyToken="t", Priority=7)
    assert (full.payload, full.token, full.priority) == (b"\x00\x01", "t", 7)
    assert list(full.meta) == ["a", "b"]
    assert dispatch(Meta={"a": "5$ {x} ${node.class} my secret.key"}).meta
    assert dispatch(SubmissionID="x").digest == plain.digest != full.digest


@pytest.mark.parametrize(
    ("fields", "path", "code"),
    [
        ({"Payload": "%%"}, "Payload", "invalid"),
        ({"Payload": 7}, "Payload", "invalid"),
        ({"Payload": base64.b64encode(bytes(16_385)).decode()}, "Payload", "too_large"),
        ({"Meta": []}, "Meta", "invalid"),
        ({"Meta": {"a": 1}}, "Meta.a", "invalid"),
        ({"Meta": {"a": "x${ secret.db.password }"}}, "Meta.a", "invalid"),
        ({"Meta": {"a": '${env["secret.db.password"]}'}}, "Meta.a", "invalid"),
        ({"Meta": {"a": "x${sec"}}, "Meta.a", "invalid"),
        ({"Meta": {"a": "secret.db.password}"}}, "Meta.a", "invalid"),
        ({"Meta": {"a": "x" * 40_000}}, "Meta", "too_large"),
        ({"Priority": "high"}, "Priority", "invalid"),
        ({"IdempotencyToken": "a b"}, "IdempotencyToken", "invalid"),
        ({"Payloads": ""}, "Payloads", "invalid"),
        ({"JobID": ""}, "JobID", "invalid"),
    ],
)
def test_a_dispatch_that_cannot_be_read_is_refused(
    fields: dict[str, Any], path: str, code: str
) -> None:
    """One error, with its place."""
    with pytest.raises(CommandInvalid) as fault:
        dispatch(**fields)
    assert (fault.value.path, fault.value.code) == (path, code)
