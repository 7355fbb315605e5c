"""Who may use the bus of `caravan up`: its user, and no other process of the machine. docs/attacks.md has the cases."""

import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import not_tested
from tests.attacks.test_secrets import isolating
from tests.bus.up import Up

JOB = """job "%s" {
  type = "batch"
  group "g" {
    restart { attempts = 0 }
    task "t" {
      driver = "%s"
      config {
        command = "/bin/bash"
        args = ["-c", <<-SCRIPT
          %s
          SCRIPT
        ]
      }
      resources {
        cpu = 20
        memory = 64
      }
    }
  }
}
"""
TASK = '{"Name":"t","Driver":"raw_exec","Config":{"command":"id"}}'
STOLEN = '{"Job":{"ID":"stolen","TaskGroups":[{"Name":"g","Tasks":[' + TASK + "]}]}}"
#: Submits a job as a process without a login does, then looks for one. The last word proves that it came to its end.
#: The server may hang up while the attack still writes.
ATTACK = r"""trap '' PIPE; exec 3<>/dev/tcp/127.0.0.1/%(port)s
          printf '%%s\r\n' 'CONNECT {"verbose":false}' 'SUB x 1' 'PUB api.jobs.submit x %(size)s' '%(body)s' PING >&3
          timeout 5 cat <&3
          cat %(data)s/credentials/public %(data)s/credentials.json %(data)s/credentials/* %(data)s/bus/*.conf
          cat /proc/*/environ
          echo looked"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A cluster whose folder others may enter: what they cannot read is kept from them by its own mode."""
    folder = tmp_path_factory.mktemp("login")
    for path in (folder, *folder.parents[:3]):
        if path.owner() != "root" or os.geteuid() == 0:
            path.chmod(0o755)
    one = Up(folder, gateway=True)
    yield one
    assert one.end() == 0


def port_of(up: Up) -> int:
    return int(up.said["url"].rpartition(":")[2])


def is_stolen(up: Up) -> bool:
    """Whether the job of the attack is registered."""
    return up.run("job", "status", "stolen")[0] == 0


def test_a_local_process_without_the_login_submits_nothing(up: Up) -> None:
    """A connection without a user is refused with the reason and closed, and what it sends is dropped."""
    body = STOLEN.encode()
    with socket.create_connection(("127.0.0.1", port_of(up)), 5) as bare:
        calls = b'CONNECT {"verbose":false}\r\nSUB x 1\r\n'
        for subject in (b"api.jobs.submit", b"jobs.submit"):
            calls += b"PUB %s x %d\r\n%s\r\n" % (subject, len(body), body)
        bare.sendall(calls)
        said = b""
        while part := bare.recv(4096):
            said += part
    assert b"Authorization Violation" in said
    assert b"MSG" not in said
    assert not is_stolen(up)
    assert up.run("dead", "list")[1]["total"] == 0


def test_the_login_is_its_owners(up: Up) -> None:
    """Passwords are in files that only their owner opens; no record, output or command line holds one."""
    known = json.loads((up.data_dir / "credentials.json").read_text())
    password = known["users"]["public"]
    assert (up.data_dir / "credentials" / "public").read_text() == f"{password}\n"
    for path in (up.data_dir / "credentials", up.data_dir / "credentials.json"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    for path in (up.data_dir / "credentials").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    shown = [json.dumps(up.said), json.dumps(up.run("context", "list")[1])]
    folder = up.data_dir.parent
    shown += [one.read_text(errors="replace") for one in (folder / "state").rglob("*.json")]
    shown += [one.read_text(errors="replace") for one in (up.data_dir / "logs").iterdir()]
    shown += [(folder / "up.log").read_text()]
    assert len(shown) > 5
    assert not [one for one in shown if password in one]
    assert password in up.client_url


def test_an_isolated_task_gets_nothing(up: Up, tmp_path: Path) -> None:
    """A task of the driver exec reaches the port, but neither submits a job nor finds a password."""
    if isolating(up) != "exec":
        not_tested.missing_feature("the driver exec isolates no task on this machine")
    facts = {"port": port_of(up), "size": len(STOLEN), "body": STOLEN, "data": up.data_dir}
    script = (ATTACK % facts).replace("${", "$${").replace("%{", "%%{")
    path = tmp_path / "thief.nomad.hcl"
    path.write_text(JOB % ("thief", "exec", script))
    code, answer = up.run("job", "run", str(path))
    assert code == 0, answer

    def ended() -> bool:
        found = up.documented("job", "status", "thief")["allocations"]
        return [one["client_status"] for one in found] == ["complete"]

    up.until(ended, f"the thief has looked: {up.run('job', 'status', 'thief')}")
    one = up.documented("job", "status", "thief")["allocations"][0]
    top = up.data_dir / "agents" / "node-1" / "alloc" / one["id"]
    said = "".join(file.read_text() for file in top.rglob("t.std*"))
    assert "looked" in said
    assert "Authorization Violation" in said
    known = json.loads((up.data_dir / "credentials.json").read_text())
    secrets = [*known["users"].values(), *known["nodes"].values()]
    assert not [secret for secret in secrets if secret in said]
    assert not is_stolen(up)
