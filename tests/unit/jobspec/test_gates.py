"""Gates and windows in job files: what the core gets, and what is refused with line and rule."""

import pytest

from schemas.gates import UpdateGate, UpdateWindow
from schemas.jobs import RegisterJob
from shared.jobspec.files.load import load_file
from shared.jobspec.submission import read_submission, to_command
from tests.unit.jobspec.test_acceptance import text
from tests.unit.jobspec.test_jobspec import a_job
from tests.unit.jobspec.test_launches import body, refused

GATE = (
    'update {\n gate "load" {\n gauge = "depth"\n below = 0.5\n for = "30s"\n timeout = "1h"\n }\n'
)
WINDOW = ' window {\n cron = "0 3 * * *"\n duration = "2h"\n time_zone = "Europe/Berlin"\n }\n}'


def faults(**parts: str) -> list[tuple[int, str, str]]:
    """Line, path and message of each error of a file."""
    found = load_file(text(**parts).encode(), "a.nomad.hcl").errors
    return [(one.line, one.path, one.message) for one in found]


def test_blocks_of_a_job_file_are_compiled() -> None:
    """Bounds become thousandths; a timeout alone fails the deployment."""
    loaded = load_file(text(job=GATE + WINDOW).encode(), "a.nomad.hcl")
    assert loaded.errors == ()
    gates = [{"Name": "x", "Gauge": "queue.pending", "Above": 3, "OnTimeout": "wait"}]
    job = a_job(Update={"Gates": gates, "Windows": [{"Cron": "@daily", "Duration": 10**9}]})
    command = to_command(read_submission(body(job), "submit"), "s")
    assert isinstance(command, RegisterJob)
    assert command.gates == (
        UpdateGate(name="x", gauge="queue.pending", bound=3_000, is_above=True),
    )
    assert command.windows == (UpdateWindow(cron="@daily", duration_ns=10**9),)


@pytest.mark.parametrize(
    ("block", "line", "path", "word"),
    [
        ('gate "a" {\n gauge = "x"\n}', 4, "Gates[0].Below", "one bound"),
        ('gate "a" {\n gauge = "x"\n below = 1\n above = 2\n}', 6, "Gates[0].Below", "one bound"),
        ('gate "a" {\n gauge = "x y"\n below = 1\n}', 5, "Gates[0].Gauge", "letters"),
        ('gate "a" {\n gauge = "cluster.gpu"\n below = 1\n}', 5, "Gates[0].Gauge", "no gauge"),
        ('gate {\n gauge = "x"\n below = 1\n}', 4, "Gates[0].Name", "needs a label"),
        (
            'gate "a" {\n gauge = "x"\n below = 1\n on_timeout = "proceed"\n}',
            7,
            "Gates[0].OnTimeout",
            "needs a timeout",
        ),
        (
            'gate "a" {\n gauge = "x"\n below = 1\n timeout = "1m"\n on_timeout = "halt"\n}',
            8,
            "Gates[0].OnTimeout",
            "one of fail, proceed, wait",
        ),
        (
            'gate "a" {\n gauge = "x"\n below = 1\n for = "1h"\n timeout = "1m"\n}',
            8,
            "Gates[0].Timeout",
            "longer than For",
        ),
        ('window {\n cron = "0 3 * * *"\n}', 4, "Windows[0].Duration", "must be"),
        ('window {\n cron = "0 0 30 2 *"\n duration = "1h"\n}', 5, "Windows[0].Cron", "never"),
        (
            'window {\n cron = "@daily"\n duration = "1h"\n time_zone = "Moon/Base"\n}',
            7,
            "Windows[0].TimeZone",
            "not a time zone",
        ),
    ],
)
def test_what_can_never_open_is_refused_with_its_line(
    block: str, line: int, path: str, word: str
) -> None:
    """The error names the block and the rule."""
    ((where, found, message),) = faults(job=f"update {{\n{block}\n}}")
    assert (where, found) == (line, f"Job.Update.{path}")
    assert word in message


def test_two_gates_of_one_name_and_too_many() -> None:
    """Both are refused at once."""
    gate = {"Name": "a", "Gauge": "x", "Below": 1}
    found = refused(Type="service", Update={"Gates": [gate] * 11})
    assert "names two gates" in found["Job.Update.Gates[1].Name"]
    assert "at most 10" in found["Job.Update.Gates"]


@pytest.mark.parametrize("kind", ["batch", "sysbatch"])
def test_a_job_without_deployments_has_no_gates(kind: str) -> None:
    """There is nothing to hold."""
    assert any("no deployments" in message for _, _, message in faults(kind=kind, job=GATE + "}"))


def test_a_gate_of_a_group_is_refused() -> None:
    """One deployment brings up all groups of a job."""
    found = faults(group=GATE + "}")
    assert any(
        "is allowed in the update block of the job only" in message for _, _, message in found
    )
    assert all(line for line, _, _ in found)


def test_bounds_are_numbers_within_limits() -> None:
    """A bound whose thousandths would not fit is refused."""
    gate = {"Name": "a", "Gauge": "x", "Below": 10**15}
    found = refused(Type="service", Update={"Gates": [gate]})
    assert "must be -" in found["Job.Update.Gates[0].Below"]
