"""What a hostile task tries against its node, and gets: cases 38, 39 and 42 of the fault list, for driver exec.

Each attack runs twice: with a view of its own (mount namespace), and with Landlock alone as in an agent that may not
mount. What this machine cannot do is left out loudly.
"""

import os
import pwd
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.agent.drivers.driver import StartRefused
from services.agent.drivers.process.run_record import group_name
from tests.integration.exec_node import (
    NEEDED,
    Cell,
    a_cell,
    a_stranger,
    is_there,
    need,
    set_uid_program,
)

AGENT = os.getpid()
#: The superuser's directory, and the link to the root directory in /proc.
NAMES = {"superuser": pwd.getpwuid(0).pw_dir, "top": "root"}
SECRET = "the-agent-s-own-secret-8371"


@pytest_asyncio.fixture(params=["view", "landlock"])
async def cell(request: Any, tmp_path: Path) -> AsyncIterator[Cell]:
    """A driver that confines files by a view, or by Landlock alone without any namespace."""
    need(*NEEDED)
    without: tuple[str, ...] = ()
    if request.param == "landlock":
        need("landlock")
        without = ("view", "pid", "ipc", "uts")
    tools = set_uid_program(tmp_path / "tools").parent
    async with a_cell(tmp_path, without=without, paths=str(tools)) as made:
        yield made


def leave_victim(top: Path) -> Path:
    """A world-writable file."""
    victim = top / "victim"
    victim.write_text("whole")
    victim.chmod(0o666)
    top.chmod(0o777)
    return victim


def leave_secrets(cell: Cell) -> Path:
    """Another allocation's directory, as open as it can be: the confinement alone stands before it."""
    other = cell.place("other").places.task
    for name in ("secrets/token", "local/data"):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_text(SECRET)
        (other / name).chmod(0o666)
        (other / name).parent.chmod(0o777)
    return other


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "{superuser}/.",
        "{home}/journal",
        "{home}/agent.json",
        "{home}/runs/.",
        "{other}/secrets/token",
        "{other}/local/data",
        "/proc/{agent}/environ",
        "/proc/{agent}/mem",
        "/proc/1/{top}/etc/shadow",
        "/proc/kcore",
        "/sys/kernel/debug/.",
    ],
)
async def test_what_is_not_its_own_cannot_be_read(cell: Cell, path: str) -> None:
    """Neither the node's secrets, nor the agent's files and memory, nor another allocation's can be read."""
    other = leave_secrets(cell)
    where = path.format(home=cell.home.top, other=other, agent=AGENT, **NAMES)
    tries = f"cat {where} || ls {where}; ln -s {where} local/l; cat local/l; ls local/l/"
    _, said = await cell.run(f"{tries}; head -c 9 {where} | od -c | head -1; echo tried")
    assert SECRET not in said
    assert "root:" not in said
    assert said.count("Permission denied") + said.count("No such file") + said.count("cannot") >= 2


@pytest.mark.asyncio
async def test_nothing_is_written_outside(cell: Cell, tmp_path: Path) -> None:
    """No path outside the task's own directories takes a byte, however it is reached."""
    victim = leave_victim(tmp_path)
    targets = [
        victim,
        "/usr/bin/new",
        "/etc/new",
        f"{cell.home.top}/new",
        "/dev/new",
        "/proc/sys/kernel/core_pattern",
    ]
    script = "; ".join(
        f"echo x > {path}; ln -sf {path} local/l; echo x > local/l" for path in targets
    )
    _, said = await cell.run(
        f"{script}; mv local/l {tmp_path}/moved; ln {victim} local/h; echo x > local/h"
    )
    assert victim.read_text() == "whole" or "local/h" not in said
    assert victim.stat().st_nlink == 1
    assert not (tmp_path / "moved").is_symlink()
    assert not is_there("/usr/bin/new") and not is_there("/etc/new")
    assert victim.read_text() == "whole"


@pytest.mark.asyncio
async def test_other_processes_are_out_of_reach(cell: Cell) -> None:
    """A task can neither signal, trace nor list a process that is not its own, of the same user even."""
    with a_stranger() as other:
        script = (
            f"kill -9 {other.pid}; kill -9 {os.getpid()}; cat /proc/{other.pid}/environ; "
            f"ls /proc/{other.pid}/fd; echo survived; ls /proc | grep -c '^[0-9]'"
        )
        _, said = await cell.run(script)
        assert other.poll() is None
        assert "HOME=" not in said


@pytest.mark.asyncio
async def test_a_set_uid_program_gives_no_rights(cell: Cell, tmp_path: Path) -> None:
    """A program that is set-uid root runs as the task's user, without any capability."""
    _, said = await cell.run(
        f"{tmp_path}/tools/become -u; while read -r line; do echo $line; done < /proc/self/status"
    )
    assert "65534" in said.splitlines()
    assert "0\n" not in said.splitlines()
    caps = [line.split()[1] for line in said.splitlines() if line.startswith("Cap")]
    assert [int(text, 16) for text in caps] == [0, 0, 0, 0, 0]
    assert "NoNewPrivs: 1" in said


