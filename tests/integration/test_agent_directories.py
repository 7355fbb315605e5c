"""Directories, ports, disks and logs of allocations on a real node, and tasks that play tricks with them."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.agent.drivers.driver import DriverRun, StartRefused, directories_refused
from services.agent.executor import disk_usage
from services.agent.executor.alloc_dirs import AllocDirs, _mount, _unmount
from services.agent.executor.data_dir import DataDir
from shared.core.runtime.agent_messages import LogLimits, SweepAllocs
from shared.core.state.ids import alloc_id
from shared.errors import ConfigInvalid
from tests.bounds import level
from tests.integration.agent_node import NODE, Node, job, projection, sh, wanted
from tests.integration.exec_node import NEEDED, a_cell, need
from tests.integration.task_log import reader, rotate
from tests.open_files import held_below
from tests.unit.agent.agent_story import Story, alloc

LIMITS = LogLimits(files=3, file_bytes=64 * 1024)
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="LOUD: a tmpfs needs root")


@contextlib.asynccontextmanager
async def node_at(top: Path, spec: dict[str, Any], **more: Any) -> AsyncIterator[Node]:
    """A node whose tasks end with the test."""
    one = Node(top, spec, **more)
    one.turn()
    try:
        yield one
    finally:
        await one.end_tasks()
        await one.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    top = tmp_path / "small"
    top.mkdir()
    _mount(str(top), 8)
    yield top
    assert _unmount(top)


# ---- secrets ----


def is_mounted(path: Path) -> bool:
    """Say whether something is mounted there."""
    return os.path.ismount(path)


@is_root
@pytest.mark.asyncio
async def test_secrets_are_memory_and_go_with_the_allocation(tmp_path: Path) -> None:
    """Each task has a tmpfs of its own, 0700; no mount is left when the allocation is over."""
    script = 'echo key > "$NOMAD_SECRETS_DIR/k"; stat -f -c %T "$NOMAD_SECRETS_DIR"; sleep 0.1'
    spec = job(sh(script, Resources={"SecretsMB": 3}), kind="batch")
    async with node_at(tmp_path, spec, memory=True) as node:
        node.hear(projection(1, 1))
        secrets = node.home.places(alloc_id(1), "main").task / "secrets"
        await node.until(lambda: node.status() == "complete")
        assert node.output().strip() == "tmpfs"
        await level(lambda: not is_mounted(secrets))
        assert list(secrets.iterdir()) == []


@is_root
@pytest.mark.asyncio
async def test_secrets_outlive_the_agent_and_no_longer(tmp_path: Path) -> None:
    """After a crash the next agent finds the mount of what runs, and takes it away when that ends."""
    spec = job(sh('echo key > "$NOMAD_SECRETS_DIR/k"; exec sleep 60'))
    node = Node(tmp_path, spec, memory=True)
    node.turn()
    node.hear(projection(1, 1))
    secrets = node.home.places(alloc_id(1), "main").task / "secrets"
    await node.until(lambda: node.status() == "running")
    await level((secrets / "k").exists)
    await node.close()
    assert is_mounted(secrets)
    async with node_at(tmp_path, spec, memory=True) as again:
        again.hear(projection(2, 1))
        await again.until(lambda: again.status() == "running")
        assert (secrets / "k").read_text() == "key\n"
        again.hear(projection(3))
        await again.until(lambda: again.status() == "complete")
        await level(lambda: not is_mounted(secrets))


@is_root
@pytest.mark.asyncio
async def test_an_isolated_task_has_its_secrets_in_memory(tmp_path: Path) -> None:
    """A task of driver exec, another user in a view of its own, finds the tmpfs, owns it, and nothing of it stays."""
    need(*NEEDED)
    async with a_cell(tmp_path) as cell:
        directories = AllocDirs(cell.home.top)
        run = cell.place("a1")
        directories.prepare(run.places)
        script = 'echo key > "$NOMAD_SECRETS_DIR/k" && cat /secrets/k; stat -f -c %T /secrets'
        end, said = await cell.run(script, run)
        assert (end.code, said) == (0, "key\ntmpfs\n")
        directories.remove("a1")
        assert list((cell.home.top / "alloc").iterdir()) == []


@is_root
def test_nothing_is_mounted_over_what_a_link_points_to(tmp_path: Path) -> None:
    """A task that puts a link where its secrets were gets no mount, and its next start is refused."""
    home = DataDir(tmp_path / "data", NODE)
    directories = AllocDirs(home.top)
    places = home.places("a1", "main")
    places.task.mkdir(parents=True)
    (tmp_path / "precious").mkdir()
    (places.task / "secrets").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="secrets"):
        directories.prepare(places)
    assert not os.path.ismount(tmp_path / "precious")
    directories.remove("a1")
    home.close()


@pytest.mark.parametrize("place", ["local", "secrets", "tmp", "data", "logs"])
def test_preparing_makes_nothing_behind_a_link(tmp_path: Path, place: str) -> None:
    """A link in the place of any directory of a task is refused by name, for good, and nothing is made behind it."""
    home = DataDir(tmp_path / "home", NODE)
    directories = AllocDirs(home.top, memory=False)
    places = home.places("a1", "main")
    (tmp_path / "precious").mkdir()
    parent = places.shared if place in {"data", "logs"} else places.task
    parent.mkdir(parents=True)
    (parent / place).symlink_to(tmp_path / "precious")
    run = DriverRun(alloc_id="a1", task="main", number=1, places=places)
    with pytest.raises(OSError, match=place) as caught:
        directories.prepare(places)
    assert not directories_refused(caught.value).recoverable
    with pytest.raises(StartRefused, match=place) as refused:
        run.make_directories()
    assert not refused.value.recoverable
    # Also what takes over: the link is moved, and refused where it arrives.
    with pytest.raises(OSError, match=place):
        _ = (
            directories.prepare(home.places("a2", "main"), inherit="a1"),
            directories.prepare(places),
        )
    directories.close("a1")
    assert list((tmp_path / "precious").iterdir()) == []
    home.close()


def test_other_users_cannot_list_what_tasks_leave(tmp_path: Path) -> None:
    """The data directory and the folders of allocations may be passed through, and listed by the agent alone."""
    (tmp_path / "home").mkdir(mode=0o755)
    for _life in range(2):
        home = DataDir(tmp_path / "home", NODE)
        for path in (home.top, home.top / "alloc", home.top / "runs"):
            assert path.stat().st_mode & 0o777 == 0o711, path
        home.close()


def test_what_a_crash_left_is_swept(tmp_path: Path) -> None:
    """Directories that no allocation of the journal owns are deleted, mounts first; the others stay."""
    home = DataDir(tmp_path, NODE)
    directories = AllocDirs(home.top)
    for name in ("a1", "a2"):
        directories.prepare(home.places(name, "main"))
    strangers = directories.strangers(("a1",))
    assert strangers == ["a2"]
    directories.sweep(strangers)
    assert [path.name for path in (tmp_path / "alloc").iterdir()] == ["a1"]
    directories.remove("a1")
    assert list((tmp_path / "alloc").iterdir()) == list((tmp_path / "runs").iterdir()) == []
    home.close()


def test_without_a_journal_nothing_is_swept() -> None:
    """An agent whose journal is gone deletes nothing; one that has a journal names what it keeps."""
    assert not Story().did(SweepAllocs)
    (sweep,) = Story().hear(5, alloc()).started().restarted().did(SweepAllocs)
    assert sweep.kept == (alloc_id(7),)


# ---- data of the allocation before ----


@pytest.mark.parametrize("sticky", [True, False])
@pytest.mark.asyncio
async def test_a_sticky_disk_moves_to_the_next_allocation(
    tmp_path: Path,
    sticky: bool,  # noqa: FBT001
) -> None:
    """With a sticky disk data and local files of the replaced allocation are there when the new one starts."""
    script = (
        'cat "$NOMAD_ALLOC_DIR/data/n" "$NOMAD_TASK_DIR/n" 2>&1 | sed "s/.*: //"; '
        'echo $NOMAD_ALLOC_ID > "$NOMAD_ALLOC_DIR/data/n"; echo local > "$NOMAD_TASK_DIR/n"; '
        "exec sleep 60"
    )
    spec = job(sh(script), EphemeralDisk={"SizeMB": 10, "Sticky": sticky})
    async with node_at(tmp_path, spec) as node:
        node.hear(projection(1, 1))
        await node.until(lambda: node.status(1) == "running")
        await level((node.home.places(alloc_id(1), "main").task / "local/n").exists)
        # The new one is wanted while the old one still ends: it waits.
        node.hear(projection(2, 2, previous={2: alloc_id(1)}))
        await node.until(lambda: node.status(2) == "running")
        assert node.status(1) == "complete" or not sticky
        await level(lambda: node.output(2).count("\n") == 2)
        expected = [alloc_id(1), "local"] if sticky else ["No such file or directory"] * 2
        assert node.output(2).splitlines() == expected


# ---- ports ----


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
async def test_a_port_in_use_is_a_clear_reason(tmp_path: Path, kind: int) -> None:
    """A foreign socket on an allocation's port is named; the restart policy tries again when it is gone."""
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        number = taken.getsockname()[1]
        spec = job(
            sh("exec sleep 60"),
            Networks=[{"ReservedPorts": [{"Label": "web", "Value": number}]}],
            RestartPolicy={"Attempts": 10_000, "Interval": 10**13, "Delay": 10**8, "Mode": "fail"},
        )
        async with node_at(tmp_path, spec) as node:
            node.hear(projection(1, 1))
            text = f"port {number} (web) is in use by another process of this node"
            await node.until(
                lambda: node.states and text in [event.message for event in node.task().events]
            )
            taken.close()
            await node.until(lambda: node.status() == "running")


