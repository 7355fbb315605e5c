"""Device plugins for tests: programs of a few lines, and a module that answers as the bindings of NVIDIA's driver."""

from pathlib import Path

from services.agent.devices.plugin_process import PluginLimits

#: Short, so that a test of a failure waits for what happens and not for its limit.
QUICK = PluginLimits(silence_s=1.0, pause_s=0.05, pause_max_s=0.2, grace_s=0.0)
CARDS = (
    '{"devices": [{"vendor": "acme", "type": "card", "name": "x1", '
    '"attributes": {"memory": {"value": 8, "unit": "GiB"}, "lanes": 16, "fast": true}, '
    '"instances": [{"id": "c0", "group": 1}, {"id": "c1"}]}]}'
)


def program(folder: Path, fingerprint: str, reserve: str = "exit 1", name: str = "cards") -> Path:
    """Write a plugin in shell: what it does for each of its two words."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    text = (
        f'#!/bin/sh\nif [ "$1" = fingerprint ]; then\n{fingerprint}\nelse\nshift\n{reserve}\nfi\n'
    )
    part = folder.parent / f".{name}"
    part.write_text(text, encoding="utf-8")
    part.chmod(0o755)
    part.replace(path)
    return path


FAKE_NVML = '''
"""Answers as pynvml does, by what the file of CARAVAN_FAKE_NVML says."""
import json, pathlib, time

_STATE = pathlib.Path(__file__).with_name("gpus.json")
NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND, NVML_ERROR_TIMEOUT = 3, 6, 10
NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM = 0, 2
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
NVML_DEVICE_MIG_ENABLE = 1
nvmlEventTypeDoubleBitEccError, nvmlEventTypeXidCriticalError = 2, 8


class NVMLError(Exception):
    def __init__(self, value, text=""):
        super().__init__(text or f"code {value}")
        self.value = value


class Box:
    def __init__(self, **fields):
        self.__dict__.update(fields)


def _state():
    return json.loads(_STATE.read_text())


def _of(handle, name):
    found = handle.get(name)
    if found is None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED, "Not Supported")
    return found


def nvmlInit():
    state = _state()
    if state.get("mismatch"):
        raise NVMLError(18, "Driver/library version mismatch")


def nvmlSystemGetDriverVersion():
    return _state()["driver"]


def nvmlDeviceGetCount():
    state = _state()
    if state.get("hang"):
        time.sleep(3600)
    return len(state["gpus"])


def nvmlDeviceGetHandleByIndex(at):
    gpu = _state()["gpus"][at]
    if gpu.get("lost"):
        raise NVMLError(15, "GPU is lost")
    return gpu


def nvmlDeviceGetHandleByUUID(uuid):
    for gpu in _state()["gpus"]:
        for one in (gpu, *gpu.get("parts", ())):
            if one["uuid"] == uuid:
                return one
    raise NVMLError(NVML_ERROR_NOT_FOUND, "Not Found")


def nvmlDeviceGetUUID(handle):
    return handle["uuid"]


def nvmlDeviceGetName(handle):
    return handle["name"]


def nvmlDeviceGetMemoryInfo(handle):
    return Box(total=handle["memory_mib"] << 20)


def nvmlDeviceGetBAR1MemoryInfo(handle):
    return Box(bar1Total=_of(handle, "bar1_mib") << 20)


def nvmlDeviceGetMaxClockInfo(handle, kind):
    return _of(handle, "clocks")[kind // 2]


def nvmlDeviceGetMaxPcieLinkGeneration(handle):
    return _of(handle, "pcie")[0]


def nvmlDeviceGetMaxPcieLinkWidth(handle):
    return _of(handle, "pcie")[1]


def nvmlDeviceGetPowerManagementLimit(handle):
    return _of(handle, "power_mw")


def nvmlDeviceGetPersistenceMode(handle):
    return _of(handle, "persistence")


def nvmlDeviceGetPciInfo(handle):
    return Box(busId="00000000:FF:1F.7")


def nvmlDeviceGetTotalEccErrors(handle, *_):
    return _of(handle, "ecc")


def nvmlDeviceGetMigMode(handle):
    return (1, 1) if _of(handle, "parts") else (0, 0)


def nvmlDeviceGetMaxMigDeviceCount(handle):
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle, at):
    if at >= len(handle["parts"]):
        raise NVMLError(NVML_ERROR_NOT_FOUND, "Not Found")
    return handle["parts"][at]


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part):
    return next(gpu for gpu in _state()["gpus"] if part in gpu.get("parts", ()))


def nvmlDeviceGetMinorNumber(handle):
    return handle.get("minor", 0)


def nvmlDeviceGetGpuInstanceId(part):
    return part["gi"]


def nvmlDeviceGetComputeInstanceId(part):
    return part["ci"]


def nvmlDeviceGetSupportedEventTypes(handle):
    return _of(handle, "events")


def nvmlEventSetCreate():
    return object()


def nvmlDeviceRegisterEvents(handle, kinds, events):
    assert kinds & ~10 == 0


def nvmlEventSetWait_v2(events, timeout_ms):
    for gpu in _state()["gpus"]:
        for xid in gpu.pop("xids", ()):
            if (gpu["uuid"], xid) not in _SEEN:
                _SEEN.add((gpu["uuid"], xid))
                return Box(eventType=8, eventData=xid, device=gpu)
    time.sleep(min(timeout_ms / 1000, 0.05))
    raise NVMLError(NVML_ERROR_TIMEOUT, "Timeout")


_SEEN = set()
'''
