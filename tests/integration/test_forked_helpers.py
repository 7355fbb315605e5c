"""Helpers that are forked: what they and their parent hold, and how each of them ends."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.agent.inputs import forked_helpers as module
from services.agent.inputs.forked_helpers import Helper, Helpers
from tests.bounds import level

pytestmark = pytest.mark.asyncio

#: A helper that obeys words: it prints, dies or hangs.
OBEDIENT = """
import os, signal, socket
from services.agent.inputs.forking import serve
from services.agent.inputs.helper_rights import UNPRIVILEGED_ID, give_up_rights
def work(agent, parent):
    user = UNPRIVILEGED_ID if os.geteuid() == 0 else -1
    give_up_rights(owner=(user, user), parent_pid=parent, limits={})
    with agent.makefile("rb") as lines:
        for line in lines:
            word = line.strip().decode()
            if word == "who":
                agent.sendall(f"{os.getpid()} {os.getppid()} {os.geteuid()} {sorted(os.environ)}\\n".encode())
            elif word == "raise":
                raise ValueError("a fault of its own")
            elif word == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif word == "hang":
                signal.pause()
serve(socket.socket(fileno=0), work)
"""
LINE_BYTES_MAX = 1 << 16
ROOT = Path(__file__).parents[2]


@pytest_asyncio.fixture
async def helpers() -> AsyncIterator[Helpers]:
    made = Helpers(OBEDIENT)
    yield made
    made.close()


async def who(helper: Helper) -> tuple[int, int, int, str]:
    """Its pid, its parent, its user, and the names of its environment."""
    pid, parent, user, names = (await helper.ask(b"who")).decode().split(" ", 3)
    return int(pid), int(parent), int(user), names.strip()


def status(pid: int, name: str) -> str:
    """One line of what the kernel says of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(one.split(":")[1].strip() for one in lines if one.startswith(f"{name}:"))


def descriptors(pid: int) -> list[str]:
    """What a process has open."""
    found = (str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return sorted(path.partition(":")[0] for path in found)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and status(pid, "State")[0] != "Z"


async def test_helpers_have_one_parent_and_nothing_of_the_agent(
    helpers: Helpers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither environment nor descriptors, of the agent or of another helper; those of root are another user's."""
    monkeypatch.setenv("AGENT_SECRET", "marker")
    async with helpers.begin(LINE_BYTES_MAX) as one, helpers.begin(LINE_BYTES_MAX) as other:
        pid, parent, user, names = await who(one)
        second, same, _, _ = await who(other)
        assert (parent == same, pid != second, os.getpid() not in {pid, parent}) == (
            True,
            True,
            True,
        )
        assert names in {"['PATH']", "['LC_CTYPE', 'PATH']"}, "Python may set LC_CTYPE itself"
        if os.geteuid() == 0:
            assert user == 65_534
            # kill, setgid and setuid: to end helpers, and to let them become that user.
            assert int(status(parent, "CapEff"), 16) == 0b1110_0000
            assert int(status(pid, "CapEff"), 16) == 0
        for process in (pid, second):
            assert descriptors(process) == ["/dev/null"] * 3 + ["socket"]
        assert status(parent, "NoNewPrivs") == status(pid, "NoNewPrivs") == "1"


async def test_one_that_dies_says_why_and_the_others_work_on(helpers: Helpers) -> None:
    """A fault of its own, and a signal that its parent saw."""
    async with helpers.begin(LINE_BYTES_MAX) as lasting:
        for word, reason in (
            (b"raise", "ValueError: a fault of its own"),
            (b"die", "killed by SIGKILL"),
        ):
            async with helpers.begin(LINE_BYTES_MAX) as helper:
                assert (await helper.ask(word)).strip() == b""
                assert await helper.last_words() == reason
        assert (await who(lasting))[0]


async def test_one_that_is_not_awaited_any_more_is_killed(helpers: Helpers) -> None:
    """Whatever it does, it is gone at the end of the agent's context: what it made changes no more."""
    async with helpers.begin(LINE_BYTES_MAX) as helper:
        pid, parent, _, _ = await who(helper)
        asking = asyncio.create_task(helper.ask(b"hang"))
        await asyncio.sleep(0)
    assert not is_alive(pid)
    await asyncio.gather(asking, return_exceptions=True)
    assert is_alive(parent)


async def test_a_parent_that_was_killed_is_begun_again(helpers: Helpers) -> None:
    """Its helpers die with it, which is a failure that may pass; the next one has another parent."""
    async with helpers.begin(LINE_BYTES_MAX) as helper:
        pid, parent, _, _ = await who(helper)
        os.kill(parent, 9)
        assert await helper.ask(b"hang") == b""
    await level(lambda: not is_alive(pid))
    async with helpers.begin(LINE_BYTES_MAX) as helper:
        assert (await who(helper))[1] != parent


async def test_a_parent_ends_with_the_agent_and_without_work(
    helpers: Helpers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes memory while it lives: without work for a while it is ended, but never while a helper works."""
    monkeypatch.setattr(module, "IDLE_S", 0.0)
    async with helpers.begin(LINE_BYTES_MAX) as helper:
        _, parent, _, _ = await who(helper)
        async with helpers.begin(LINE_BYTES_MAX):
            pass
        assert (await who(helper))[1] == parent
    await level(lambda: not is_alive(parent))
    async with helpers.begin(LINE_BYTES_MAX) as helper:
        _, parent, _, _ = await who(helper)
        helpers.close()
    await level(lambda: not is_alive(parent))


async def test_nothing_outlives_an_agent_that_was_killed() -> None:
    """Neither the helper, whatever it does, nor its parent."""
    code = (
        "import asyncio\n"
        "from services.agent.inputs.forked_helpers import Helpers\n"
        "async def main():\n"
        f"    async with Helpers({OBEDIENT!r}).begin(1 << 16) as helper:\n"
        "        print((await helper.ask(b'who')).decode(), end='', flush=True)\n"
        "        await helper.ask(b'hang')\n"
        "asyncio.run(main())\n"
    )
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert agent.stdout is not None
    pid, parent = map(int, (await agent.stdout.readline()).split()[:2])
    agent.kill()
    await agent.wait()
    await level(lambda: not is_alive(pid) and not is_alive(parent))


async def test_a_parent_that_cannot_begin_says_why() -> None:
    """The last line of its error is the reason."""
    broken = Helpers("import no_such_module")
    async with broken.begin(LINE_BYTES_MAX) as helper:
        assert await helper.ask(b"who") == b""
        assert "No module named 'no_such_module'" in await helper.last_words()
    broken.close()