@pytest.mark.asyncio
async def test_a_sibling_may_have_the_port(tmp_path: Path) -> None:
    """What the allocation's own tasks listen on keeps none of its other tasks from starting."""
    script = (
        "exec python3 -c 'import os,socket,time; "
        's=socket.create_server(("", int(os.environ["NOMAD_PORT_web"]))); print("up", flush=True); time.sleep(60)\''
    )
    spec = job(
        sh(script),
        sh("test -n $NOMAD_PORT_web", "then", Lifecycle={"Hook": "poststart"}),
        Networks=[{"DynamicPorts": [{"Label": "web"}]}],
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    async with node_at(tmp_path, spec) as node:
        node.hear(projection(1, 1, ports={1: (number,)}))
        await node.until(lambda: node.states and node.task(name="then").exit_code == 0)
        assert node.status() == "running"


# ---- disk ----


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.asyncio
async def test_too_much_disk_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kill: bool,  # noqa: FBT001
) -> None:
    """An allocation that uses more disk than its ask gets a task event, and is ended with `disk_kill`."""
    monkeypatch.setattr(disk_usage, "DISK_INTERVAL_S", 0.05)
    script = 'head -c 3000000 /dev/zero > "$NOMAD_ALLOC_DIR/data/big"; exec sleep 60'
    spec = job(sh(script), EphemeralDisk={"SizeMB": 1})
    async with node_at(tmp_path, spec, disk_kill=kill) as node:
        node.hear(projection(1, 1))
        await node.until(
            lambda: node.states and any(e.kind == "Disk Exceeded" for e in node.task().events)
        )
        assert node.edge.disk.used_mib[1] >= 3 or kill
        if kill:
            await node.until(lambda: node.status() == "failed" and node.task().state == "dead")
        else:
            assert node.status() == "running"


