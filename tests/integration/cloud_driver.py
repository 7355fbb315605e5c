"""A driver plugin whose tasks run elsewhere, written from docs/driver-plugins.md alone.

It keeps nothing: the runtime in the folder that CARAVAN_DRIVER_CLOUD names knows all, by token.
"""

import json
import os
import socket
import threading
import time
from typing import Any

NAME = os.environ["CARAVAN_DRIVER_NAME"]
CLOUD = os.environ["CARAVAN_DRIVER_CLOUD"]
Message = dict[str, Any]
SCHEMA: Message = {
    "type": "object",
    "properties": {"image": {"type": "string"}},
    "additionalProperties": False,
}


class Refused(Exception):
    """An answer that is an error. `is_open`: whether it happened is not known."""

    def __init__(self, text: str, *, is_open: bool) -> None:
        super().__init__(text)
        self.is_open = is_open


def cloud(verb: str, asked: Message, **more: Any) -> Message:
    """Ask the runtime about the run of a request. Raises Refused."""
    line = {"verb": verb, "token": asked["run"], "slot": asked["slot"], "epoch": asked["epoch"]}
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(5)
            # A path that is too long for a socket is short from here.
            peer.connect(f"/proc/self/fd/{FOLDER}/socket")
            peer.sendall(json.dumps({**line, **more}).encode() + b"\n")
            with peer.makefile("rb") as lines:
                found: Message = json.loads(lines.readline())
    except (OSError, ValueError) as err:
        raise Refused(f"the cloud does not answer: {err}", is_open=True) from None
    if found.get("stale"):
        raise Refused("another node tracks it", is_open=False)
    return found


class Driver:
    """One connection to the agent."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.lock = threading.Lock()

    def serve(self) -> None:
        """Answer until the agent ends the connection."""
        with self.peer.makefile("rb") as lines:
            for line in lines:
                threading.Thread(target=self._answer, args=(json.loads(line),), daemon=True).start()

    def _answer(self, asked: Message) -> None:
        said: Message = {"id": asked["id"]}
        try:
            said["result"] = getattr(self, f"_{asked['verb']}")(asked)
        except Refused as err:
            said["error"] = {"message": str(err), "open": err.is_open}
        except AttributeError:
            said["error"] = {"message": f"unknown verb {asked['verb']}"}
        with self.lock:
            self.peer.sendall(json.dumps(said).encode() + b"\n")

    def _info(self, _asked: Message) -> Message:
        return {
            "apis": [1],
            "name": NAME,
            "version": "0.1",
            "capabilities": {"remote": True},
            "config_schema": SCHEMA,
        }

    def _fingerprint(self, _asked: Message) -> Message:
        return {}

    def _start(self, asked: Message) -> Message:
        found = cloud("start", asked, config=asked["config"])
        if found["thing"] is None:
            raise Refused("the run was abandoned", is_open=False)
        return {"handle": {"instance": f"i-{asked['run'][:8]}"}}

    def _recover(self, asked: Message) -> Message:
        thing = cloud("look", asked)["thing"]
        if thing is None:
            return {"state": "gone", "started": "handle" in asked}
        if thing["exit_code"] is None:
            return {"state": "running"}
        return {"state": "exited", "exit_code": thing["exit_code"]}

    def _wait(self, asked: Message) -> Message:
        while True:
            thing = cloud("look", asked)["thing"]
            if thing is None:
                return {"exit_code": None, "reason": "the cloud forgot it"}
            if thing["exit_code"] is not None:
                return {"exit_code": thing["exit_code"]}
            time.sleep(0.1)

    def _signal(self, asked: Message) -> Message:
        cloud("kill", asked)
        return {"delivered": True}

    def _stop(self, asked: Message) -> Message:
        cloud("kill", asked)
        return {}

    def _abandon(self, asked: Message) -> Message:
        cloud("abandon", asked)
        return {}

    def _detach(self, _asked: Message) -> Message:
        return {}

    def _forget(self, _asked: Message) -> Message:
        return {}


if __name__ == "__main__":
    FOLDER = os.open(CLOUD, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as to_agent:
        to_agent.connect(os.environ["CARAVAN_DRIVER_SOCKET"])
        Driver(to_agent).serve()
