"""Job specifications: defaults, faults, warnings, and what scheduling gets of them."""

import json
from typing import Any

import pytest

from schemas.jobs import EvaluateJob, GroupSpec, RegisterJob, StopJob
from shared.core.constraints.operators import DISTINCT, OPERATORS
from shared.errors import CommandInvalid
from shared.jobspec.checks.error_list import JOB_COUNT_MAX
from shared.jobspec.checks.job import GROUPS_MAX
from shared.jobspec.checks.placement import CONSTRAINT_OPERATORS
from shared.jobspec.files.load import load_file
from shared.jobspec.nomad.defaults import resolve_restart
from shared.jobspec.nomad.job import JOB_DECODER
from shared.jobspec.submission import JobInvalid, ParsedSubmission, read_submission, to_command

SECOND = 1_000_000_000


def a_task(**fields: Any) -> dict[str, Any]:
    return {"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/true"}, **fields}


def a_group(**fields: Any) -> dict[str, Any]:
    return {"Name": "web", "Tasks": [a_task()], **fields}


def a_job(**fields: Any) -> dict[str, Any]:
    return {"ID": "hello", "TaskGroups": [a_group()], **fields}


def read(job: dict[str, Any], **around: Any) -> ParsedSubmission:
    return read_submission(json.dumps({"Job": job, **around}).encode(), "submit")


