"""A driver plugin, written from docs/driver-plugins.md alone: a task is a shell command in a session of its own.

`CARAVAN_DRIVER_HABIT` names a bad habit, for the tests of the agent.
"""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

NAME = os.environ["CARAVAN_DRIVER_NAME"]
STATE = Path(os.environ["CARAVAN_DRIVER_STATE"])
HABIT = os.environ.get("CARAVAN_DRIVER_HABIT", "")
#: A file beside the state: it exists, and the habit holds.
SWITCH = STATE / "habit"
#: Keeps one task: it writes the pid of the task and, when it has ended, its exit code.
KEEPER = """
import os, subprocess, sys
def write(name, value):
    open(f"{sys.argv[3]}/{name}.new", "w").write(str(value))
    os.rename(f"{sys.argv[3]}/{name}.new", f"{sys.argv[3]}/{name}")
write("keeper", os.getpid())
task = subprocess.Popen(["/bin/sh", "-c", sys.argv[1]], cwd=sys.argv[2], start_new_session=True)
write("pid", task.pid)
code = task.wait()
write("exit", 128 - code if code < 0 else code)
"""
Message = dict[str, Any]
SCHEMA: Message = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "minLength": 1},
        "retries": {"type": "integer", "minimum": 0, "maximum": 9},
        "mode": {"enum": ["fast", "safe"]},
        "note": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["command"],
    "additionalProperties": False,
}


class Refused(Exception):
    """An answer that is an error."""


