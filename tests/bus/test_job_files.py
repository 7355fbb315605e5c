"""Job files as people write them, each with a combination of blocks that go together, run to health on `caravan up`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.local.processes import processes_using
from tests.bus.up import Up

pytestmark = [pytest.mark.bus, pytest.mark.full("a whole cluster, not yet seen beside other tests")]
FILES = Path(__file__).resolve().parents[2] / "examples" / "jobs"
#: job -> how many allocations run; what the job asserts about its task fails the task.
RUNNING = {
    "discovery": 2,
    "dynamic-blocks": 2,
    "many-groups": 5,
    "migrate": 2,
    "placement": 2,
    "script-check": 1,
    "service-check": 1,
    "shutdown": 1,
    "sidecar": 1,
    "system": 1,
    "update-canary": 2,
}
#: job -> how many allocations are complete.
COMPLETE = dict.fromkeys(
    (
        "artifact-template-env",
        "devices",
        "identity-secret",
        "leader",
        "meta-env",
        "prestart-poststop",
        "restart-reschedule",
        "script-template",
        "sysbatch",
        "template-variable",
    ),
    1,
)
#: Of these the cluster makes child jobs.
PARENTS = {"dispatch", "periodic"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A node with a fake GPU, a folder of artifacts, and the variables that jobs read."""
    folder = tmp_path_factory.mktemp("job_files")
    (folder / "files").mkdir()
    (folder / "files" / "greeting.tpl").write_text('hello {{ env "NAME" }}\n', encoding="utf-8")
    one = Up(
        folder,
        CARAVAN_AGENT_FAKE_GPUS="nvidia/gpu/t4:1",
        CARAVAN_AGENT_ARTIFACT_FILES=str(folder / "files"),
        # Room for all jobs of this file on any machine: it is not what they are about.
        CARAVAN_AGENT_CPU_MHZ="10000",
        CARAVAN_AGENT_MEMORY_MIB="8000",
        one_process=True,
    )
    for job, item in (("template-variable", "password=secret"), ("identity-secret", "token=abc")):
        assert one.run("var", "put", f"nomad/jobs/{job}", item)[0] == 0
    yield one
    if one.process.poll() is None:
        one.end()
    assert not processes_using(one.data_dir)


def test_every_file_is_run_by_a_test() -> None:
    """A new file says here what becomes of it."""
    names = {path.name.removesuffix(".nomad.hcl") for path in FILES.iterdir()}
    assert names == {*RUNNING, *COMPLETE, *PARENTS}
    assert len(names) > 20


def submit(up: Up, job: str) -> None:
    """Submit a file, and assert that it is accepted."""
    folder = str(up.data_dir.parent / "files")
    more = ("--var", f"folder={folder}") if job == "artifact-template-env" else ()
    code, answer = up.run("job", "run", "--detach", *more, str(FILES / f"{job}.nomad.hcl"))
    assert code == 0, answer


@pytest.mark.parametrize("job", sorted(RUNNING))
def test_a_service_comes_up_healthy(up: Up, job: str) -> None:
    """All of its allocations run; its deployment, where it has one, is successful; it stops."""
    submit(up, job)
    up.until(lambda: len(up.allocs(job, "running")) == RUNNING[job], f"{job} runs")
    if job != "system":
        up.until(
            lambda: (
                {one["status"] for one in up.ask("deployments", job_id=job)["deployments"]}
                == {"successful"}
            ),
            f"the deployment of {job} is successful",
        )
    assert not up.allocs(job, "failed")
    assert up.run("job", "stop", job)[0] == 0
    up.until(lambda: not up.allocs(job, "running"), f"{job} stops")


@pytest.mark.parametrize("job", sorted(COMPLETE))
def test_a_batch_job_is_complete(up: Up, job: str) -> None:
    """Its tasks assert what they were given, and end with 0."""
    submit(up, job)
    ended = ("complete", "failed")
    up.until(
        lambda: [one for one in up.allocs(job) if one["client_status"] in ended], f"{job} ends"
    )
    assert [one["client_status"] for one in up.allocs(job)] == ["complete"]


def test_a_periodic_job_is_launched(up: Up) -> None:
    """Forced, as its time is at night: a child job is complete."""
    submit(up, "periodic")
    code, answer = up.run("job", "periodic", "force", "periodic")
    assert code == 0, answer
    up.until(lambda: children(up, "periodic"), "the child is complete")


def test_a_dispatched_job_gets_its_payload(up: Up, tmp_path: Path) -> None:
    """With payload and meta; what is missing is refused by name."""
    submit(up, "dispatch")
    payload = tmp_path / "payload"
    payload.write_text("data", encoding="utf-8")
    code, answer = up.run("job", "dispatch", "--payload", str(payload), "dispatch")
    assert code != 0 and "kind" in str(answer)
    words = ("--meta", "kind=small", "--payload", str(payload), "dispatch")
    code, answer = up.run("job", "dispatch", "--detach", *words)
    assert code == 0, answer
    up.until(lambda: children(up, "dispatch"), "the child is complete")


def children(up: Up, parent: str) -> bool:
    """Say whether a child job of this one has a complete allocation; asserts that none failed."""
    found = [
        one["client_status"]
        for job in up.ask("jobs")["jobs"]
        if job["id"].startswith(f"{parent}/")
        for one in up.allocs(job["id"])
    ]
    assert "failed" not in found
    return "complete" in found
