"""A job's fields reach the fact, the table and the command again, whatever fields a job has."""

from typing import Any

import msgspec
import pytest

from schemas.base import EvalKey, JobId
from schemas.jobs import JobRegistered, RegisterJob
from shared.core.decide.job_fields import command_of, registration_of
from shared.core.state.tables.jobs import Job, make_job

#: Fields of a job: the command and the fact share them. The others say how it was submitted.
FIELDS = sorted(
    set(RegisterJob.__struct_fields__)
    & set(JobRegistered.__struct_fields__)
    - {"submission_id", "digest", "job_id", "spec", "warnings", "traceparent", "source"}
)
TEXT = msgspec.Raw(b"{}")


def marked(struct: Any, **own: Any) -> Any:
    """A Struct whose every field holds a text of its own: none equals a default."""
    return struct(**{name: f"<{name}>" for name in struct.__struct_fields__} | own)


def fact(given: RegisterJob | Job) -> JobRegistered:
    return registration_of(
        given, JobId("j"), 3, TEXT, submission_id="s", digest="d", evaluation=EvalKey(7)
    )


@pytest.mark.parametrize("given", [marked(RegisterJob), marked(Job)], ids=["command", "kept"])
def test_the_fact_has_every_field_of_the_job(given: RegisterJob | Job) -> None:
    """A field that the command and the fact share is in the fact, from a command and from a kept version."""
    registered = fact(given)
    assert {name: getattr(registered, name) for name in FIELDS} == {
        name: f"<{name}>" for name in FIELDS
    }


@pytest.mark.parametrize("given", [marked(RegisterJob), marked(JobRegistered)], ids=["plan", "log"])
def test_the_table_keeps_every_field_of_the_job(given: RegisterJob | JobRegistered) -> None:
    """A field that the command and the fact share is kept with the job."""
    job = make_job(given, None, version=0, digest="d", seq=1)
    assert {name: getattr(job, name) for name in FIELDS} == {name: f"<{name}>" for name in FIELDS}


@pytest.mark.parametrize("given", [marked(Job), marked(JobRegistered)], ids=["kept", "log"])
def test_the_command_has_every_field_of_the_job(given: Job | JobRegistered) -> None:
    """A kept version, or a recorded fact, becomes a command without loss."""
    command = command_of(given, JobId("j"), TEXT, submission_id="s", digest="d")
    assert {name: getattr(command, name) for name in FIELDS} == {
        name: f"<{name}>" for name in FIELDS
    }


def test_what_the_job_does_not_say_is_given() -> None:
    """The names of the submission, the version and the evaluation are arguments."""
    registered = fact(marked(Job))
    said = (registered.submission_id, registered.job_id, registered.version, registered.evaluation)
    assert said == ("s", "j", 3, 7)
