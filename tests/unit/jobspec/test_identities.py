"""Identity blocks: every rule has an error with its path and line, and what is unsafe is a warning."""

from typing import Any

import pytest

from shared.jobspec.checks.job import job_errors
from shared.jobspec.files.load import load_file
from shared.jobspec.identities import identities_left_out, identity_file, task_identities
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec
from shared.jobspec.nomad.services import WorkloadIdentity
from shared.jobspec.nomad.tasks import TemplateBlock
from shared.jobspec.strict_json import canonical_json
from shared.jobspec.submission import read_submission

SECOND = 1_000_000_000
VAULT: dict[str, Any] = {"name": "vault", "audience": ("vault.io",), "ttl_ns": 3600 * SECOND}


def task(*blocks: dict[str, Any], **more: Any) -> TaskSpec:
    identities = tuple(WorkloadIdentity(**one) for one in blocks)
    return TaskSpec(name="t", driver="raw_exec", identities=identities, **more)


def errors(*blocks: dict[str, Any], **more: Any) -> dict[str, str]:
    """What is wrong with the identities of a job, by path below its task."""
    job = JobSpec(id="j", name="j", groups=(TaskGroup(name="g", tasks=(task(*blocks, **more),)),))
    top = "Job.TaskGroups[0].Tasks[0]."
    found = {one.path.removeprefix(top): one.message for one in job_errors(job)}
    return {path: text for path, text in found.items() if path.startswith("Identit")}


@pytest.mark.parametrize(
    "block",
    [
        {},
        {"name": "default", "env": True, "file": True},
        {"audience": ("ignored",)},
        VAULT,
        {**VAULT, "change_mode": "signal", "change_signal": "SIGHUP"},
        {**VAULT, "change_mode": "restart", "env": True},
        {**VAULT, "change_mode": ""},
        {**VAULT, "file": True, "filepath": "local/token"},
        {**VAULT, "file": True, "filepath": "${NOMAD_ALLOC_DIR}/token"},
        {"name": "a-B_9" * 25, "audience": ("a", "b"), "ttl_ns": SECOND},
        {**VAULT, "audience": ("a" * 1024,) * 32},
    ],
)
def test_what_nomad_takes_is_no_error(block: dict[str, Any]) -> None:
    """The default identity and named ones, all change modes, files in their usual places and in others."""
    assert errors(block) == {}


@pytest.mark.parametrize(
    ("more", "path", "part"),
    [
        ({"name": "a b"}, ".Name", "must be 1 to 128 letters"),
        ({"name": "../x"}, ".Name", "must be 1 to 128 letters"),
        ({"name": "a" * 129}, ".Name", "must be 1 to 128 letters"),
        ({"name": "a\n"}, ".Name", "must be 1 to 128 letters"),
        ({"audience": ("a", "")}, ".Audience", "must not be empty"),
        ({"audience": ("a" * 1025,)}, ".Audience", "at most 32 of 1024"),
        ({"audience": ("a",) * 33}, ".Audience", "at most 32 of 1024"),
        ({"audience": ("\N{SNOWMAN}" * 1024,) * 32}, ".Audience", "at most 40960"),
        ({"change_mode": "reload"}, ".ChangeMode", "must be one of noop, signal, restart"),
        ({"change_mode": "script"}, ".ChangeMode", "must be one of noop, signal, restart"),
        ({"change_mode": "signal"}, ".ChangeSignal", "must be set"),
        ({"change_signal": "SIGHUP"}, ".ChangeSignal", "for change_mode signal alone"),
        ({"change_mode": "signal", "change_signal": "SIGX"}, ".ChangeSignal", "SIGX"),
        ({"ttl_ns": -1}, ".TTL", "must be 1s"),
        ({"ttl_ns": SECOND - 1}, ".TTL", "must be 1s"),
        ({"name": "", "ttl_ns": SECOND}, ".TTL", "the default identity has no ttl"),
        ({"filepath": "local/x"}, ".Filepath", "needs file = true"),
        ({"file": True, "filepath": "../../x"}, ".Filepath", "must not leave"),
        ({"file": True, "filepath": "../other/secrets/x"}, ".Filepath", "must not leave"),
        ({"file": True, "filepath": "local/a\0"}, ".Filepath", "must not leave"),
    ],
)
def test_every_rule_names_its_field(more: dict[str, Any], path: str, part: str) -> None:
    """Nomad's rules, and those of files."""
    found = errors({**VAULT, **more})
    assert list(found) == [f"Identities[0]{path}"]
    assert part in found[f"Identities[0]{path}"]


