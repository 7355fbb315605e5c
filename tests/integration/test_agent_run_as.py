"""An agent that becomes another user keeps its login from the tasks of that user."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.agent.run_as import run_as
from shared.bus.process.settings import RunSettings
from shared.bus.server import accounts
from shared.errors import ConfigInvalid
from tests import not_tested
from tests.bounds import WAIT_S

UNPRIVILEGED = 65534
#: Becomes the user, says what it has, and lives until its stdin ends.
AGENT = """
import os, sys
from pathlib import Path
from services.agent.run_as import run_as
from shared.bus.process.settings import RunSettings
from shared.bus.server.accounts import read_credentials
found = run_as("65534:65534", RunSettings(credentials=sys.argv[1]))
known = read_credentials(Path(found.credentials))
print(os.getresuid(), os.getresgid(), os.getgroups(), known.node_login("n1")[1], flush=True)
sys.stdin.read()
"""
#: What a task of the same user tries: the file, and the agent's memory, descriptors and environment.
TASK = """
import sys
from pathlib import Path
secret, pid = sys.argv[1], sys.argv[2]
tried = [sys.argv[3], f"/proc/{pid}/mem", f"/proc/{pid}/environ"]
tried += [f"/proc/{pid}/fd/{n}" for n in range(16)]
for path in tried:
    try:
        open(path, "rb").read(1 << 16)
    except OSError as err:
        continue
    print("read", path)
print("tried", len(tried))
"""


def test_a_task_of_the_agents_user_cannot_read_its_login(tmp_path: Path) -> None:
    """The agent has its login and the user's rights alone; another process of that user opens nothing of it."""
    if os.geteuid() != 0:
        not_tested.missing_feature("only root can become another user")
    known = accounts.new_credentials(("n1",)).of_node("n1")
    path = tmp_path / "login.json"
    accounts.write_credentials(path, known)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert agent.stdin is not None and agent.stdout is not None
    try:
        ids = (UNPRIVILEGED,) * 3
        told = agent.stdout.readline().decode().strip()
        assert told == f"{ids} {ids} [] {known.nodes['n1']}"
        task = subprocess.run(
            ["/usr/bin/env", "python3", "-c", TASK, "x", str(agent.pid), str(path)],
            user=UNPRIVILEGED,
            group=UNPRIVILEGED,
            extra_groups=(),
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert task.stdout == "tried 19\n"
    finally:
        agent.stdin.close()
        agent.wait(WAIT_S)
        agent.stdout.close()


@pytest.mark.parametrize("user", ["agent", "1:2:3", "1", "-5:x"])
def test_a_wrong_user_is_refused(user: str) -> None:
    """What is not two numbers is named with its variable, and nothing changes."""
    with pytest.raises(ConfigInvalid, match="CARAVAN_AGENT_RUN_AS"):
        run_as(user, RunSettings())
    assert run_as("", RunSettings()) == RunSettings()