def faults(job: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(JobInvalid) as caught:
        read(job)
    found = {one.path: one.message for one in caught.value.errors}
    assert len(found) == len(caught.value.errors), "a path is named twice"
    return found


def groups(job: dict[str, Any]) -> tuple[GroupSpec, ...]:
    return read(job).groups


def test_the_smallest_job_gets_nomads_defaults() -> None:
    """A job of an id and one task asks for what Nomad's defaults say."""
    command = to_command(read(a_job()), "s-1")
    assert isinstance(command, RegisterJob)
    assert (command.job_type, command.priority, command.datacenters) == ("service", 50, ("*",))
    (group,) = command.groups
    assert (group.count, group.cpu_mhz, group.memory_mib, group.disk_mib) == (1, 100, 300, 300)
    assert group.drivers == ("raw_exec",)
    assert group.reschedule.unlimited
    assert (group.reschedule.delay_ns, group.reschedule.max_delay_ns) == (
        30 * SECOND,
        3600 * SECOND,
    )
    assert command.check_index == -1
    assert command.warnings == ()


def test_defaults_depend_on_the_type() -> None:
    """Restart and reschedule of a batch job are Nomad's batch defaults; system jobs are not rescheduled."""
    (batch,) = groups(a_job(Type="batch"))
    assert (batch.reschedule.attempts, batch.reschedule.unlimited) == (1, False)
    assert (batch.reschedule.delay_ns, batch.reschedule.delay_function) == (5 * SECOND, "constant")
    (system,) = groups(a_job(Type="system"))
    assert (system.reschedule.attempts, system.reschedule.unlimited) == (0, False)
    job = JOB_DECODER.decode(json.dumps(a_job()))
    service = resolve_restart("service", job.groups[0])
    assert (service.attempts, service.interval_ns, service.delay_ns, service.mode) == (
        *(2, 1800 * SECOND, 15 * SECOND),
        "fail",
    )
    assert resolve_restart("batch", job.groups[0]).interval_ns == 86_400 * SECOND


def test_inner_policies_win_field_by_field() -> None:
    """A task's restart block overrides its group's, which overrides the default, each field for itself."""
    text = a_job(
        TaskGroups=[
            a_group(
                RestartPolicy={"Attempts": 5, "Delay": SECOND},
                Tasks=[a_task(RestartPolicy={"Delay": 2 * SECOND})],
            )
        ]
    )
    group = JOB_DECODER.decode(json.dumps(text)).groups[0]
    found = resolve_restart("service", group, group.tasks[0])
    assert (found.attempts, found.delay_ns, found.interval_ns) == (
        *(5, 2 * SECOND),
        1800 * SECOND,
    )


def test_reschedule_attempts_mean_a_limit() -> None:
    """A reschedule block with attempts limits a service that would be rescheduled forever."""
    block = {"Attempts": 3, "Interval": 600 * SECOND}
    (group,) = groups(a_job(TaskGroups=[a_group(ReschedulePolicy=block)]))
    assert (group.reschedule.attempts, group.reschedule.unlimited) == (3, False)
    assert "Job.TaskGroups[0].ReschedulePolicy.Interval" in faults(
        a_job(TaskGroups=[a_group(ReschedulePolicy={"Attempts": 3})])
    )


def test_a_group_asks_for_the_sum_of_its_tasks() -> None:
    """CPU and memory add up over tasks, constraints come from all three levels, drivers are sorted."""
    tasks = [
        a_task(
            Resources={"CPU": 500, "MemoryMB": 256},
            Constraints=[{"LTarget": "c", "RTarget": "3", "Operand": "!="}],
        ),
        a_task(Name="side", Driver="other", Resources={"CPU": 20}),
    ]
    where = [{"LTarget": "b", "RTarget": "2", "Operand": "="}]
    (group,) = groups(
        a_job(
            Constraints=[{"LTarget": "a", "RTarget": "1"}],
            TaskGroups=[
                a_group(Count=7, Tasks=tasks, Constraints=where * 2, EphemeralDisk={"SizeMB": 1000})
            ],
        )
    )
    assert (group.count, group.cpu_mhz, group.memory_mib, group.disk_mib) == (7, 520, 556, 1000)
    assert [(one.left, one.operator, one.right) for one in group.constraints] == [
        *[("a", "=", "1"), ("b", "=", "2")],
        ("c", "!=", "3"),
    ]
    assert group.drivers == ("other", "raw_exec")


def test_every_fault_is_told_at_once() -> None:
    """All faults of a job come together, each with its path."""
    found = faults(
        {
            "ID": "a b",
            "Type": "cron",
            "Priority": 101,
            "TaskGroups": [
                a_group(Count=-1, Tasks=[]),
                a_group(Tasks=[a_task(Driver=""), a_task(Resources={"CPU": 0, "MemoryMB": 9})]),
            ],
        }
    )
    assert set(found) == {
        "Job.ID",
        "Job.Type",
        "Job.Priority",
        "Job.TaskGroups[0].Count",
        "Job.TaskGroups[0].Tasks",
        "Job.TaskGroups[1].Name",
        "Job.TaskGroups[1].Tasks[0].Driver",
        "Job.TaskGroups[1].Tasks[1].Name",
        "Job.TaskGroups[1].Tasks[1].Resources.CPU",
        "Job.TaskGroups[1].Tasks[1].Resources.MemoryMB",
    }


def test_wrong_types_are_told_with_the_other_faults() -> None:
    """Values of a wrong type are all named, and what else is wrong beside them."""
    found = faults(
        {
            "ID": 7,
            "Priority": 200,
            "Datacenters": ["dc1", 2],
            "TaskGroups": [a_group(Count="three"), a_group(Tasks=[a_task(Env={"A": 1})])],
        }
    )
    assert set(found) == {
        "Job.ID",
        "Job.Priority",
        "Job.Datacenters[1]",
        "Job.TaskGroups[0].Count",
        "Job.TaskGroups[1].Tasks[0].Env[...]",
        "Job.TaskGroups[1].Name",
    }
    assert "int" in found["Job.TaskGroups[0].Count"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"TaskGroups": []}, "Job.TaskGroups"),
        (
            {"TaskGroups": [a_group(Count=10**9), a_group(Name="b", Count=0)]},
            "Job.TaskGroups[0].Count",
        ),
        (
            {"TaskGroups": [a_group(Count=JOB_COUNT_MAX), a_group(Name="b", Count=1)]},
            "Job.TaskGroups",
        ),
        (
            {"TaskGroups": [a_group(Name=f"g{n}") for n in range(GROUPS_MAX + 1)]},
            "Job.TaskGroups",
        ),
        ({"TaskGroups": [a_group(Tasks=[a_task(KillTimeout=-1)])]}, ".KillTimeout"),
        ({"TaskGroups": [a_group(Tasks=[a_task(Name="../x")])]}, "Tasks[0].Name"),
        ({"TaskGroups": [a_group(Tasks=[a_task(Env={"A=B": "1"})])]}, "Tasks[0].Env"),
        ({"TaskGroups": [a_group(Tasks=[a_task(Config=[1])])]}, "Tasks[0].Config"),
        ({"TaskGroups": [a_group(Name="..")]}, "TaskGroups[0].Name"),
        ({"TaskGroups": [a_group(EphemeralDisk={"SizeMB": -5})]}, "EphemeralDisk.SizeMB"),
        ({"TaskGroups": [a_group(RestartPolicy={"Mode": "never"})]}, "RestartPolicy.Mode"),
        ({"TaskGroups": [a_group(RestartPolicy={"Interval": 1})]}, "RestartPolicy.Interval"),
        ({"TaskGroups": [a_group(RestartPolicy={"Attempts": 1000})]}, "RestartPolicy"),
        ({"TaskGroups": [a_group(ReschedulePolicy={"Delay": 1})]}, "ReschedulePolicy.Delay"),
        ({"Constraints": [{"LTarget": "a", "Operand": "~"}]}, "Constraints[0].Operand"),
        ({"Constraints": [{"RTarget": "a"}]}, "Constraints[0].LTarget"),
        ({"Datacenters": [""]}, "Job.Datacenters[0]"),
        ({"NodePool": ""}, "Job.NodePool"),
    ],
)
def test_what_cannot_be_a_job_is_refused(fields: dict[str, Any], path: str) -> None:
    """Each impossible value is refused under its own path."""
    (found,) = faults(a_job(**fields))
    assert found.endswith(path)


