"""What a job asks for and does not get: refused with place, unless accepted, and then said for as long as it runs."""

import json
from typing import Any

import pytest

from schemas.jobs import RegisterJob
from shared.errors import CommandInvalid
from shared.jobspec.checks.unsupported_fields import SUGGESTIONS_MAX
from shared.jobspec.files.load import load_file
from shared.jobspec.submission import (
    JobInvalid,
    ParsedSubmission,
    SubmissionCache,
    accepted_unbuilt,
    read_submission,
    to_command,
)
from tests.unit.jobspec.test_jobspec import a_group, a_job, a_task

BOTH = ("accept_unbuilt", "accept_unknown")


def read(job: dict[str, Any], **around: Any) -> ParsedSubmission:
    return read_submission(json.dumps({"Job": job, **around}).encode(), "submit")


def refused(job: dict[str, Any], **around: Any) -> dict[str, str]:
    """Submit what must be refused; return path -> message."""
    with pytest.raises(JobInvalid) as fault:
        read(job, **around)
    return {one.path: one.message for one in fault.value.errors}


def command(submission: ParsedSubmission) -> RegisterJob:
    found = to_command(submission, "s")
    assert isinstance(found, RegisterJob)
    return found


UNBUILT: dict[str, dict[str, Any]] = {
    "Job.Multiregion": {"Multiregion": {"Regions": [{"Name": "eu"}]}},
    "Job.Region": {"Region": "eu"},
    "Job.Namespace": {"Namespace": "prod"},
    "Job.TaskGroups[0].Services[0].Connect": {
        "TaskGroups": [a_group(Services=[{"Name": "x", "Connect": {"Native": True}}])]
    },
    "Job.TaskGroups[0].Consul": {"TaskGroups": [a_group(Consul={"Namespace": "x"})]},
    "Job.TaskGroups[0].Tasks[0].Templates[1]": {
        "TaskGroups": [
            a_group(
                Tasks=[
                    a_task(
                        Templates=[
                            {"EmbeddedTmpl": "x", "DestPath": "a"},
                            {"EmbeddedTmpl": "{{ pkiCert `x` }}", "DestPath": "b"},
                        ]
                    )
                ]
            )
        ]
    },
}


@pytest.mark.parametrize("path", UNBUILT)
def test_what_is_not_built_is_refused_unless_accepted(path: str) -> None:
    """A block that nothing acts on is refused at its path; accepted, the job is registered and names it."""
    job = a_job(**UNBUILT[path])
    assert "not built yet" in refused(job)[path]
    got = read(job, accept_unbuilt=True)
    assert got.unbuilt == accepted_unbuilt(got.spec) == (path,)
    assert path in got.warnings[0]


#: What `nomad job run -output` prints of the keys that only a server writes.
SERVER_KEYS: dict[str, Any] = {
    **dict.fromkeys(("ParentID", "Status", "StatusDescription", "NomadTokenID", "Payload"), ""),
    **dict.fromkeys(("ConsulNamespace", "VaultNamespace", "DispatchIdempotencyToken"), ""),
    **dict.fromkeys(("ConsulToken", "VaultToken"), ""),
    **dict.fromkeys(("Version", "CreateIndex", "ModifyIndex", "JobModifyIndex", "SubmitTime"), 0),
    **dict.fromkeys(("Stop", "Dispatched", "Stable"), False),
    "VersionTag": None,
}
SCALING_KEYS = {"ID": "", "Namespace": "", "Target": None, "CreateIndex": 0, "ModifyIndex": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"Update": None, "Periodic": None, "ParameterizedJob": None, "UI": None},
        {"Region": "global", "Namespace": "default", "Affinities": None, "Status": ""},
        {"Update": {"MaxParallel": 0, "HealthCheck": "", "Canary": 0, "AutoRevert": False}},
        {"Update": {"Stagger": 30 * 10**9, "MaxParallel": 4, "HealthCheck": "checks"}},
        {"TaskGroups": [a_group(Services=[], Volumes=None, Scaling=None, Update={})]},
        {"TaskGroups": [a_group(Consul={"Namespace": "", "Cluster": "default", "Partition": ""})]},
        {"TaskGroups": [a_group(Migrate={"MaxParallel": 1, "MinHealthyTime": 10 * 10**9})]},
        {"TaskGroups": [a_group(Tasks=[a_task(Vault=None, Templates=[], Kind="")])]},
        {
            "TaskGroups": [
                a_group(
                    Tasks=[a_task(Identity={"Name": "default", "Audience": ["nomadproject.io"]})]
                )
            ]
        },
        {"FutureField": None},
        dict.fromkeys(SERVER_KEYS),
        SERVER_KEYS,
    ],
)
def test_empty_and_default_blocks_count_as_absent(change: dict[str, Any]) -> None:
    """What Nomad prints for an absent block is no request."""
    got = read(a_job(**change))
    assert (got.unbuilt, got.warnings) == ((), ())


