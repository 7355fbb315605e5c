"""The device plugin for NVIDIA's GPUs: a process of its own, because the driver's library hangs with a sick GPU.

Prints what `device_lines.py` reads, as any plugin does. It ends when the driver cannot be asked, as after an upgrade
that left library and driver of different versions: its next life loads the new library. A GPU is unhealthy after a
critical XID error (until the plugin is started again), for uncorrectable ECC errors since the driver was loaded, and
while it cannot be asked.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: A line is printed so often; the agent looks every 15 s.
LOOK_S = 10.0
#: Errors of programs, not of the GPU, by NVIDIA's list of XIDs.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
_MIB = 1 << 20
#: Generation of PCI Express -> MB/s of one lane.
_LANE_MB = {1: 250, 2: 500, 3: 985, 4: 1_969, 5: 3_938, 6: 7_563}
COMMON_FILES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
#: Which device file is for which instance of a divided GPU.
MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"
_Groups = list[dict[str, Any]]


class Gpus:
    """The GPUs of this machine. `nv`: the module pynvml, or one like it, initialized."""

    def __init__(self, nv: Any) -> None:
        self._nv = nv
        self._events: Any = None
        self._watched: set[str] = set()
        #: uuid of a GPU -> why it is unhealthy.
        self._broken: dict[str, str] = {}
        #: number of a GPU -> what it was when it could be asked.
        self._last: dict[int, _Groups] = {}

    def groups(self) -> _Groups:
        """Return groups of equal devices. Raises NVMLError when the driver cannot be asked at all."""
        driver = _text(self._nv.nvmlSystemGetDriverVersion())
        found: dict[str, dict[str, Any]] = {}
        for at in range(self._nv.nvmlDeviceGetCount()):
            for group in self._gpu(at, driver):
                key = json.dumps([group["name"], group["attributes"]], sort_keys=True)
                kept = found.setdefault(key, {**group, "instances": []})
                kept["instances"] += group["instances"]
        return [found[key] for key in sorted(found)]

    def wait(self, seconds: float) -> None:
        """Wait for so long, and note critical errors of that time."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            if self._events is None:
                time.sleep(left_s)
                return
            try:
                event = self._nv.nvmlEventSetWait_v2(self._events, int(left_s * 1_000) + 1)
                self._note(event)
            except self._nv.NVMLError as err:
                if err.value != self._nv.NVML_ERROR_TIMEOUT:
                    time.sleep(left_s)

    # ---- inside ----

    def _gpu(self, at: int, driver: str) -> _Groups:
        try:
            found = self._last[at] = self._asked(self._nv.nvmlDeviceGetHandleByIndex(at), driver)
        except self._nv.NVMLError as err:
            sick = {"healthy": False, "reason": f"the driver says: {err}"}
            return [
                {**group, "instances": [{**one, **sick} for one in group["instances"]]}
                for group in self._last.get(at, [])
            ]
        return found

    def _asked(self, handle: Any, driver: str) -> _Groups:
        nv = self._nv
        uuid = _text(nv.nvmlDeviceGetUUID(handle))
        self._watch(handle, uuid)
        state: dict[str, Any] = {"group": _numa_node(nv, handle)}
        if reason := self._broken.get(uuid) or self._ecc_errors(handle):
            state |= {"healthy": False, "reason": reason}
        attributes = self._attributes(handle, driver)
        parts = _mig_parts(nv, handle)
        if parts is None:
            name = _text(nv.nvmlDeviceGetName(handle))
            return [_group(name, attributes, {"id": uuid, **state})]
        groups = []
        for part in parts:
            memory = nv.nvmlDeviceGetMemoryInfo(part).total // _MIB
            # The other attributes are of the whole GPU, which its parts share.
            own = {**attributes, "memory": _quantity(memory, "MiB"), "mig": True}
            one = {"id": _text(nv.nvmlDeviceGetUUID(part)), **state}
            groups.append(_group(_text(nv.nvmlDeviceGetName(part)), own, one))
        return groups

    def _attributes(self, handle: Any, driver: str) -> dict[str, Any]:
        """Return what the driver knows of a GPU, under the names of Nomad's plugin; what it does not know is left out.

        Values that change while it works are none of them.
        """
        nv = self._nv
        found: dict[str, Any] = {"driver_version": driver}
        for name, ask in (
            ("memory", lambda: _quantity(nv.nvmlDeviceGetMemoryInfo(handle).total // _MIB, "MiB")),
            ("bar1", lambda: _quantity(_bar1(nv, handle) // _MIB, "MiB")),
            ("cores_clock", lambda: _quantity(_clock(nv, handle, nv.NVML_CLOCK_GRAPHICS), "MHz")),
            ("memory_clock", lambda: _quantity(_clock(nv, handle, nv.NVML_CLOCK_MEM), "MHz")),
            ("pci_bandwidth", lambda: _quantity(_pci_mb(nv, handle), "MB/s")),
            (
                "power",
                lambda: _quantity(nv.nvmlDeviceGetPowerManagementLimit(handle) // 1_000, "W"),
            ),
            ("persistence_mode", lambda: _switch(nv.nvmlDeviceGetPersistenceMode(handle))),
        ):
            try:
                found[name] = ask()
            except nv.NVMLError as err:
                if err.value != nv.NVML_ERROR_NOT_SUPPORTED:
                    raise
        return found

    def _ecc_errors(self, handle: Any) -> str:
        nv = self._nv
        kinds = (nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nv.NVML_VOLATILE_ECC)
        try:
            count = nv.nvmlDeviceGetTotalEccErrors(handle, *kinds)
        except nv.NVMLError as err:
            if err.value != nv.NVML_ERROR_NOT_SUPPORTED:
                raise
            return ""
        return f"{count} uncorrectable ECC errors since the driver was loaded" if count else ""

    def _watch(self, handle: Any, uuid: str) -> None:
        """Have the driver report critical errors of a GPU, where it can."""
        if uuid in self._watched:
            return
        self._watched.add(uuid)
        nv = self._nv
        wanted = nv.nvmlEventTypeXidCriticalError | nv.nvmlEventTypeDoubleBitEccError
        try:
            known = nv.nvmlDeviceGetSupportedEventTypes(handle) & wanted
            if known:
                self._events = self._events or nv.nvmlEventSetCreate()
                nv.nvmlDeviceRegisterEvents(handle, known, self._events)
        except nv.NVMLError:
            # Then its ECC counters and its answers are all that there is to go by.
            return

    def _note(self, event: Any) -> None:
        nv = self._nv
        is_xid = event.eventType == nv.nvmlEventTypeXidCriticalError
        if is_xid and event.eventData in APPLICATION_XIDS:
            return
        text = f"XID {event.eventData}" if is_xid else "double-bit ECC error"
        self._broken[_text(nv.nvmlDeviceGetUUID(event.device))] = text


def reserve(nv: Any, ids: Sequence[str]) -> dict[str, Any]:
    """Return what a task needs to use these GPUs and parts of GPUs; `nv` as above. An unknown id is an error."""
    files = {one for one in COMMON_FILES if Path(one).exists()}
    unknown = []
    for one in ids:
        try:
            files |= _files(nv, nv.nvmlDeviceGetHandleByUUID(one), is_part=one.startswith("MIG-"))
        except nv.NVMLError as err:
            unknown.append(f"{one} ({err})")
    if unknown:
        return {"error": f"the driver does not have {', '.join(unknown)}"}
    names = ",".join(ids)
    env = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"), names)
    return {"env": env, "devices": sorted(files)}


def main(arguments: Sequence[str]) -> int:
    """Run as a plugin: `fingerprint`, or `reserve ID…`; returns the exit code."""
    import pynvml as nv  # noqa: PLC0415 - extra "nvidia".

    try:
        nv.nvmlInit()
        if arguments[:1] == ["reserve"]:
            _print(reserve(nv, arguments[1:]))
            return 0
        gpus = Gpus(nv)
        while True:
            _print({"devices": gpus.groups()})
            gpus.wait(LOOK_S)
    except nv.NVMLError as err:
        _print({"error": f"the driver says: {err}"})
        return 1


def _print(value: dict[str, Any]) -> None:
    # Not print: the end of the agent is a broken pipe here, and nothing to tell.
    os.write(1, json.dumps(value).encode() + b"\n")


def _group(name: str, attributes: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    fixed = {"vendor": "nvidia", "type": "gpu", "name": name}
    return {**fixed, "attributes": attributes, "instances": [one]}


def _quantity(value: int, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


def _switch(value: int) -> str:
    return "Enabled" if value else "Disabled"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _bar1(nv: Any, handle: Any) -> int:
    return int(nv.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total)


def _clock(nv: Any, handle: Any, kind: int) -> int:
    return int(nv.nvmlDeviceGetMaxClockInfo(handle, kind))


def _pci_mb(nv: Any, handle: Any) -> int:
    lane_mb = _LANE_MB.get(nv.nvmlDeviceGetMaxPcieLinkGeneration(handle), 0)
    return lane_mb * int(nv.nvmlDeviceGetMaxPcieLinkWidth(handle))


def _numa_node(nv: Any, handle: Any) -> int:
    """Return the NUMA node of a GPU, which instances are grouped by; 0 where it is not known."""
    try:
        bus = _text(nv.nvmlDeviceGetPciInfo(handle).busId).lower()
        # The driver writes eight digits of the domain, the kernel four.
        text = Path(f"/sys/bus/pci/devices/{bus[-12:]}/numa_node").read_text()
    except (nv.NVMLError, OSError):
        return 0
    return max(int(text), 0) if text.strip().lstrip("-").isdecimal() else 0


def _mig_parts(nv: Any, handle: Any) -> list[Any] | None:
    """Return the instances of a GPU that is divided (MIG); None: it is not."""
    try:
        current, _ = nv.nvmlDeviceGetMigMode(handle)
    except nv.NVMLError as err:
        if err.value != nv.NVML_ERROR_NOT_SUPPORTED:
            raise
        return None
    if current != nv.NVML_DEVICE_MIG_ENABLE:
        return None
    found = []
    for at in range(nv.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append(nv.nvmlDeviceGetMigDeviceHandleByIndex(handle, at))
        except nv.NVMLError as err:
            if err.value != nv.NVML_ERROR_NOT_FOUND:
                raise
    return found


def _files(nv: Any, handle: Any, *, is_part: bool) -> set[str]:
    """Return the device files of a GPU, and those that give access to a part of it. Raises NVMLError."""
    whole = nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_part else handle
    minor = nv.nvmlDeviceGetMinorNumber(whole)
    found = {f"/dev/nvidia{minor}"}
    if is_part:
        gpu = f"gpu{minor}/gi{nv.nvmlDeviceGetGpuInstanceId(handle)}"
        names = {f"{gpu}/access", f"{gpu}/ci{nv.nvmlDeviceGetComputeInstanceId(handle)}/access"}
        try:
            lines = Path(MIG_MINORS).read_text().splitlines()
        except OSError:
            lines = []
        words = [line.split() for line in lines]
        found |= {
            f"/dev/nvidia-caps/nvidia-cap{one[1]}" for one in words if one[:1] and one[0] in names
        }
    return {one for one in found if Path(one).exists()}
