"""Host volumes are made and deleted on a real node: by mkdir, and by programs of the operator."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from schemas.host_volumes import VolumeCapability, VolumeSpec
from services.agent.drivers.driver import StartRefused
from services.agent.executor.data_dir import DataDir
from services.agent.executor.executor import TaskExecutor
from services.agent.host_volumes import HostVolumes, read_host_volumes
from services.agent.volumes import mkdir, plugins
from services.agent.volumes.mkdir import VolumeRefused
from services.agent.volumes.plugins import MadeVolume, NodePlace, VolumePlugins
from services.agent.volumes.volume_maker import IS_TAKEN, VolumeMaker
from shared.core.runtime.agent_messages import AgentInput, TaskLaunch, VolumeBind, WriteJournal
from shared.core.runtime.volume_messages import (
    READY,
    CreateVolume,
    DeleteVolume,
    VolumeCreated,
    VolumeKept,
    VolumeNotMade,
    VolumeRemoved,
)
from shared.errors import ConfigInvalid
from tests.bounds import level

pytestmark = pytest.mark.asyncio
ID = "6f1f2d4e-0000-4000-8000-000000000001"


def spec(plugin: str = "mkdir", **parameters: str) -> VolumeSpec:
    capabilities = (VolumeCapability(access_mode="single-node-writer"),)
    return VolumeSpec(
        id=ID, name="data", plugin=plugin, capabilities=capabilities, parameters=parameters
    )


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return tmp_path / "agent"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "plugins"
    found.mkdir(mode=0o755)
    return found


def program(folder: Path, script: str, name: str = "toy", mode: int = 0o755) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)


def made(top: Path, folder: str | Path = "", **more: str) -> VolumePlugins:
    place = NodePlace(data_dir=str(top), node_id="n1", **more)
    return VolumePlugins(str(folder), place)


def exists(path: str | Path) -> bool:
    return Path(path).is_dir()


def owner(path: str) -> tuple[int, int]:
    found = Path(path).stat()
    return found.st_uid, found.st_gid


async def failure(call: Any) -> str:
    with pytest.raises(VolumeRefused) as err:
        await call
    return str(err.value)


# ---- mkdir ----


async def test_a_directory_of_the_id_with_owner_and_mode(top: Path) -> None:
    """Default 0700; made twice it is there once, and what a task changed of it stays."""
    found = await made(top).create(spec(mode="0750"), is_new=True)
    place = top / "host_volumes" / ID
    assert found == MadeVolume(str(place))
    assert stat.S_IMODE(place.stat().st_mode) == 0o750
    (place / "file").write_text("x")
    place.chmod(0o711)
    await made(top).create(spec(mode="0750"), is_new=False)
    assert stat.S_IMODE(place.stat().st_mode) == 0o711
    await made(top).delete(spec(), str(place))
    await made(top).delete(spec(), str(place))
    assert not place.exists()
    await made(top).create(spec(), is_new=True)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


async def test_the_operator_says_where(top: Path, tmp_path: Path) -> None:
    """An absolute folder."""
    found = await made(top, volumes_dir=str(tmp_path / "big")).create(spec(), is_new=True)
    assert found.path == str(tmp_path / "big" / ID)
    with pytest.raises(ConfigInvalid, match="HOST_VOLUMES_DIR"):
        made(top, volumes_dir="big")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_the_owner_is_as_asked(top: Path) -> None:
    """By numbers."""
    found = await made(top).create(spec(uid="1234", gid="4321"), is_new=True)
    assert owner(found.path) == (1234, 4321)


@pytest.mark.parametrize(
    "parameters", [{"mode": "0999"}, {"mode": "rwx"}, {"uid": "root"}, {"gid": "-1"}, {"size": "1"}]
)
async def test_a_parameter_that_cannot_be_leaves_nothing(
    parameters: dict[str, str], top: Path
) -> None:
    """It is named."""
    text = await failure(made(top).create(spec(**parameters), is_new=True))
    assert next(iter(parameters)) in text
    assert not (top / "host_volumes" / ID).exists()


async def test_a_directory_that_is_gone_is_not_made_anew(top: Path) -> None:
    """A volume that was ready had data: an empty one in its place would be a lie."""
    assert "missing" in await failure(made(top).create(spec(), is_new=False))


async def test_what_is_mounted_in_it_is_not_deleted(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to another file system."""
    await made(top).create(spec(), is_new=True)
    monkeypatch.setattr(mkdir, "mounts_below", lambda path: [f"{path}/inner"])
    assert "mounted in it" in await failure(made(top).delete(spec(), ""))
    assert (top / "host_volumes" / ID).is_dir()


