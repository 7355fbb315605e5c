"""The `ui` block: texts and links that are shown with a job, and nothing that a console would run."""

import pytest

from schemas.job_answers import JobDescription, JobLink
from shared.jobspec.checks.job_description import job_description
from shared.jobspec.files.load import load_file
from shared.jobspec.submission import read_submission

JOB = 'job "a" { %s\n group "g" { task "t" { driver = "raw_exec"\n config { command = "/bin/true" } } } }'
UI = 'ui {\n description = "Sells **things**."\n link {\n label = "Runbook"\n url = "%s"\n }\n}'


def faults(block: str) -> list[str]:
    """Paths and messages of what is wrong."""
    return [
        f"{one.path}: {one.message}" for one in load_file((JOB % block).encode(), "a.hcl").errors
    ]


def test_a_description_is_kept_and_shown() -> None:
    """Of the job as it is registered."""
    source = load_file((JOB % (UI % "https://wiki.example/run?a=b#c")).encode(), "a.hcl")
    assert not source.errors
    spec = read_submission(source.body, "submit").spec
    link = JobLink("Runbook", "https://wiki.example/run?a=b#c")
    assert job_description(spec) == JobDescription("Sells **things**.", (link,))
    assert job_description(b'{"ID":"a"}') is None
    assert job_description(b'{"UI":{"Description":""}}') is None


@pytest.mark.parametrize(
    ("block", "path"),
    [
        (UI % "javascript:alert(1)", "Job.UI.Links[0].URL"),
        (UI % "wiki.example", "Job.UI.Links[0].URL"),
        (UI % "https://", "Job.UI.Links[0].URL"),
        (UI % "https://[", "Job.UI.Links[0].URL"),
        (UI % "https://a b", "Job.UI.Links[0].URL"),
        (UI.replace('"Runbook"', '""') % "https://a", "Job.UI.Links[0].Label"),
        (UI.replace("Sells", "x" * 1_000) % "https://a", "Job.UI.Description"),
        ("ui {\n" + 'link {\n label = "a"\n url = "http://b"\n}\n' * 51 + "}", "Job.UI.Links"),
        ('ui { descripton = "x" }', "descripton"),
    ],
)
def test_what_cannot_be_shown_is_refused(block: str, path: str) -> None:
    """Long texts, labels that are empty, and addresses that are none or would run something."""
    found = faults(block)
    assert len(found) == 1 and path in found[0], found


def test_a_job_of_an_older_release_shows_no_address_that_would_run() -> None:
    """It was kept without a look at it."""
    assert job_description(b'{"UI":{"Links":[{"Label":"a","URL":"javascript:alert(1)"}]}}') is None
