"""A runtime of tasks that run elsewhere, for tests: a process with a unix socket, and its state on disk.

`python cloud_runtime.py FOLDER` serves FOLDER/socket: one JSON line a connection. What it knows is in FOLDER/state.json
before it answers, so that kill -9 at any point forgets nothing. It holds the highest epoch of each slot, as a cloud
would hold it in a tag, and does nothing for a lower one.
"""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

Message = dict[str, Any]


class Runtime:
    """The things by token, and the epochs by slot."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "state.json"
        self.state: Message = {"things": {}, "epochs": {}, "refused": [], "calls": []}
        if self._file.exists():
            self.state = json.loads(self._file.read_text())

    def answer(self, asked: Message) -> Message:
        """Do what is asked, once it is on disk."""
        verb, token = asked["verb"], asked.get("token", "")
        if verb == "list":
            return self.state
        slot, epoch = asked["slot"], asked["epoch"]
        self.state["calls"].append([verb, token, epoch])
        if epoch < self.state["epochs"].get(slot, 0):
            return {"stale": True}
        self.state["epochs"][slot] = epoch
        things = self.state["things"]
        if verb == "start" and token not in things and token not in self.state["refused"]:
            things[token] = {"slot": slot, "exit_code": None, "config": asked["config"]}
        elif verb in ("kill", "abandon") and things.get(token, {}).get("exit_code", 0) is None:
            things[token]["exit_code"] = 137
        elif verb == "finish":
            things[token]["exit_code"] = asked["exit_code"]
        if verb == "abandon" and token not in self.state["refused"]:
            self.state["refused"].append(token)
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(self.state))
        fresh.replace(self._file)
        return {"thing": things.get(token), "refused": token in self.state["refused"]}


def ask(folder: str, **asked: Any) -> Message:
    """Ask a runtime. Raises OSError while it is away."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(5)
        peer.connect(f"{folder}/socket")
        peer.sendall(json.dumps(asked).encode() + b"\n")
        with peer.makefile("rb") as lines:
            line = lines.readline()
    if not line:
        raise OSError("the runtime ended before it answered")
    found: Message = json.loads(line)
    return found


def main() -> None:
    """Serve until killed."""
    os.chdir(sys.argv[1])
    runtime = Runtime(Path())
    with socket.socket(socket.AF_UNIX) as door:
        Path("socket").unlink(missing_ok=True)
        door.bind("socket")
        door.listen(64)
        while True:
            peer, _ = door.accept()
            with peer, peer.makefile("rwb") as lines:
                line = lines.readline()
                if line:
                    lines.write(json.dumps(runtime.answer(json.loads(line))).encode() + b"\n")


if __name__ == "__main__":
    main()