@pytest.mark.parametrize(
    "job_id", ["a", "a.b/c-d_e", "batch/periodic-1700000000", "日本", "x" * 128, "a..b", "~A~"]
)
def test_nomads_ids_are_legal(job_id: str) -> None:
    """Dots, slashes and other languages are legal in ids."""
    assert read(a_job(ID=job_id)).job_id == job_id


@pytest.mark.parametrize(
    "job_id",
    [
        *["", "a b", "a\tb", "a\u00a0b", "a\x7f", "a\u200b", "x" * 129, "é" * 64, "." * 100],
        *["*", "a.>", "..", "../a", "a/../b", "a/..", "/a", "a/", "a//b", "a/./b"],
    ],
)
def test_ids_that_could_be_mistaken_are_refused(job_id: str) -> None:
    """Whitespace, control characters, wildcards, empty and climbing segments are refused in every kind of id."""
    assert "Job.ID" in faults(a_job(ID=job_id))
    for body in ({"JobID": job_id}, {"JobID": "a", "SubmissionID": job_id or 0}):
        with pytest.raises(CommandInvalid):
            read_submission(json.dumps(body).encode(), "stop")


def test_validation_knows_the_operators_that_feasibility_answers() -> None:
    """What is compiled is exactly what feasibility can answer: any other operator would stop a scheduler."""
    assert OPERATORS.keys() | DISTINCT == CONSTRAINT_OPERATORS
    assert DISTINCT.isdisjoint(OPERATORS)


@pytest.mark.parametrize(
    ("change", "replaces"),
    [
        ({"Count": 9}, False),
        ({"Constraints": [{"LTarget": "a", "RTarget": "1"}]}, False),
        ({"Affinities": [{"LTarget": "a", "RTarget": "1"}]}, False),
        ({"Services": [{"Name": "web"}]}, False),
        ({"Tasks": [a_task(Services=[{"Name": "web"}])]}, False),
        ({"Update": {"MaxParallel": 2}}, False),
        ({"ReschedulePolicy": {"Attempts": 0, "Unlimited": False}}, False),
        ({"Tasks": [a_task(Constraints=[{"LTarget": "a", "RTarget": "1"}])]}, False),
        ({"Tasks": [a_task(Env={"A": "1"})]}, True),
        ({"Tasks": [a_task(Config={"command": "/bin/false"})]}, True),
        ({"Tasks": [a_task(Resources={"CPU": 101})]}, True),
        ({"Tasks": [a_task(Artifacts=[{"GetterSource": "https://x/y"}])]}, True),
        ({"Tasks": [a_task(Templates=[{"EmbeddedTmpl": "x", "DestPath": "x"}])]}, True),
        ({"Meta": {"a": "b"}}, True),
        ({"EphemeralDisk": {"SizeMB": 301}}, True),
    ],
)
def test_the_digest_tells_what_replaces(change: dict[str, Any], *, replaces: bool) -> None:
    """A group's digest changes exactly with what forces its allocations to be replaced."""
    before = groups(a_job())[0].digest
    changed = a_job(TaskGroups=[a_group(**change)])
    after = read(changed, accept_unbuilt=True).groups[0].digest
    assert (before != after) is replaces


def test_job_meta_replaces_and_priority_does_not() -> None:
    """Meta of the job reaches its tasks, so it replaces them; priority does not."""
    before = groups(a_job())[0].digest
    assert groups(a_job(Meta={"a": "b"}))[0].digest != before
    assert groups(a_job(Priority=60))[0].digest == before