class Driver:
    """One connection to the agent."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.lock = threading.Lock()
        self.starting = threading.Lock()
        self.commands: dict[str, subprocess.Popen[bytes]] = {}

    def serve(self) -> None:
        """Answer until the agent ends the connection."""
        with self.peer.makefile("rb") as lines:
            for line in lines:
                threading.Thread(target=self._answer, args=(json.loads(line),), daemon=True).start()

    def _answer(self, asked: Message) -> None:
        """Answer one request."""
        said: Message = {"id": asked["id"]}
        try:
            said["result"] = getattr(self, f"_{asked['verb']}")(asked)
        except Refused as err:
            said["error"] = {"message": str(err), "recoverable": False}
        except AttributeError:
            said["error"] = {"message": f"unknown verb {asked['verb']}"}
        with self.lock:
            self.peer.sendall(json.dumps(said).encode() + b"\n")

    def _info(self, _asked: Message) -> Message:
        """Say what this is."""
        if HABIT == "silent" and SWITCH.exists():
            time.sleep(1000)
        schema = {"type": "object", "oneOf": []} if HABIT == "bad_schema" else SCHEMA
        return {
            "apis": [7] if HABIT == "new_api" else [1, 7],
            "name": NAME,
            "version": "1.2",
            "capabilities": {"exec": True, "later": True},
            "config_schema": schema,
            "max_in_flight": 8,
            "word_of_a_later_api": 1,
        }

    def _fingerprint(self, _asked: Message) -> Message:
        """Say what is here."""
        return {"attributes": {"color": "blue", "docker": "1"}}

    def _start(self, asked: Message) -> Message:
        """Start a run, once."""
        with self.starting:
            folder = STATE / asked["run"]
            if (folder / "void").exists():
                raise Refused("the run was abandoned")
            if not (folder / "begun").exists():
                self._begin(folder, asked)
            pid = wait_for_pid(folder)
        if HABIT == "slow_start" and SWITCH.exists():
            time.sleep(3)
        if HABIT == "huge" and SWITCH.exists():
            with self.lock:
                for _ in range(1 << 14):
                    self.peer.sendall(b"x" * (1 << 16))
        if HABIT == "garbage" and SWITCH.exists():
            return {"handle": "x" * 20_000}
        return {"handle": {"folder": str(folder)}, "pid": pid}

    def _begin(self, folder: Path, asked: Message) -> None:
        """Start the shell of a run."""
        folder.mkdir(exist_ok=True)
        (folder / "begun").touch()
        env = asked["env"]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        outputs = [os.open(asked[one] or os.devnull, flags, 0o644) for one in ("stdout", "stderr")]
        words = [asked["config"]["command"], asked["directories"]["task"], str(folder)]
        subprocess.Popen(
            [sys.executable, "-S", "-c", KEEPER, *words],
            cwd=folder,
            env={"PATH": os.environ["PATH"], **env},
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            start_new_session=True,
        )
        for one in outputs:
            os.close(one)

    def _recover(self, asked: Message) -> Message:
        """Find a run, with or without its handle."""
        folder = STATE / asked["run"]
        if not (folder / "begun").exists():
            return {"state": "gone", "started": False}
        pid = wait_for_pid(folder)
        if pid and kept(folder):
            return {"state": "running", "pid": pid}
        if (folder / "exit").exists():
            return {"state": "exited", **ended(folder)}
        return {"state": "gone", "started": bool(pid), "reason": "its keeper was killed"}

    def _wait(self, asked: Message) -> Message:
        """Wait for the end of a run."""
        folder = STATE / asked["run"]
        while kept(folder):
            time.sleep(0.02)
        if HABIT == "bad_exit" and SWITCH.exists():
            return {"exit_code": "seven"}
        return ended(folder)

    def _forget(self, asked: Message) -> Message:
        """The agent has the end: drop what is known of a run."""
        folder = STATE / asked["run"]
        for one in folder.glob("*"):
            one.unlink()
        if folder.exists():
            folder.rmdir()
        return {}

    def _signal(self, asked: Message) -> Message:
        """Send a signal to the session of a run."""
        return {"delivered": kill(STATE / asked["run"], getattr(signal, asked["signal"]))}

    def _stop(self, asked: Message) -> Message:
        """Kill a run."""
        kill(STATE / asked["run"], signal.SIGKILL)
        return {}

    def _abandon(self, asked: Message) -> Message:
        """Let a run never come alive."""
        folder = STATE / asked["run"]
        folder.mkdir(exist_ok=True)
        (folder / "void").touch()
        with self.starting:
            return self._stop(asked)

    def _stats(self, asked: Message) -> Message:
        """Say what a run uses."""
        pid = wait_for_pid(STATE / asked["run"])
        return {"cpu_ns": 1, "memory_bytes": 4096 if pid else 0}

    def _exec(self, asked: Message) -> Message:
        """Start a command beside a run."""
        self.commands[asked["session"]] = subprocess.Popen(
            asked["command"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return {}

    def _exec_read(self, asked: Message) -> Message:
        """Give the next output; nothing at its end."""
        pipe = self.commands[asked["session"]].stdout
        assert pipe is not None
        data = os.read(pipe.fileno(), 1 << 16)
        return {"stream": 1, "data": base64.b64encode(data).decode()}

    def _exec_write(self, asked: Message) -> Message:
        """Take input; nothing is its end."""
        data, pipe = base64.b64decode(asked["data"]), self.commands[asked["session"]].stdin
        assert pipe is not None
        if data:
            pipe.write(data)
            pipe.flush()
        else:
            pipe.close()
        return {}

    def _exec_wait(self, asked: Message) -> Message:
        """Wait for the end of a command."""
        return {"exit_code": self.commands[asked["session"]].wait()}

    def _exec_close(self, asked: Message) -> Message:
        """End a command."""
        command = self.commands.pop(asked["session"], None)
        if command is not None and command.poll() is None:
            command.kill()
        return {}


def wait_for_pid(folder: Path) -> int:
    """Return the pid of a run, which its keeper writes at once; 0: it never began."""
    for _ in range(500):
        if (folder / "pid").exists():
            return int((folder / "pid").read_text())
        time.sleep(0.01)
    return 0


def alive(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state not in "ZX"


def kept(folder: Path) -> bool:
    """Return whether a run has its keeper, and so no end yet."""
    if not wait_for_pid(folder) or (folder / "exit").exists():
        return False
    return alive(int((folder / "keeper").read_text()))


def kill(folder: Path, number: int) -> bool:
    """Signal the group of a run; returns whether it was there."""
    pid = wait_for_pid(folder) if (folder / "begun").exists() else 0
    if (folder / "exit").exists() or not pid or not alive(pid):
        return False
    os.killpg(pid, number)
    return True


def ended(folder: Path) -> Message:
    """Say how a run ended."""
    if not (folder / "exit").exists():
        return {"exit_code": None, "reason": "its keeper was killed"}
    code = int((folder / "exit").read_text())
    return {"exit_code": code, "signal": code - 128 if code > 128 else 0}


def main() -> None:
    """Connect, and serve."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(os.environ["CARAVAN_DRIVER_SOCKET"])
        Driver(peer).serve()


if __name__ == "__main__":
    main()
