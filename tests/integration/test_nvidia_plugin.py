"""GPUs of NVIDIA as a plugin finds them, with a module in the place of the bindings of its driver: no real GPU."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.nodes import Pool
from services.agent.devices.device_plugins import DevicePlugins, nvidia_plugin
from services.agent.devices.plugin_process import PluginLimits
from services.agent.drivers.driver import StartRefused
from shared.core.runtime.agent_messages import TaskLaunch
from tests.bounds import until
from tests.integration.device_programs import FAKE_NVML, QUICK

A100 = {
    "uuid": "GPU-a",
    "name": "NVIDIA A100",
    "memory_mib": 81_920,
    "bar1_mib": 131_072,
    "clocks": [1410, 1593],
    "pcie": [4, 16],
    "power_mw": 400_000,
    "persistence": 1,
    "ecc": 0,
    "events": 15,
    "minor": 3,
}
PART = {"uuid": "MIG-b", "name": "NVIDIA A100 MIG 1g.10gb", "memory_mib": 9_856, "gi": 7, "ci": 0}
OLD = {"uuid": "GPU-c", "name": "Quadro", "memory_mib": 2_048}


class Machine:
    """A machine with a driver and GPUs that a test changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "pynvml.py").write_text(FAKE_NVML, encoding="utf-8")
        self.driver = folder / "nvidiactl"
        self.driver.touch()
        self.set(A100)

    def set(self, *gpus: dict[str, Any], **state: Any) -> None:
        """Change what the driver says, whole."""
        part = self._folder / "next.json"
        part.write_text(json.dumps({"driver": "580.95", "gpus": gpus, **state}), encoding="utf-8")
        part.replace(self._folder / "gpus.json")

    @contextmanager
    def plugins(self, limits: PluginLimits | None = None) -> Iterator[DevicePlugins]:
        """The plugin, started; by default with its own limits."""
        plugin = nvidia_plugin([str(self.driver)], str(self._folder))
        found = DevicePlugins("", [plugin], limits or PluginLimits())
        try:
            found.fingerprint()
            yield found
        finally:
            found.close()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One with one GPU."""
    return Machine(tmp_path)


def devices(pools: tuple[Pool, ...]) -> dict[str, str]:
    """Instance -> why it is unhealthy."""
    return {one.id: one.unhealthy for pool in pools for one in pool.instances}


def test_a_healthy_gpu_has_what_nomads_plugin_says(machine: Machine) -> None:
    """Its UUID as id, attributes with units; what the driver does not know of a GPU is left out."""
    machine.set(A100, OLD)
    with machine.plugins() as found:
        assert found.fingerprint() == {"plugins.device.nvidia": "1"}
        big, old = found.pools()
        assert (big.name, big.vendor, big.model) == ("device.gpu", "nvidia", "NVIDIA A100")
        assert big.attributes == {
            "bar1": "131072 MiB",
            "cores_clock": "1410 MHz",
            "driver_version": "580.95",
            "memory": "81920 MiB",
            "memory_clock": "1593 MHz",
            "pci_bandwidth": "31504 MB/s",
            "persistence_mode": "Enabled",
            "power": "400 W",
        }
        assert old.attributes == {"driver_version": "580.95", "memory": "2048 MiB"}
        assert devices(found.pools()) == {"GPU-a": "", "GPU-c": ""}


def test_parts_of_a_gpu_have_their_own_ids(machine: Machine) -> None:
    """A divided GPU is offered as its parts (MIG), each with its own memory, and not itself."""
    machine.set({**A100, "parts": [PART, {**PART, "uuid": "MIG-d", "gi": 8}]})
    with machine.plugins() as found:
        (pool,) = found.pools()
        assert (pool.model, pool.attributes["memory"]) == (PART["name"], "9856 MiB")
        assert pool.attributes["mig"] == "true"
        assert devices(found.pools()) == {"MIG-b": "", "MIG-d": ""}
        said = asyncio.run(found.reserve("exec", TaskLaunch(devices={"device.gpu": ("MIG-d",)})))
        assert said.env["CUDA_VISIBLE_DEVICES"] == said.env["NVIDIA_VISIBLE_DEVICES"] == "MIG-d"


def test_ecc_and_critical_errors_make_a_gpu_unhealthy(machine: Machine) -> None:
    """An uncorrectable ECC error of one, an XID of another; errors that a program caused do not count."""
    machine.set(
        {**A100, "ecc": 2},
        {**A100, "uuid": "GPU-x", "xids": [79]},
        {**A100, "uuid": "GPU-y", "xids": [31, 13]},
    )
    with machine.plugins() as found:
        until(lambda: devices(found.pools())["GPU-x"] == "XID 79", "the error is noted")
        assert devices(found.pools()) == {
            "GPU-a": "2 uncorrectable ECC errors since the driver was loaded",
            "GPU-x": "XID 79",
            "GPU-y": "",
        }


def test_a_gpu_that_is_lost_stays_known(machine: Machine) -> None:
    """What held it is not lost from sight: it is unhealthy with the driver's reason; others are not affected."""
    machine.set(A100, {**A100, "uuid": "GPU-x"})
    with machine.plugins() as found:
        assert devices(found.pools()) == {"GPU-a": "", "GPU-x": ""}
        machine.set(A100, {**A100, "uuid": "GPU-x", "lost": True})
        sick = {"GPU-a": "", "GPU-x": "the driver says: GPU is lost"}
        until(lambda: devices(found.pools()) == sick, "it is lost")


def test_a_driver_that_hangs_holds_up_nothing(machine: Machine) -> None:
    """The plugin is ended after its time, its GPUs are unhealthy until the driver answers again."""
    machine.set(A100)
    with machine.plugins(QUICK) as found:
        machine.set(A100, hang=True)
        until(lambda: "no line within 1 s" in devices(found.pools())["GPU-a"], "it hangs")
        machine.set(A100)
        until(lambda: devices(found.pools()) == {"GPU-a": ""}, "it is back")


def test_an_upgrade_of_the_driver_begins_anew(machine: Machine) -> None:
    """Versions that differ end the plugin; the next life has the new library, and the new version."""
    machine.set(A100, mismatch=True)
    with machine.plugins(QUICK) as found:
        assert found.pools() == ()
        machine.set(A100, driver="590.1")
        until(lambda: devices(found.pools()) == {"GPU-a": ""}, "it is there")
        assert found.pools()[0].attributes["driver_version"] == "590.1"


def test_without_a_driver_nothing_is_loaded(machine: Machine) -> None:
    """No process, no attribute, no device; when the driver is loaded later the next look finds it."""
    machine.driver.unlink()
    with machine.plugins() as found:
        assert (found.fingerprint(), found.pools()) == ({}, ())
        machine.driver.touch()
        assert found.fingerprint() == {"plugins.device.nvidia": "1"}
        until(lambda: devices(found.pools()) == {"GPU-a": ""}, "it is found")


def test_a_task_sees_the_gpus_that_it_reserved(machine: Machine) -> None:
    """By UUID, in both variables, whatever its own say; a GPU that is gone since fails the start."""
    with machine.plugins() as found:
        held = TaskLaunch(devices={"device.gpu": ("GPU-a",)})
        said = asyncio.run(found.reserve("docker", held))
        assert said.env == dict.fromkeys(
            ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"), "GPU-a"
        )
        machine.set(OLD)
        with pytest.raises(StartRefused, match=r"device plugin nvidia: .* GPU-a \(Not Found\)"):
            asyncio.run(found.reserve("docker", held))