def test_equal_jobs_have_equal_specs_and_digests() -> None:
    """Key order, spaces and nulls change neither spec nor digest; content and check index do."""
    first = read(a_job())
    job = a_job(Meta=None)
    shuffled = {"Job": dict(reversed(job.items())), "SubmissionID": "other"}
    second = read_submission(json.dumps(shuffled, indent=2).encode(), "submit")
    assert (first.spec, first.digest) == (second.spec, second.digest)
    assert read(a_job(Priority=51)).digest != first.digest
    assert read(a_job(), EnforceIndex=True).digest != first.digest


def test_the_check_index_travels_only_when_enforced() -> None:
    """JobModifyIndex is compared only with EnforceIndex; 0 then means that the job must not exist."""
    assert read(a_job(), JobModifyIndex=7).check_index == -1
    assert read(a_job(), JobModifyIndex=7, EnforceIndex=True).check_index == 7
    assert read(a_job(), EnforceIndex=True).check_index == 0
    for bad in ({"EnforceIndex": 1}, {"JobModifyIndex": -1}, {"JobModifyIndex": "7"}):
        with pytest.raises(CommandInvalid):
            read(a_job(), **bad)


def test_a_job_beyond_its_size_is_refused() -> None:
    """A job of more than 256 KiB of canonical JSON is too large; just below it is read."""
    read(a_job(Meta={"a": "x" * 260_000}))
    with pytest.raises(CommandInvalid) as caught:
        read(a_job(Meta={"a": "x" * 262_144}))
    assert caught.value.code == "too_large"


@pytest.mark.parametrize(
    ("verb", "key"), [("stop", "purge"), ("stop", "Job"), ("evaluate", "ForceResched")]
)
def test_a_slip_in_a_stop_is_refused(verb: str, key: str) -> None:
    """A purge in the wrong spelling is a fault, not a stop without one."""
    with pytest.raises(CommandInvalid, match="unknown parameter") as caught:
        read_submission(json.dumps({"JobID": "a", key: True}).encode(), verb)
    assert caught.value.path == key


def test_stop_and_evaluate_name_a_job() -> None:
    """Stop and evaluate bodies become their commands, positions included."""
    stop = read_submission(b'{"JobID":"a.b/c","Purge":true,"SubmissionID":"s"}', "stop")
    command = to_command(stop, "s", jobs_seq=4, jobs_prev=3)
    assert isinstance(command, StopJob)
    assert (command.job_id, command.purge, command.jobs_seq, command.jobs_prev) == (
        *("a.b/c", True),
        *(4, 3),
    )
    again = read_submission(b'{"Purge":true,"JobID":"a.b/c"}', "stop")
    assert again.digest == stop.digest
    evaluate = read_submission(b'{"JobID":"a"}', "evaluate")
    assert isinstance(to_command(evaluate, "s"), EvaluateJob)
    with pytest.raises(CommandInvalid):
        read_submission(b'{"JobID":"a","Purge":"yes"}', "stop")
    with pytest.raises(CommandInvalid):
        read_submission(b"{}", "evaluate")
    with pytest.raises(CommandInvalid):
        read_submission(b'{"Job":[]}', "submit")
    with pytest.raises(CommandInvalid):
        read_submission(b"{}", "dispatch")


def test_files_come_with_or_without_the_wrapper() -> None:
    """A job file may hold the bare job; both forms become the same submission."""
    bare = load_file(json.dumps(a_job()).encode(), "a.json")
    wrapped = load_file(json.dumps({"Job": a_job()}).encode(), "a.json")
    assert bare.errors == ()
    assert bare.register("s").digest == wrapped.register("s").digest
    assert read_submission(bare.body, "submit").job_id == "hello"


def test_faults_of_a_file_name_file_and_line() -> None:
    """A malformed file names the line, an invalid one the path, and both the file."""
    (broken,) = load_file(b'{\n"ID": "a",\n"Priority" 5}', "a.json").errors
    assert (broken.file, broken.line) == ("a.json", 3)
    loaded = load_file(b'{"ID": "a"}', "a.json")
    assert loaded.job_id == "a"
    assert [(one.file, one.path) for one in loaded.errors] == [("a.json", "Job.TaskGroups")]


def test_the_drivers_config_is_kept_raw_and_decodes() -> None:
    """The driver's own part of a task passes through as it is."""
    job = JOB_DECODER.decode(read(a_job()).spec)
    assert json.loads(bytes(job.groups[0].tasks[0].config)) == {"command": "/bin/true"}