def test_keys_of_a_server_inside_a_block_are_known() -> None:
    """A printed scaling block holds no unknown key."""
    job = a_job(TaskGroups=[a_group(Scaling={"Min": 1, "Max": 1, **SCALING_KEYS})])
    assert (read(job).unbuilt, read(job).warnings) == ((), ())


@pytest.mark.parametrize("value", ["", 0, False, [], {}, 0.0])
def test_an_unknown_key_is_refused_whatever_its_value(value: object) -> None:
    """Nomad prints no key that is no field: an empty one is a slip, at every depth."""
    assert "Job.Prioritty" in refused(a_job(Prioritty=value))
    group = a_group(Tasks=[a_task(Resources={"MemoryMb": value})])
    assert "Job.TaskGroups[0].Tasks[0].Resources.MemoryMb" in refused(a_job(TaskGroups=[group]))
    assert "Prioritty" in read(a_job(Prioritty=value), accept_unknown=True).warnings[0]


def test_suggestions_are_bounded() -> None:
    """Of very many unknown keys few get a suggestion, since the search takes long."""
    told = refused(a_job(**{f"Prioritty{number:02}": 1 for number in range(2 * SUGGESTIONS_MAX)}))
    assert len(told) == 2 * SUGGESTIONS_MAX
    suggested = [one for one in told.values() if "did you mean Priority?" in one]
    assert len(suggested) == SUGGESTIONS_MAX


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Status", "running"),
        ("Stable", True),
        ("Version", 3),
        ("SubmitTime", 17),
        ("JobModifyIndex", 9),
        ("VersionTag", {"Name": "x"}),
        ("NomadTokenID", "t"),
    ],
)
def test_what_a_server_noted_is_named(key: str, value: object) -> None:
    """`nomad job inspect` prints what the server noted of a job: it asks for nothing, and a warning says so."""
    got = read(a_job(**{key: value}))
    assert got.unbuilt == ()
    assert got.warnings == (f"without effect, as in Nomad: Job.{key}",)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ParentID", "p"),
        ("Dispatched", True),
        ("Payload", "eA=="),
        ("DispatchIdempotencyToken", "t"),
        ("ConsulNamespace", "n"),
        ("VaultNamespace", "n"),
    ],
)
def test_what_a_server_would_act_on_is_refused(key: str, value: object) -> None:
    """A child's parent and payload, and namespaces of other systems, are not dropped in silence."""
    assert "not built yet" in refused(a_job(**{key: value}))[f"Job.{key}"]
    assert read(a_job(**{key: value}), accept_unbuilt=True).unbuilt == (f"Job.{key}",)


@pytest.mark.parametrize(("count", "placed"), [({}, 3), ({"Count": None}, 3), ({"Count": 5}, 5)])
def test_a_count_defaults_to_the_least_of_scaling(count: dict[str, Any], placed: int) -> None:
    """In Nomad's JSON as in HCL, with null for an absent count."""
    group = a_group(Scaling={"Min": 3, "Max": 9})
    group.pop("Count", None)
    job = a_job(TaskGroups=[group | count])
    assert [one.count for one in read(job, accept_unbuilt=True).groups] == [placed]
    for text in (job, {"Job": job}):
        found = load_file(json.dumps(text).encode(), "x.json", accept=BOTH).submission
        assert found is not None and [one.count for one in found.groups] == [placed]


def test_a_field_without_effect_in_nomad_is_only_named() -> None:
    """Fields that Nomad reads and ignores are accepted with a warning."""
    group = a_group(Networks=[{"MBits": 10}], Tasks=[a_task(Resources={"IOPS": 2, "MemoryMB": 32})])
    (warning,) = read(a_job(TaskGroups=[group])).warnings
    assert "Networks[0].MBits" in warning
    assert "Resources.IOPS" in warning
    # The default of Nomad's server is no request.
    (warning,) = read(a_job(Update={"Stagger": 10**9, "MaxParallel": 2})).warnings
    assert "Job.Update.Stagger" in warning


def test_a_slip_is_refused_in_the_files_own_spelling() -> None:
    """Unknown names are faults with line and suggestion, empty ones too, also inside blocks that are not built."""
    text = (
        'job "a" {\n  typ = "batch"\n  update {\n    max_paralel = 1\n  }\n  group "g" {\n    cuont = 0\n'
        '    contraint { attribute = "x" }\n    task "t" {\n      driver = "any"\n    }\n  }\n}\n'
    )
    found = load_file(text.encode(), "x.nomad.hcl")
    told = {one.path: (one.line, one.message.rpartition("mean ")[2]) for one in found.errors}
    assert told["Job.typ"] == (2, "type?")
    assert told["Job.Update.max_paralel"] == (4, "max_parallel?")
    assert told["Job.TaskGroups[0].cuont"] == (7, "count?")
    assert told["Job.TaskGroups[0].contraint"] == (8, "constraint?")
    accepted = load_file(text.encode(), "x.nomad.hcl", accept=BOTH)
    assert accepted.errors == ()
    json_file = b'{"ID": "a",\n "Prioritty": 3, "TaskGroups": []}'
    errors = {one.path: one for one in load_file(json_file, "x.json").errors}
    assert errors["Job.Prioritty"].line == 2
    assert "did you mean Priority?" in errors["Job.Prioritty"].message
    # Beside other faults, all at once.
    assert "Job.TaskGroups" in errors