@is_root
@pytest.mark.asyncio
async def test_a_full_disk_harms_only_whoever_fills_it(small_disk: Path) -> None:
    """A task that fills the disk continues; a start then is refused and says why; the journal stays whole."""
    fill = 'cat /dev/zero > "$NOMAD_ALLOC_DIR/data/big" 2>/dev/null'
    # The second allocation starts again until there is room, and must not fill it again.
    spec = job(
        sh(f'test "$NOMAD_ALLOC_INDEX" != 1 || {fill}; exec sleep 60'),
        RestartPolicy={"Attempts": 100, "Interval": 10**12, "Delay": 10**7, "Mode": "fail"},
    )
    async with node_at(small_disk, spec) as node:
        node.hear(projection(1, 1))
        await node.until(lambda: node.status(1) == "running")
        big = node.home.places(alloc_id(1), "main").shared / "data" / "big"
        await level(lambda: os.statvfs(small_disk).f_bavail == 0)
        node.hear(projection(2, 1, 2))
        await node.until(lambda: 2 in node.states and node.task(2).events)
        said = " ".join(event.message for event in node.task(2).events)
        assert "No space left" in said, said
        assert node.status(1) == "running"
        big.unlink()
        await node.until(lambda: node.status(2) == "running")
    again = DataDir(small_disk, NODE)
    assert again.journal.torn_bytes == 0
    assert len(again.journal.entries) >= 2
    again.close()


@is_root
def test_a_full_disk_is_named_at_the_start(small_disk: Path) -> None:
    """An agent without room names its data directory, the first time and later, and remains the same host."""
    first = DataDir(small_disk / "first", NODE)
    first.close()
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as out:
        while True:
            out.write(b"x" * 4096)
    for name in ("first", "new"):
        with pytest.raises(ConfigInvalid, match=f"{name} cannot be used: No space left"):
            DataDir(small_disk / name, NODE)
    assert held_below(small_disk) == []
    filler.unlink()
    again = DataDir(small_disk / "first", NODE)
    assert again.host_id == first.host_id
    again.close()