@pytest.mark.asyncio
async def test_the_kernel_cannot_be_commanded(cell: Cell) -> None:
    """Mounts, namespaces, device nodes, root directories and raw sockets are refused."""
    script = (
        "mount -t tmpfs x local; unshare -U true; unshare -m true; chroot / true; mknod local/n c 1 3; "
        "dmesg | head -1; python3 -c 'import socket; socket.socket(17, 3)'; echo done"
    )
    _, said = await cell.run(script)
    refused = said.count("ermitted") + said.count("denied") + said.count("must be superuser")
    assert refused >= 6, said


@pytest.mark.asyncio
async def test_a_fork_bomb_is_bounded(tmp_path: Path) -> None:
    """A task that forks without end meets its limit; the node continues starting others."""
    need(*NEEDED)
    async with a_cell(tmp_path, pids_limit=24) as cell:
        # The main process forks once: a shell whose fork is refused ends.
        bomb = await cell.start("b() { b | b & }; (b) & exec sleep 300")
        _, said = await cell.run("echo fine", cell.place("a2"))
        assert said == "fine\n"
        groups = cell.driver.groups
        assert groups is not None
        path = groups._of("pids", group_name(bomb.directory))
        assert path is not None
        assert 2 <= int((path / "pids.current").read_text()) <= 24
        await cell.driver.stop(bomb)
        await cell.driver.wait(bomb)


@pytest.mark.asyncio
async def test_a_memory_hog_is_named(tmp_path: Path) -> None:
    """A task that takes more than its memory is killed, its end says so, and one beside it runs on."""
    need(*NEEDED)
    async with a_cell(tmp_path) as cell:
        beside = await cell.start("sleep 300", cell.place("a2"))
        end, _ = await cell.run("exec tail /dev/zero", memory_mib=32)
        assert (end.code, end.signal) == (137, 9)
        assert "out of memory" in end.reason and "32 MiB" in end.reason
        assert is_there(f"/proc/{beside.pid}")


@pytest.mark.asyncio
async def test_memory_max_lets_a_task_grow(tmp_path: Path) -> None:
    """Between its ask and memory_max a task may grow; beyond it ends."""
    need(*NEEDED)
    async with a_cell(tmp_path) as cell:
        grow = "head -c 60000000 /dev/zero | tail | wc -c"
        end, said = await cell.run(grow, memory_mib=16, memory_max_mib=160)
        assert (end.code, end.reason, said.strip()) == (0, "", "60000000")
        end, _ = await cell.run("exec tail /dev/zero", memory_mib=16, memory_max_mib=48)
        assert "48 MiB" in end.reason


@pytest.mark.asyncio
async def test_nothing_of_the_agent_is_in_a_task(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No variable of the agent is in the environment of a task, nor of any process it can see; no descriptor either."""
    monkeypatch.setenv("CARAVAN_NATS_PASSWORD", SECRET)
    monkeypatch.setenv("LANG", SECRET)
    _, said = await cell.run(
        "env; cat /proc/*/environ; cat /proc/*/cmdline; echo; echo /proc/$$/fd/*"
    )
    assert SECRET not in said
    fds = [line for line in said.splitlines() if "/fd/" in line and "$$" not in line][-1].split()
    # 3 is the directory itself, while the shell reads it.
    assert {path.rpartition("/")[2] for path in fds} <= {"0", "1", "2", "3"}


@pytest.mark.asyncio
@pytest.mark.parametrize("work_dir", ["..", "../../..", "local/../../../..", "/../.."])
async def test_work_dir_does_not_lead_out(cell: Cell, work_dir: str) -> None:
    """A working directory with a step up is refused."""
    with pytest.raises(StartRefused, match="work_dir"):
        await cell.start("pwd", config={"work_dir": work_dir})


@pytest.mark.asyncio
async def test_a_link_in_command_or_work_dir_leads_nowhere(cell: Cell, tmp_path: Path) -> None:
    """A program or directory reached through a link that an earlier run left is the view's, or is refused."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    program = outside / "program"
    program.write_text(f"#!/bin/sh\necho {SECRET}\n")
    program.chmod(0o755)
    await cell.run(f"ln -s {outside} local/out")
    with pytest.raises(StartRefused):
        await cell.start("", config={"command": "local/out/program", "args": []})
    try:
        _, said = await cell.run("ls; cat program", config={"work_dir": "local/out"})
    except StartRefused:
        said = ""
    assert SECRET not in said


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["etc", "dev", "proc", "alloc", "usr"])
async def test_a_link_in_the_place_of_a_mount_is_not_followed(tmp_path: Path, name: str) -> None:
    """Where a mount belongs and a link stands, the start is refused and the link's target stays as it was."""
    need(*NEEDED)
    async with a_cell(tmp_path) as cell:
        target = tmp_path / "target"
        target.mkdir()
        task = cell.place().places.task
        task.mkdir(parents=True)
        (task / name).symlink_to(target)
        with pytest.raises(StartRefused, match=name):
            await cell.start("true")
        assert list(target.iterdir()) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("part", ["local", "secrets", "."])
