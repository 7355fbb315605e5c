"""Job files for docker as people write them, run to health on `caravan up` with a real engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.local.processes import processes_using
from tests.bus.test_job_files import children
from tests.bus.up import Up
from tests.docker.engine import IMAGE, OwnEngine

pytestmark = [pytest.mark.bus, pytest.mark.full("needs an engine")]
FILES = Path(__file__).resolve().parents[2] / "examples" / "docker"
#: What the files name; the tests' own image stands for it.
IMAGE_OF_FILES = "busybox:1"
#: job -> how many allocations run.
RUNNING = {"web": 2, "sidecar": 1, "mixed": 1, "system": 1}
#: Jobs whose task asserts what it was given, and ends.
COMPLETE = ("artifact", "host-volume", "limits", "mounts", "variables")
PARENT = "parameterized"


@pytest.fixture(scope="module")
def up(engine: OwnEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A node with an engine, a volume, a folder of artifacts, and the variable that a job reads."""
    assert engine.client is not None
    engine.client.images.get(IMAGE).tag(*IMAGE_OF_FILES.split(":"))
    folder = tmp_path_factory.mktemp("docker_job_files")
    for path in (folder, *folder.parents[:3]):
        if not path.stat().st_mode & 0o1001:
            path.chmod(path.stat().st_mode | 0o011)
    (folder / "files").mkdir()
    (folder / "files" / "greeting.txt").write_text("hello\n", encoding="utf-8")
    (folder / "data_volume").mkdir()
    one = Up(
        folder,
        CARAVAN_DOCKER_HOST=engine.url,
        CARAVAN_AGENT_HOST_VOLUMES=f"data={folder / 'data_volume'}",
        CARAVAN_AGENT_ARTIFACT_FILES=str(folder / "files"),
        one_process=True,
    )
    assert one.run("var", "put", "nomad/jobs/variables", "password=secret")[0] == 0
    yield one
    if one.process.poll() is None:
        one.end()
    assert not processes_using(one.data_dir)


def test_every_file_is_run_by_a_test() -> None:
    """A new file says here what becomes of it."""
    names = {path.name.removesuffix(".nomad.hcl") for path in FILES.iterdir()}
    assert names == {*RUNNING, *COMPLETE, PARENT}


def submit(up: Up, job: str) -> None:
    """Submit a file, and assert that it is accepted."""
    folder = str(up.data_dir.parent / "files")
    more = ("--var", f"folder={folder}") if job == "artifact" else ()
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


@pytest.mark.parametrize("job", COMPLETE)
def test_a_batch_job_is_complete(up: Up, job: str) -> None:
    """Its task asserts what it was given, and ends with 0."""
    submit(up, job)
    ended = ("complete", "failed")
    up.until(
        lambda: [one for one in up.allocs(job) if one["client_status"] in ended], f"{job} ends"
    )
    assert [one["client_status"] for one in up.allocs(job)] == ["complete"]


def test_a_dispatched_job_gets_its_payload(up: Up, tmp_path: Path) -> None:
    """Its file and its meta are in the container."""
    submit(up, PARENT)
    payload = tmp_path / "payload"
    payload.write_text("data", encoding="utf-8")
    words = ("--meta", "kind=small", "--payload", str(payload), PARENT)
    code, answer = up.run("job", "dispatch", "--detach", *words)
    assert code == 0, answer
    up.until(lambda: children(up, PARENT), "the child is complete")