def test_names_and_files_are_unique() -> None:
    """Also with the block without a name, and with what a template writes."""
    twice = errors(VAULT, VAULT)
    assert twice == {"Identities[1].Name": "another identity of the task is named 'vault'"}
    twice = errors({}, identity=WorkloadIdentity(name="default"))
    assert list(twice) == ["Identities[0].Name"]
    misplaced = errors(identity=WorkloadIdentity(**VAULT))
    assert misplaced == {"Identity.Name": "is the default identity's; others stand in Identities"}
    one, other = {**VAULT, "file": True}, {**VAULT, "name": "b", "file": True}
    assert errors(one, other) == {}
    same = errors(one, {**other, "filepath": "local/../secrets/nomad_vault.jwt"})
    assert list(same) == ["Identities[1].Filepath"]
    template = TemplateBlock(data="x", destination="secrets/nomad_vault.jwt")
    assert list(errors(one, templates=(template,))) == ["Identities[0].Filepath"]


def test_too_many_are_one_error() -> None:
    """The bound is named."""
    many = [{**VAULT, "name": f"n{at}"} for at in range(65)]
    assert errors(*many) == {"Identities": "65 identities, at most 64 are allowed"}


def test_where_tokens_are_written() -> None:
    """Nomad's places; nowhere without `file`."""
    found = [
        identity_file(one.name, one.block)
        for one in task_identities(
            task(
                {**VAULT, "file": True},
                {"file": True},
                {**VAULT, "name": "b", "file": True, "filepath": "local/b"},
                {**VAULT, "name": "c", "env": True},
            )
        )
    ]
    assert found == ["secrets/nomad_token", "secrets/nomad_vault.jwt", "local/b", ""]


HCL = """job "a" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config { command = "/bin/true" }
      identity {
        name = "vault"
        aud  = ["vault.io"]
        ttl  = "1h"
      }
      identity {
        env = true
        ttl = "1h"
      }
      identity {
        name = "aws"
        aud  = ["sts"]
        ttl  = "1ms"
      }
    }
  }
}
"""


def test_a_fault_has_its_line() -> None:
    """Also behind the default identity, which is another field in JSON."""
    found = {
        one.path.rpartition("Tasks[0].")[2]: one.line
        for one in load_file(HCL.encode(), "a.nomad.hcl").errors
    }
    assert found == {"Identity.TTL": 13, "Identities[1].TTL": 18}


def submitted(*blocks: dict[str, Any], accept: bool = False, **more: Any) -> Any:
    one = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "x"},
        "Identities": list(blocks),
        **more,
    }
    job = {"ID": "j", "Name": "j", "TaskGroups": [{"Name": "g", "Tasks": [one]}]}
    return read_submission(canonical_json({"Job": job, "accept_unbuilt": accept}), "submit")


def test_what_is_unsafe_is_a_warning() -> None:
    """Nomad's warnings, but for the default identity, whose audience and life are given."""
    assert submitted({"Env": True, "File": True}).warnings == ()
    safe = {"Name": "v", "Audience": ["v"], "TTL": SECOND}
    assert (
        submitted(safe, {**safe, "Name": "w", "Env": True, "ChangeMode": "restart"}).warnings == ()
    )
    (text,) = submitted(
        {"Name": "a"},
        {**safe, "Audience": ["v", "w"]},
        {**safe, "Name": "e", "Env": True},
    ).warnings
    assert text.split("; ") == [
        "identity 'a' of task 't' has no aud: every service accepts its token",
        "identity 'a' of task 't' has no ttl: its token does not expire",
        "identity 'v' of task 't' has several aud: each of them can use its token at the others",
        "identity 'e' of task 't' has env without change_mode restart: a running task keeps an expired token",
    ]


def test_what_a_job_was_accepted_without_stays_out() -> None:
    """By the paths that an earlier release recorded: the block, all blocks, or a field of one that is made."""
    here = "Job.TaskGroups[0].Tasks[0]"
    one = task(VAULT, {**VAULT, "name": "b"}, identity=WorkloadIdentity())
    assert identities_left_out([f"{here}.Identities"], here, one) == {"vault", "b"}
    assert identities_left_out([f"{here}.Identity"], here, one) == {"default"}
    assert identities_left_out([f"{here}.Identities[1]"], here, one) == {"b"}
    assert identities_left_out([f"{here}.Identities[1].ExtraClaims"], here, one) == frozenset()
