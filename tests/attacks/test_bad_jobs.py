"""Cases 37, 38, 39 and 41 of the attack table, where a job enters and on the node. docs/attacks.md has them all."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.envelope import ENCODER
from services.agent.drivers.docker.container_spec import HostCpu, container_spec, create_request
from services.agent.drivers.docker.mounts import MountPins, MountSources
from services.agent.drivers.docker.settings import DockerSettings
from services.agent.drivers.driver import DriverRun, StartRefused
from services.agent.executor.data_dir import DataDir
from shared.core.runtime.agent_messages import StartTask, TaskLaunch
from shared.core.runtime.messages import Stop
from shared.errors import CommandInvalid
from shared.jobspec.files.load import load_file
from shared.jobspec.submission import read_submission
from tests.projected import projected
from tests.unit.agent.agent_story import Story, alloc, job_json, task_json

MIB = 1024 * 1024


def submitted(job: dict[str, Any]) -> str:
    """What the door for jobs says against a job; empty: nothing."""
    try:
        read_submission(msgspec.json.encode({"Job": job}), "submit")
    except CommandInvalid as err:
        return f"{err} {getattr(err, 'faults', '')}"
    return ""


def boxed(**config: Any) -> dict[str, Any]:
    """A job with one container."""
    return job_json(task_json(driver="docker", Config={"image": "x", **config}))


# ---- 37: bombs ----


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"Job": {"ID": ' + b"[" * 5000 + b"]" * 5000 + b"}}", ""),
        (b'{"Job": {"ID": "' + b"x" * (MIB + 1) + b'"}}', "at most"),
        (b'{"Job": {"ID": "j", "ID": "k"}}', ""),
        (b'{"Job": {"ID": "j", "Priority": 1e999}}', ""),
        (b"\xff\xfe{}", ""),
    ],
)
def test_37_a_body_that_is_a_bomb_is_refused(body: bytes, told: str) -> None:
    """Depth, size, doubled keys and numbers beyond all bounds are refused before anything is made of them."""
    with pytest.raises(CommandInvalid) as found:
        read_submission(body, "submit")
    assert told in str(found.value)
    assert len(str(found.value)) < 1000


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n", "x.yaml"),
        ("[" * 5000 + "]" * 5000, "x.json"),
        ('job "a" { meta { a = ' + "[" * 5000 + "]" * 5000 + " } }", "x.nomad.hcl"),
        ('job "a" { meta { a = "${join("", [for x in range(10000000) : x])}" } }', "x.nomad.hcl"),
        ("#" + "x" * MIB, "x.nomad.hcl"),
    ],
)
def test_37_a_file_that_is_a_bomb_is_refused(text: str, name: str) -> None:
    """Aliases, depth, endless lists and size are refused in every format, in a line that can be read."""
    found = load_file(text.encode(), name)
    assert found.submission is None
    assert all(len(one.message) < 1000 for one in found.errors)


def test_37_a_thousand_million_allocations_are_refused() -> None:
    """A count that no cluster has is no count, in one group or in many."""
    job = job_json()
    job["TaskGroups"][0]["Count"] = 10**9
    assert "1000000" in submitted(job)
    groups = [{**job["TaskGroups"][0], "Name": f"g{at}", "Count": 999_999} for at in range(3)]
    assert "at most 1000000" in submitted({**job, "TaskGroups": groups})


# ---- 38: traversal ----


NAMES = ("../x", "../../x", "a/b", "..", ".", "/etc", "a\0b", "a\nb", "*", "a.>", "alloc", "~alloc")


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_38_no_name_leads_out_of_its_directory(name: str, tmp_path: Path) -> None:
    """Names become paths: what the door lets pass, or who forged it, stays one step below where it belongs."""
    home = DataDir(tmp_path, "n1")
    try:
        places = home.places(name, name)
        usual = home.places("a1", "main")
    except ValueError:
        assert submitted(job_json(task_json(name)))
        return
    finally:
        home.close()
    own = (places.task, places.shared, places.runs, places.stdout)
    for place, other in zip(own, (usual.task, usual.shared, usual.runs, usual.stdout), strict=True):
        assert place.resolve().is_relative_to(tmp_path)
        assert len(place.parts) == len(other.parts)
        assert not {"..", "."} & set(place.parts)
    assert places.task != places.shared


# ---- 39: ways out of a container ----

ESCAPES: tuple[dict[str, Any], ...] = (
    {"network_mode": "container:other"},
    {"pid_mode": "container:other"},
    {"ipc_mode": "container:other"},
    {"security_opt": ["seccomp=unconfined"]},
    {"devices": [{"host_path": "/etc/shadow"}]},
    {"devices": [{"host_path": "/dev/../etc/shadow"}]},
    {"volumes": [".:/x"]},
    {"volumes": ["local/..:/x"]},
    {"volumes": ["a:/dev/sda"]},
    {"cap_add": ["NO_SUCH"]},
    {"volumes": ["../../../../etc:/x"]},
    {"cap_add": ["SYS_ADMIN"]},
    {"sysctl": {"kernel.core_pattern": "|/x"}},
    {"auth": {"username": "a", "password": "b"}},
    {"privilegd": True},
)
#: Only the node knows what its operator allows.
NODE_ONLY: tuple[dict[str, Any], ...] = (
    {"privileged": True},
    {"pid_mode": "host"},
    {"ipc_mode": "host"},
    {"uts_mode": "host"},
    {"userns_mode": "host"},
    {"cgroupns": "host"},
    {"devices": [{"host_path": "/dev/sda"}]},
    {"volumes": ["/var/run/docker.sock:/var/run/docker.sock"]},
    {"volumes": ["/dev/sda:/dev/sda"]},
    {"volumes": ["/dev:/x"]},
    {"auth": {"server_address": "registry"}},
    {"logging": {"type": "journald"}},
    {"ulimit": {"rtprio": "99"}},
    {"network_mode": "host"},
    {"network_mode": "other"},
    {"cap_add": ["NET_RAW"]},
    {"mount": [{"type": "volume", "source": "others", "target": "/x"}]},
    {"runtime": "other"},
    {"pids_limit": 100_000},
)


def at_node(config: dict[str, Any], top: Path) -> None:
    """What the driver makes of the options, whatever the door let through. Raises StartRefused."""
    home, settings = DataDir(top, "n1"), DockerSettings()
    try:
        run = DriverRun(alloc_id="a1", task="main", number=1, places=home.places("a1", "main"))
        text = msgspec.Raw(msgspec.json.encode({"image": "x", **config}))
        launch = TaskLaunch(config=text, memory_mib=64)
        create_request(
            container_spec("x", launch),
            run,
            launch,
            settings=settings,
            sources=MountSources(settings, top, run, MountPins(top / "pins")),
            machine=HostCpu(core_mhz=1000, cores=1),
            labels={},
        )
    finally:
        home.close()


@pytest.mark.parametrize("config", ESCAPES, ids=str)
def test_39_a_way_out_is_refused_at_the_door_and_on_the_node(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """No option that gives the node away passes the door, nor the driver of a node whose door was passed by."""
    assert submitted(boxed(**config))
    with pytest.raises(StartRefused):
        at_node(config, tmp_path)


@pytest.mark.parametrize("config", NODE_ONLY, ids=str)
def test_39_what_only_an_operator_allows_is_refused_on_the_node(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """A node gives nothing that its own operator did not allow, and names the setting."""
    with pytest.raises(StartRefused, match="CARAVAN_DOCKER_"):
        at_node(config, tmp_path)


# ---- 41: forged orders ----


@pytest.mark.parametrize(
    "more",
    [{"cluster_id": "other"}, {"node_id": "n2"}, {"seq": 0}],
    ids=["another cluster", "another node", "an older one"],
)
def test_41_a_projection_that_is_not_ours_starts_nothing(more: dict[str, Any]) -> None:
    """Orders come from this cluster, for this node, and never go back. Who may write them: tests/bus, 31."""
    story = Story().hear(5)
    story.did()
    said = {"cluster_id": "c1", "node_id": "n1", "seq": 6, **more}
    story.hear_bytes(ENCODER.encode(projected((alloc(9),), **said)))
    done = story.did()
    assert not [one for one in done if isinstance(one, StartTask | Stop)]
