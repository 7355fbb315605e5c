"""Cases 40 and 42 of the attack table, on a running cluster: who sees what is not his. docs/attacks.md has them all."""

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bounds import WAIT_S
from tests.bus.up import Up

pytestmark = pytest.mark.bus

#: Of the agent's own environment; of a task's environment; written by a task into its secrets.
HOST, GIVEN, WRITTEN = "host-5ecret-a1", "given-5ecret-b2", "written-5ecret-c3"
JOB = """job "%s" {
  type = "%s"
  group "g" {
    restart { attempts = 0 }
    task "t" {
      driver = "%s"
      env {
        %s
      }
      config {
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          %s
          SCRIPT
        ]
      }
      resources {
        cpu = 20
        memory = 32
      }
    }
  }
}
"""
KEEPS = 'echo "written-5ecret-""c3" > $NOMAD_SECRETS_DIR/key; exec sleep 1000'
LOOKS = """env; cat /proc/*/environ /proc/*/cmdline; cat $NOMAD_SECRETS_DIR/../../*/*/secrets/key
          cat $NOMAD_ALLOC_DIR/../../*/t/secrets/key; ls -R / | head -1000; echo looked"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A cluster whose agent has a secret of the node's in its environment."""
    folder = tmp_path_factory.mktemp("secrets")
    for path in (folder, *folder.parents[:3]):
        if path.owner() != "root" or os.geteuid() == 0:
            path.chmod(0o755)
    one = Up(folder, gateway=True, AWS_SECRET_ACCESS_KEY=HOST)
    yield one
    assert one.end() == 0


def start(up: Up, folder: Path, name: str, script: str, **more: str) -> str:
    """Run a job until its allocation has the wanted status; returns its id."""
    kind, driver = more.get("kind", "service"), more.get("driver", "raw_exec")
    path = folder / f"{name}.nomad.hcl"
    path.write_text(JOB % (name, kind, driver, more.get("env", ""), script))
    code, answer = up.run("job", "run", "--detach", str(path))
    assert code == 0, answer
    wanted = "running" if kind == "service" else "complete"

    def there() -> bool:
        found = up.documented("job", "status", name)["allocations"]
        return [one["client_status"] for one in found] == [wanted]

    up.until(there, f"{name} is {wanted}")
    return str(up.documented("job", "status", name)["allocations"][0]["id"])


def isolating(up: Up) -> str:
    """The driver that keeps tasks apart on this machine; where none does, only the environment is looked at."""
    _, node = up.run("node", "status", "node-1")
    assert "driver.raw_exec" in str(node)
    return "exec" if "'driver.exec': '1'" in str(node) else "raw_exec"


def files_below(top: Path) -> dict[str, bytes]:
    """All files, and what stands in them."""
    return {str(one): one.read_bytes() for one in sorted(top.rglob("*")) if one.is_file()}


def test_42_secrets_stay_where_they_are(up: Up, tmp_path: Path) -> None:
    """What the agent, a task's environment and its secrets hold is in no log, metric, answer or other task.

    A job's own environment is in the log, as part of the job, and in nothing else.
    """
    keeper = start(up, tmp_path, "keeper", KEEPS, env=f'TOKEN = "{GIVEN}"')
    nosy = start(up, tmp_path, "nosy", LOOKS, kind="batch", driver=isolating(up))
    top = up.data_dir / "agents" / "node-1"
    assert WRITTEN in (top / "alloc" / keeper / "t" / "secrets" / "key").read_text()
    seen = files_below(top / "alloc" / nosy)
    assert any(b"looked" in text for text in seen.values())
    seen |= files_below(up.data_dir / "logs")
    for port in sorted((up.data_dir / "logs").glob("*.port")):
        url = f"http://127.0.0.1:{port.read_text().strip()}/metrics"
        with urllib.request.urlopen(url, timeout=WAIT_S) as found:
            seen[url] = found.read()
    for words in (("alloc", "status", keeper), ("job", "status", "keeper"), ("node", "status")):
        seen[str(words)] = json.dumps(up.run(*words)[1]).encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            seen[str(process / "cmdline")] = (process / "cmdline").read_bytes()
        except OSError:
            continue
    passwords = json.loads((up.data_dir / "credentials.json").read_text())
    words = [HOST, GIVEN, WRITTEN, *passwords["users"].values(), *passwords["nodes"].values()]
    found = [
        (place, word) for place, text in seen.items() for word in words if word.encode() in text
    ]
    assert found == []
    stored = b"".join(files_below(up.data_dir / "bus").values())
    assert GIVEN.encode() in stored, "the job's own words are in the log: nothing was looked at"
    assert not [word for word in (HOST, WRITTEN) if word.encode() in stored]


READS = (("job", "inspect"), ("job", "history"), ("job", "allocs"))
CHANGES = (("job", "stop"), ("job", "scale"), ("job", "revert"), ("job", "start"))


@pytest.mark.parametrize("asked", ["keep", "keepe", "keeper*", "*", ">", "", "keeper/", "KEEPER"])
def test_40_a_part_of_a_name_is_not_a_name(up: Up, tmp_path: Path, asked: str) -> None:
    """A pattern gets no answer about a job. What reads takes a prefix that only one id has; what changes takes none."""
    if up.run("job", "status", "keeper")[0]:
        start(up, tmp_path, "keeper", KEEPS)
    is_prefix = bool(asked) and "keeper".startswith(asked)
    for words in (*CHANGES, *(() if is_prefix else READS)):
        more = {"scale": ("0",), "revert": ("0",)}.get(words[1], ())
        code, answer = up.run(*words, asked, *more)
        assert code == 1, (words, answer)
        assert answer["error"]["code"] in {"not_found", "invalid", "usage"}, answer
    for words in READS if is_prefix else ():
        code, answer = up.run(*words, asked)
        assert (code, answer["error"]["code"] if code else "") in {(0, ""), (1, "ambiguous")}, (
            answer
        )
    assert up.documented("job", "status", "keeper")["job"]["status"] == "running"