def test_measuring_is_bounded_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look counts blocks, not what links point to, and ends after so many entries."""
    home = DataDir(tmp_path / "data", NODE)
    directories = AllocDirs(home.top, memory=False)
    places = home.places("a1", "main")
    directories.prepare(places)
    (tmp_path / "huge").write_bytes(b"x" * (5 << 20))
    (places.task / "local" / "out").symlink_to(tmp_path)
    (places.shared / "data" / "mine").write_bytes(b"x" * (2 << 20))
    found = directories.measure("a1")
    assert (found.used_mib, found.is_partial) == (3, False)
    for n in range(50):
        (places.shared / "data" / f"f{n}").touch()
    monkeypatch.setattr("services.agent.executor.alloc_dirs.ENTRIES_MAX", 20)
    assert directories.measure("a1").is_partial
    home.close()


# ---- logs ----


def test_a_pipe_in_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    """A task that puts a pipe where its log was neither holds up the agent nor is read."""
    active = tmp_path / "main.stdout.0"
    os.mkfifo(active)
    with pytest.raises(OSError, match="not a regular file"):
        rotate(active, LIMITS)


def test_readers_follow_neither_pipe_nor_link(tmp_path: Path) -> None:
    """A reader of a log that a task has swapped gets an empty answer at once."""
    (tmp_path / "secret").write_bytes(b"key")
    (tmp_path / "main.stdout.0").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "main.stdout.1")
    assert reader(tmp_path / "main.stdout.0").take() == b""


def test_a_link_in_place_of_the_log_directory_is_not_followed(tmp_path: Path) -> None:
    """What a swapped directory points to is neither rotated nor pruned."""
    (tmp_path / "precious").mkdir()
    for n in range(9):
        (tmp_path / "precious" / f"main.stdout.{n}").write_bytes(b"x" * 200_000)
    (tmp_path / "logs").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="logs"):
        rotate(tmp_path / "logs" / "main.stdout.0", LIMITS)
    assert len(list((tmp_path / "precious").iterdir())) == 9


@is_root
def test_a_log_on_a_full_disk_is_left_as_it_is(small_disk: Path) -> None:
    """Without room for a copy nothing is lost and no half copy stays; with room the log is rotated."""
    active = small_disk / "main.stdout.0"
    text = os.urandom(200_000)
    active.write_bytes(text)
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    with pytest.raises(OSError, match="No space"):
        rotate(active, LIMITS)
    assert sorted(path.name for path in small_disk.iterdir()) == ["ballast", active.name]
    assert active.read_bytes() == text
    ballast.unlink()
    assert rotate(active, LIMITS) > 0


# ---- the whole life ----


@pytest.mark.asyncio
async def test_the_whole_life_on_a_real_node(tmp_path: Path) -> None:
    """Every hook runs in its turn as a process, and a postfail task gets the failed main task in its environment."""

    def say(name: str, hook: str, *, sidecar: bool = False) -> dict[str, Any]:
        rest = "exec sleep 60" if sidecar else "true"
        script = f'echo {name} $CARAVAN_FAILED_TASK $NOMAD_FAILED_EXIT_CODE >> "$NOMAD_ALLOC_DIR/data/order"; {rest}'
        return sh(script, name, Lifecycle={"Hook": hook, "Sidecar": sidecar})

    spec = job(
        say("bye", "poststop"),
        say("tell", "postfail"),
        say("hello", "poststart"),
        sh('sleep 0.3; echo main >> "$NOMAD_ALLOC_DIR/data/order"; exit 3'),
        say("init", "prestart"),
        say("proxy", "prestart", sidecar=True),
        kind="batch",
        RestartFrom="first",
    )
    async with node_at(tmp_path, spec) as node:
        node.hear(projection(1, 1))
        await node.until(lambda: node.status() == "failed" and node.task(name="bye").exit_code == 0)
        order = node.home.places(alloc_id(1), "main").shared / "data" / "order"
        said = order.read_text().split("\n")[:-1]
        assert [line.strip() for line in said] == [
            *("init", "proxy", "hello", "main", "tell main 3", "bye"),
        ]
        assert node.task(name="proxy").state == "dead"
    assert wanted(1).alloc_id == alloc_id(1)
