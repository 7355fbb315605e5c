"""Bodies of `api.jobs.submit_together`: how good ones are read and bad ones refused."""

from typing import Any

import msgspec
import pytest

from schemas.submissions import JobSource
from shared.errors import CommandInvalid
from shared.jobspec.source import unpack_source
from shared.jobspec.submission import JobInvalid, read_submission

TASK = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}


def job(job_id: str, **more: Any) -> dict[str, Any]:
    """A body of `submit`."""
    group = {"Name": "g", "Tasks": [TASK]}
    return {"Job": {"ID": job_id, "Type": "service", "TaskGroups": [group], "Update": {}, **more}}


def read(**fields: Any) -> Any:
    """Read a body."""
    base: dict[str, Any] = {"Rollout": "shop", "Jobs": [job("a"), job("b")]}
    return read_submission(msgspec.json.encode(base | fields), "submit_together")


def test_a_body_is_read() -> None:
    """Name, order and jobs; the same content under an id has a digest of its own kind."""
    found = read(Order="in_order")
    assert (found.rollout, found.order) == ("shop", "in_order")
    assert [one.job_id for one in found.together] == ["a", "b"]
    assert read(SubmissionID="s").digest == read(SubmissionID="t").digest != found.digest


def test_each_job_has_the_file_that_is_beside_it() -> None:
    """The file of one job is that of no other; a wrong one is a fault of its job."""
    with_file = job("b") | {"Submission": {"Source": "text"}}
    first, second = read(Jobs=[job("a"), with_file]).together
    assert (first.source, unpack_source(second.source)) == (b"", JobSource(source="text"))
    with pytest.raises(JobInvalid) as caught:
        read(Jobs=[job("a"), with_file | {"Submission": {"Source": 1}}])
    assert caught.value.path == "Jobs[1].Submission.Source"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"Rollout": ""}, "Rollout"),
        ({"Rollout": 7}, "Rollout"),
        ({"Order": "backwards"}, "Order"),
        ({"Jobs": []}, "Jobs"),
        ({"Jobs": [job(f"j{n}") for n in range(17)]}, "Jobs"),
        ({"Jobs": "a"}, "Jobs"),
        ({"Jib": 1}, "Jib"),
    ],
)
def test_a_bad_body_is_refused(fields: dict[str, Any], path: str) -> None:
    """The first fault is named with its place."""
    with pytest.raises(CommandInvalid) as caught:
        read(**fields)
    assert caught.value.path == path


def test_errors_of_all_jobs_are_told() -> None:
    """Each with the place of its job; a batch job and one that comes twice among them."""
    with pytest.raises(JobInvalid) as caught:
        read(Jobs=[job("a"), job("b", Type="batch", Update=None), job("a"), job("c", Priority="x")])
    paths = [one.path for one in caught.value.errors]
    assert paths == ["Jobs[1].Job.Type", "Jobs[2].Job.ID", "Jobs[3].Job.Priority"]
