"""A task's own places are mounted as the agent made them, whatever an earlier run or another task put in their way."""

from pathlib import Path

import pytest

from services.agent.drivers.driver import StartRefused
from tests.docker.box import Box, a_box, launch
from tests.docker.engine import OwnEngine

pytestmark = pytest.mark.asyncio

#: What stands for the node's own files: no container may read them.
SECRET = "root:secret-of-the-node"


def node_file(top: Path) -> Path:
    """A folder of the node that only root may read."""
    folder = top / "node"
    folder.mkdir(mode=0o700)
    (folder / "shadow").write_text(f"{SECRET}\n")
    return folder


def replace_by_link(place: Path, to: Path) -> None:
    """Do what root in a container can do to a directory whose parent it has."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        place.rename(place.with_name(f"{place.name}.old"))
    place.symlink_to(to)


async def steal(box: Box, number: int, script: str, **options: object) -> str:
    """Run a script; returns all that it wrote, or the refusal."""
    try:
        await box.ended(script, number, **options)
    except StartRefused as err:
        return f"refused: {err}"
    return box.output()


async def test_a_container_does_not_become_root_on_the_node_at_its_restart(
    engine: OwnEngine, top: Path
) -> None:
    """A container that replaces its own `local` by a link to the node's files does not reach them at its next start."""
    node = node_file(top)
    async with a_box(engine, top / "home") as box:
        swap = f"mv /x/local /x/old && ln -s {node} /x/local && echo swapped"
        first = await steal(box, 1, swap, volumes=[".:/x"])
        second = await steal(box, 2, "cat /local/shadow; ls /local")
        assert SECRET not in second
        assert "the task's directory itself" in first


@pytest.mark.parametrize(
    "source", [".", "./", "local/..", "${NOMAD_TASK_DIR}/..", "/alloc/..", "TASK", "TASK/", "ALLOC"]
)
async def test_the_task_directory_itself_is_no_source(
    engine: OwnEngine, top: Path, source: str
) -> None:
    """No spelling mounts the directory that holds a task's own places, or the one above it."""
    async with a_box(engine, top) as box:
        places = box.run().places
        text = source.replace("TASK", str(places.task)).replace("ALLOC", str(places.task.parent))
        text = text.replace("${NOMAD_" + str(places.task), "${NOMAD_TASK")
        for options in (
            {"volumes": [f"{text}:/x"]},
            {"mount": [{"type": "bind", "source": text, "target": "/x"}]},
        ):
            with pytest.raises(StartRefused) as caught:
                await box.start(**options)
            assert not caught.value.recoverable
        assert box.containers() == []


@pytest.mark.parametrize("place", ["local", "secrets", "alloc/logs", "alloc/data", "alloc/tmp"])
async def test_a_link_in_the_place_of_an_own_directory_is_refused(
    engine: OwnEngine, top: Path, place: str
) -> None:
    """A link where one of the task's directories was is refused with its name, and no container is made."""
    node = node_file(top)
    async with a_box(engine, top / "home") as box:
        places = box.run().places
        part = place.removeprefix("alloc/")
        parent = places.shared if place.startswith("alloc/") else places.task
        replace_by_link(parent / part, node)
        said = await steal(box, 1, "cat /local/shadow /secrets/shadow /alloc/*/shadow")
        assert SECRET not in said
        assert f"{part}: is not a directory but a symbolic link" in said
        assert box.containers() == []


@pytest.mark.parametrize(
    "source", ["/local", "/local/in", "/secrets", "/alloc/data", "local", "local/in"]
)
async def test_a_source_below_a_place_that_became_a_link_is_refused(
    engine: OwnEngine, top: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """A source below an own place is walked from above that place: a link that was swapped in late leads nowhere."""
    from services.agent.drivers.driver import DriverRun

    node = node_file(top)
    (node / "in").mkdir()
    async with a_box(engine, top / "home") as box:
        places = box.run().places
        made = DriverRun.make_directories

        def swapping(run: DriverRun) -> None:
            made(run)
            for place in (places.task / "local", places.task / "secrets", places.shared / "data"):
                replace_by_link(place, node)

        monkeypatch.setattr(DriverRun, "make_directories", swapping)
        for options in ({"volumes": [f"{source}:/x"]}, {}):
            said = await steal(box, 1, "cat /x/shadow /local/shadow", **options)
            assert SECRET not in said
        assert box.containers() == []


async def test_a_swap_between_check_and_mount_of_an_own_place_changes_nothing(
    engine: OwnEngine, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An own place that another task replaces by a link once it was checked is mounted as it was checked."""
    from services.agent.drivers.docker.mounts import MountPins

    node = node_file(top)
    async with a_box(engine, top / "home") as box:
        places = box.run().places
        places.task.mkdir(parents=True)
        (places.task / "local").mkdir()
        (places.task / "local" / "mine").touch()
        held = MountPins.hold

        def swapping(pins: MountPins, fd: int, path: Path) -> str:
            found = held(pins, fd, path)
            if path in (places.task / "local", places.shared / "logs", places.task / "secrets"):
                replace_by_link(path, node)
            return found

        monkeypatch.setattr(MountPins, "hold", swapping)
        handle = await box.driver.start(
            box.run(),
            launch("ls /local; cat /*/shadow /alloc/logs/shadow; echo done > /alloc/data/f"),
        )
        await box.driver.wait(handle)
        (places.shared / "logs").unlink()
        assert (places.shared / "data" / "f").read_text() == "done\n"
        kept = b"".join(one.read_bytes() for one in (top / "home").rglob("*.stdout.0"))
        assert SECRET.encode() not in kept


async def test_what_a_container_leaves_gives_no_rights_on_the_node(
    engine: OwnEngine, top: Path
) -> None:
    """Own places are mounted without set-uid and devices."""
    async with a_box(engine, top) as box:
        places = box.run().places
        (places.task / "local").mkdir(parents=True)
        end = await box.ended("mount", volumes=["local:/again"])
        assert end.code == 0
        lines = box.output().splitlines()
        for target in ("/alloc", "/alloc/logs", "/local", "/secrets", "/again"):
            (line,) = (one for one in lines if f" on {target} type" in one)
            assert "nosuid" in line, line
            assert "nodev" in line, line