async def test_a_link_in_the_place_of_a_directory_is_not_followed(
    cell: Cell, tmp_path: Path, part: str
) -> None:
    """Where the task's own directory is a link, nothing behind it changes its owner or mode."""
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    task = cell.place().places.task
    place = task if part == "." else task / part
    place.parent.mkdir(parents=True)
    place.symlink_to(target)
    with pytest.raises(StartRefused, match="is not a directory"):
        await cell.start("true")
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert target.stat().st_uid == os.getuid()


@pytest.mark.asyncio
@pytest.mark.parametrize("swap", ["pipe", "link", "hard link", "directory"])
async def test_a_log_that_is_no_file_is_not_written(cell: Cell, tmp_path: Path, swap: str) -> None:
    """A pipe, link or second name in the place of a log is neither waited for nor written through."""
    log = cell.place().places.stdout
    log.parent.mkdir(parents=True)
    target = tmp_path / "target"
    target.write_text("whole")
    if swap == "pipe":
        os.mkfifo(log)
    elif swap == "link":
        log.symlink_to(target)
    elif swap == "hard link":
        log.hardlink_to(target)
    else:
        log.mkdir()
    with pytest.raises(StartRefused, match="not a regular file"):
        await cell.start("echo text")
    assert target.read_text() == "whole"


@pytest.mark.asyncio
async def test_a_task_cannot_take_its_log_away(cell: Cell) -> None:
    """A task writes to its log, by its descriptor and by name, and can neither remove nor replace it."""
    logs = "$NOMAD_ALLOC_DIR/logs"
    script = f"echo one; echo two >> /dev/stdout; rm -f {logs}/*.0; mv {logs}/*out.0 {logs}/x; echo three"
    run = cell.place()
    _, said = await cell.run(script, run)
    assert [line for line in said.splitlines() if line in ("one", "two", "three")] == [
        "one",
        "two",
        "three",
    ]
    assert run.places.stdout.stat().st_uid == 0


@pytest.mark.asyncio
async def test_a_network_of_its_own_has_the_loopback_alone(tmp_path: Path) -> None:
    """With network_mode none a task reaches itself and no other host."""
    need(*NEEDED)
    async with a_cell(tmp_path) as cell:
        _, said = await cell.run("cat /proc/net/dev", config={"network_mode": "none"})
        assert [line.split(":")[0].strip() for line in said.splitlines()[2:]] == ["lo"]
    async with a_cell(tmp_path, allow_host_network=False) as cell:
        _, said = await cell.run("cat /proc/net/dev", cell.place("a2"))
        assert [line.split(":")[0].strip() for line in said.splitlines()[2:]] == ["lo"]
        with pytest.raises(StartRefused, match="ALLOW_HOST_NETWORK"):
            await cell.start("true", config={"network_mode": "host"})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("settings", "more", "says"),
    [
        ({}, {"user": "root"}, "is a system user"),
        ({}, {"user": "0"}, "is a system user"),
        ({}, {"user": "daemon"}, "is a system user"),
        ({}, {"user": "no-such-user"}, "not known"),
        ({"denied_users": "nobody"}, {"user": "nobody"}, "DENIED_USERS"),
        ({}, {"config": {"pid_mode": "host"}}, "ALLOW_HOST_NAMESPACES"),
        ({}, {"config": {"ipc_mode": "host"}}, "ALLOW_HOST_NAMESPACES"),
        ({}, {"config": {"cap_add": ["SYS_ADMIN"]}}, "ALLOWED_CAPS"),
        ({}, {"config": {"comand": "x"}}, "did you mean command?"),
        ({}, {"config": {"command": ""}}, "must name a program"),
        ({}, {"config": {"command": "no-such-program"}}, "not found on this node"),
        ({}, {"config": {"command": "/etc/passwd"}}, "cannot be executed"),
        ({}, {"env": {"A=B": "c"}}, "must not be empty or contain"),
    ],
)
async def test_what_the_operator_does_not_allow_is_refused(
    tmp_path: Path, settings: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    """A task that asks for more than this node gives is refused for good, with the setting that would allow it."""
    need(*NEEDED)
    async with a_cell(tmp_path, **settings) as cell:
        with pytest.raises(StartRefused, match=says.replace("?", r"\?")) as refused:
            await cell.start("true", **more)
        assert not refused.value.recoverable


@pytest.mark.asyncio
async def test_a_capability_that_is_allowed_is_held(tmp_path: Path) -> None:
    """A capability of the operator's list reaches the task, and it alone."""
    need(*NEEDED)
    async with a_cell(tmp_path, allowed_caps="net_bind_service") as cell:
        asked = {"cap_add": ["CAP_NET_BIND_SERVICE"]}
        _, said = await cell.run("grep CapEff /proc/self/status; id -u", config=asked)
        assert int(said.split()[1], 16) == 1 << 10
        assert said.split()[2] == "65534"