async def test_a_link_in_its_place_is_not_followed(top: Path, tmp_path: Path) -> None:
    """Neither made nor deleted through."""
    (top / "host_volumes").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").touch()
    (top / "host_volumes" / ID).symlink_to(tmp_path / "other")
    await failure(made(top).create(spec(), is_new=True))
    await failure(made(top).delete(spec(), ""))
    assert (tmp_path / "other" / "kept").exists()


# ---- programs ----

TOY = """case $1 in
fingerprint) echo '{"version": "0.3"}' ;;
create) mkdir -p "$DHV_VOLUMES_DIR/$DHV_VOLUME_ID"; env > "$DHV_VOLUMES_DIR/$DHV_VOLUME_ID/env"
  echo "{\\"path\\": \\"$DHV_VOLUMES_DIR/$DHV_VOLUME_ID\\", \\"bytes\\": 4096}" ;;
delete) rm -r "$DHV_CREATED_PATH" ;;
esac"""


async def test_a_program_makes_and_deletes(top: Path, folder: Path) -> None:
    """It is given what Nomad's plugins are given, and nothing of the agent's environment."""
    program(folder, TOY)
    both = made(top, folder)
    assert both.attributes() == {
        "plugins.host_volume.mkdir.version": "1",
        "plugins.host_volume.toy.version": "0.3",
    }
    found = await both.create(spec("toy", fs="ext4"), is_new=True)
    assert found == MadeVolume(str(top / "host_volumes" / ID), 4096)
    lines = (Path(found.path) / "env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines)
    given = {name: value for name, value in given.items() if name.startswith("DHV_")}
    assert given == {
        "DHV_OPERATION": "create",
        "DHV_VOLUMES_DIR": str(top / "host_volumes"),
        "DHV_PLUGIN_DIR": str(folder),
        "DHV_NAMESPACE": "default",
        "DHV_VOLUME_ID": ID,
        "DHV_VOLUME_NAME": "data",
        "DHV_NODE_ID": "n1",
        "DHV_NODE_POOL": "default",
        "DHV_PARAMETERS": '{"fs":"ext4"}',
        "DHV_CAPACITY_MIN_BYTES": "0",
        "DHV_CAPACITY_MAX_BYTES": "0",
    }
    await both.delete(spec("toy"), found.path)
    assert not exists(found.path)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("""echo '{"error": "no room"}'; exit 3""", "no room"),
        ("exit 3", "ended with 3"),
        ("echo hello", "no JSON"),
        ("echo '{}'", "no path"),
        ("""echo '{"path": "relative"}'""", "not absolute"),
        ("""echo '{"path": "/none/such"}'""", "not a directory"),
        ("""echo '{"path": "/"}'""", "files of the agent"),
        ("""echo "{\\"path\\": \\"$DHV_VOLUMES_DIR\\"}\"""", "files of the agent"),
    ],
)
async def test_a_program_that_fails_cleans_up(
    answer: str, words: str, top: Path, folder: Path
) -> None:
    """What it says is the reason; then it is asked to delete what it half made."""
    half = folder / "half"
    program(folder, f"case $1 in create) touch {half}; {answer};; delete) rm -f {half};; esac")
    assert words in await failure(made(top, folder).create(spec("toy"), is_new=True))
    assert not half.exists()


