"""Containers that only have a network namespace, which the containers of a group join.

The engine joins containers, not namespaces by path. The image is made here: one static program of a few instructions,
which waits for signals, imported as a layer; no registry is asked. `services/agent/network/` connects the namespace.
"""

import contextlib
import io
import platform
import struct
import tarfile
from typing import Any

import docker
import docker.errors

from services.agent.drivers.docker.container_spec import LABEL, pause_name
from services.agent.drivers.docker.engine import DockerEngine, EngineRefused, EngineUnavailable
from shared.errors import CaravanError

#: Changed with the program, so that an older image is not taken for this one.
IMAGE, TAG = "caravan-pause", "1"
_PROGRAM = "pause"
_BASE = 0x400000
_HEAD_BYTES, _SEGMENT_BYTES = 64, 56
#: Machine number of ELF, and the instructions: a call that waits for a signal, again and again.
_CODE = {
    # pause(2) is call 34.
    "x86_64": (62, bytes.fromhex("b822000000 0f05 ebf7")),
    # ppoll(2) without files and without end is call 73.
    "aarch64": (
        183,
        struct.pack(
            "<8I",
            *(0xD2800000 | register for register in range(5)),
            *(0xD2800928, 0xD4000001, 0x17FFFFF9),
        ),
    ),
}


class PauseContainers:
    """Of one driver. `known`: names of containers that are not swept."""

    def __init__(self, engine: DockerEngine, own: dict[str, str], known: set[str]) -> None:
        self._engine = engine
        self._own = own
        self._known = known

    async def hold(self, alloc_id: str, hostname: str) -> int:
        """Start the container of a group, unless it runs. Returns its pid. Raises CaravanError."""
        name = self._name(alloc_id)
        self._known.add(name)
        return await self._engine.call(
            _start, name, hostname, {**self._own, f"{LABEL}alloc": alloc_id}
        )

    async def holder(self, alloc_id: str) -> int:
        """Return the pid of the container of a group; 0: it does not run, -1: the engine does not answer."""
        name = self._name(alloc_id)
        self._known.add(name)
        try:
            found = await self._engine.call(docker.APIClient.inspect_container, name)
        except EngineRefused:
            return 0
        except EngineUnavailable:
            return -1
        return int(found["State"]["Pid"]) if found["State"]["Running"] else 0

    async def let_go(self, alloc_id: str) -> None:
        """Remove the container of a group, if there is one. Raises CaravanError; the driver's sweep removes it then."""
        name = self._name(alloc_id)
        self._known.discard(name)
        try:
            await self._engine.call(_remove, name)
        except EngineRefused as err:
            if err.status != 404:
                raise

    def _name(self, alloc_id: str) -> str:
        return pause_name(alloc_id, self._own[f"{LABEL}home"])


def pause_program(machine: str) -> bytes:
    """Write the program: an ELF file with one segment. Raises CaravanError for a machine that has none."""
    if machine not in _CODE:
        raise CaravanError(f"containers cannot share a network on {machine}")
    number, code = _CODE[machine]
    size = _HEAD_BYTES + _SEGMENT_BYTES + len(code)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(2, number, 1, _BASE + size - len(code), _HEAD_BYTES, 0, 0),
        *(_HEAD_BYTES, _SEGMENT_BYTES, 1, 0, 0, 0),
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return head + segment + code


def image_layer(machine: str) -> bytes:
    """Pack the program as the only file of an image. Raises CaravanError."""
    program = pause_program(machine)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo(_PROGRAM)
        entry.size, entry.mode = len(program), 0o555
        tar.addfile(entry, io.BytesIO(program))
    return out.getvalue()


def _start(api: docker.APIClient, name: str, hostname: str, labels: dict[str, str]) -> int:
    _ensure_image(api)
    with contextlib.suppress(docker.errors.NotFound):
        found = api.inspect_container(name)
        if found["State"]["Running"]:
            return int(found["State"]["Pid"])
        api.remove_container(name, force=True, v=True)
    made = api.create_container_from_config(_request(hostname, labels), name)  # type: ignore[no-untyped-call]
    api.start(made["Id"])
    return int(api.inspect_container(made["Id"])["State"]["Pid"])


def _request(hostname: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "Image": f"{IMAGE}:{TAG}",
        "Entrypoint": [f"/{_PROGRAM}"],
        "Hostname": hostname,
        "User": "65534:65534",
        "Labels": labels,
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "ReadonlyRootfs": True,
            "PidsLimit": 16,
            "Memory": 16 << 20,
            "IpcMode": "none",
            "LogConfig": {"Type": "none", "Config": {}},
            "RestartPolicy": {"Name": "no"},
        },
    }


def _ensure_image(api: docker.APIClient) -> None:
    try:
        api.inspect_image(f"{IMAGE}:{TAG}")  # type: ignore[no-untyped-call]
    except docker.errors.ImageNotFound:
        layer = image_layer(platform.machine())
        changes = [f'ENTRYPOINT ["/{_PROGRAM}"]']
        api.import_image_from_data(layer, repository=IMAGE, tag=TAG, changes=changes)


def _remove(api: docker.APIClient, name: str) -> None:
    api.remove_container(name, force=True, v=True)