def test_text_accepted_unbuilt_is_another_text_once_it_is_built() -> None:
    """The text says what is missing, so that a release that builds it registers a new version; the digest does not."""
    plain = a_job(Multiregion={"Regions": [{"Name": "eu"}]})
    got = read(plain, accept_unbuilt=True)
    assert json.loads(got.spec)["AcceptedUnbuilt"] == ["Job.Multiregion"]
    # As `job inspect` prints it, it is the same job, and refused as before.
    printed = json.loads(got.spec)
    assert "Job.Multiregion" in refused(printed)
    again = read(printed, accept_unbuilt=True)
    assert (again.spec, again.digest) == (got.spec, got.digest)
    memo = SubmissionCache()
    body = json.dumps({"Job": plain, "accept_unbuilt": True}).encode()
    assert read_submission(body, "submit", memo=memo) == read_submission(body, "submit", memo=memo)
    assert len(memo) == 0


def test_jobs_registered_before_the_refusal_are_named_by_the_table() -> None:
    """A text of the log without the mark is looked through as it is."""
    assert accepted_unbuilt(
        json.dumps(a_job(Multiregion={"Regions": [{"Name": "eu"}]})).encode()
    ) == ("Job.Multiregion",)
    assert accepted_unbuilt(json.dumps(a_job()).encode()) == ()


@pytest.mark.parametrize(
    ("change", "stopped"),
    [
        ({}, False),
        ({"Stop": True}, True),
        ({"Stop": False}, False),
        ({"Type": "batch", "Periodic": {"Specs": ["@daily"]}}, False),
        ({"Type": "batch", "ParameterizedJob": {}}, False),
    ],
)
def test_a_job_that_says_so_is_stopped(change: dict[str, Any], *, stopped: bool) -> None:
    """It is registered without running anything; patterns for other jobs are not stopped."""
    assert command(read(a_job(**change), accept_unbuilt=True)).stopped is stopped


def test_the_envelope_is_not_dropped() -> None:
    """Region, namespace and tokens beside the job are refused like fields of it; defaults are nothing."""
    assert read(a_job(), Region="global", Namespace="default", SecretID="").warnings == ()
    for key in ("Region", "Namespace", "AuthToken", "SecretID"):
        found = refused(a_job(), **{key: "something"})
        assert "not built yet" in found[key]
        assert "something" not in found[key]
    assert read(a_job(), Namespace="prod", accept_unbuilt=True).unbuilt == ("Namespace",)


def test_a_slip_beside_the_job_is_refused() -> None:
    """A misspelt check-and-set would register unconditionally: it is a fault with a suggestion, unless accepted."""
    for value in (True, False):
        told = refused(a_job(), EnforceIndx=value, JobModifyIndex=7)
        assert told == {
            "EnforceIndx": "unknown parameter or block 'EnforceIndx'; did you mean EnforceIndex?"
        }
    got = read(a_job(), EnforceIndx=True, accept_unknown=True)
    assert got.warnings == ("unknown, accepted without effect: EnforceIndx",)
    text = json.dumps({"Job": a_job(), "EnforceIndx": True}).encode()
    assert [one.path for one in load_file(text, "x.json").errors] == ["EnforceIndx"]
    # What a client of Nomad writes around a job.
    assert read(a_job(), PolicyOverride=False, PreserveCounts=False, EvalPriority=0).warnings == ()
    assert "not built yet" in refused(a_job(), PreserveCounts=True)["PreserveCounts"]


@pytest.mark.parametrize("key", ["accept_unbuilt", "accept_unknown"])
def test_acceptance_is_a_flag(key: str) -> None:
    """Another type is refused."""
    with pytest.raises(CommandInvalid, match="must be true or false"):
        read(a_job(), **{key: "yes"})
    with pytest.raises(CommandInvalid, match="must be true or false"):
        read(a_job(Stop="yes"))


@pytest.mark.parametrize("name", ["x.json", "x.yaml", "x.toml"])
def test_variables_are_for_hcl(name: str) -> None:
    """A value for a variable of a file that has none is a fault, not ignored."""
    found = load_file(b'{"ID": "a"}', name, variables={"a": "b"})
    assert ["variables are for HCL" in one.message for one in found.errors] == [True]