async def test_a_program_that_hangs_is_ended(
    top: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time, with what it started."""
    monkeypatch.setattr(plugins, "CALL_S", 0.3)
    monkeypatch.setattr(plugins, "END_S", 0.1)
    program(folder, "sleep 10000")
    assert "no answer within" in await failure(made(top, folder).create(spec("toy"), is_new=False))


@pytest.mark.parametrize("mode", [0o777, 0o644])
async def test_a_program_that_others_can_change_is_not_run(
    mode: int, top: Path, folder: Path
) -> None:
    """Neither for its version, which is not offered, nor for a volume."""
    program(folder, TOY, mode=mode)
    both = made(top, folder)
    assert "plugins.host_volume.toy.version" not in both.attributes()
    await failure(both.create(spec("toy"), is_new=True))
    with pytest.raises(ConfigInvalid):
        made(top, "relative")


# ---- what is offered to tasks ----


def executor(home: DataDir, offered: HostVolumes, told: list[AgentInput]) -> TaskExecutor:
    maker = VolumeMaker(made(home.top), offered, home.journal.entries)
    return TaskExecutor(home=home, drivers={}, inject=told.append, volumes=offered, maker=maker)


def mount(offered: HostVolumes) -> str:
    launch = TaskLaunch(volumes=(VolumeBind(source="data", target="/d"),))
    return offered.resolved(launch).volumes[0].path


async def test_a_task_mounts_a_volume_while_it_is_there(top: Path) -> None:
    """From its making to its deletion, also in the next life of the agent before its plugin was asked."""
    home, told = DataDir(top, "n1"), list[AgentInput]()
    offered = HostVolumes({})
    runs = executor(home, offered, told)
    perform = runs.performers()
    perform[CreateVolume](CreateVolume(spec=spec(), attempt=1, is_new=True))
    await level(lambda: bool(told))
    place = str(top / "host_volumes" / ID)
    assert told.pop() == VolumeCreated(id=ID, attempt=1, path=place)
    assert mount(offered) == place
    later = HostVolumes({})
    VolumeMaker(made(top), later, [VolumeKept(spec=spec(), state=READY, path=place)])
    assert mount(later) == place
    perform[DeleteVolume](DeleteVolume(spec=spec(), path=place, keeps_data=True))
    await level(lambda: bool(told))
    assert told.pop() == VolumeRemoved(id=ID)
    assert exists(place)
    with pytest.raises(StartRefused):
        mount(offered)
    perform[DeleteVolume](DeleteVolume(spec=spec(), path=place))
    await level(lambda: bool(told))
    assert not exists(place)
    await runs.close()


async def test_without_a_journal_nothing_is_made(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S75: what could not be written down would be lost by a kill."""
    home, told = DataDir(top, "n1"), list[AgentInput]()
    runs = executor(home, HostVolumes({}), told)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(home.journal, "append", full)
    perform = runs.performers()
    perform[WriteJournal](WriteJournal((VolumeKept(spec=spec()),)))
    perform[CreateVolume](CreateVolume(spec=spec(), attempt=1, is_new=True))
    (said,) = told
    assert isinstance(said, VolumeNotMade)
    assert "journal cannot be written" in said.reason
    assert not (top / "host_volumes").exists()
    await runs.close()


async def test_the_operators_own_volume_keeps_its_name(top: Path, tmp_path: Path) -> None:
    """The new one is deleted again."""
    (tmp_path / "own").mkdir()
    offered = read_host_volumes(f"data={tmp_path}/own", str(top))
    told: list[Any] = []
    maker = VolumeMaker(made(top), offered)
    await maker.create(CreateVolume(spec=spec(), attempt=1, is_new=True), told.append)
    assert told == [VolumeNotMade(id=ID, attempt=1, reason=IS_TAKEN)]
    assert mount(offered) == str(tmp_path / "own")
    assert not (top / "host_volumes" / ID).exists()
