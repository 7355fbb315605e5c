"""qemu: a virtual machine as an isolated process, on top of driver exec.

Decides the emulator's command line, with only the arguments that the operator allows. The image is a file that the task
sees; an image of the operator is never written to.
"""

import os
import platform
import re
import shutil
from pathlib import Path

import msgspec

from services.agent.drivers.driver import DriverRun, StartRefused, raise_option_faults, split_list
from services.agent.drivers.exec.driver import ExecDriver
from services.agent.drivers.exec.java import version_text
from services.agent.drivers.exec.settings import PREFIX
from services.agent.drivers.launch_values import fill_options, input_variables
from services.agent.drivers.process.run_record import ProcessRun
from shared.core.runtime.agent_messages import TaskLaunch
from shared.jobspec.drivers.exec import IsolationOptions
from shared.jobspec.drivers.qemu import QemuOptions, read_qemu

_PATH = "/usr/local/bin:/usr/bin:/bin"
_VERSION = re.compile(r"version (\S+)")
_KVM = "/dev/kvm"
_MACHINES = {"x86_64": "pc", "aarch64": "virt"}
#: Less memory starts no system.
MEMORY_MIN_MIB = 128


class QemuDriver(ExecDriver):
    """The driver."""

    name = "qemu"

    @property
    def emulator(self) -> str:
        """The emulator for this node's architecture; empty: none."""
        path = os.pathsep.join([_PATH, *split_list(self.settings.paths)])
        return shutil.which(f"qemu-system-{platform.machine()}", path=path) or ""

    def fingerprint(self) -> dict[str, str]:
        """Return the attributes of the emulator; empty: none, or isolation is off."""
        if not self.emulator or self.offer.off():
            return {}
        found = _VERSION.search(version_text([self.emulator, "--version"]))
        if found is None:
            return {}
        kvm = os.access(_KVM, os.R_OK | os.W_OK)
        return {
            "driver.qemu": "1",
            "driver.qemu.version": found.group(1),
            "driver.qemu.accelerators": "kvm,tcg" if kvm else "tcg",
        }

    async def start(self, run: DriverRun, launch: TaskLaunch) -> ProcessRun:
        """Start a run."""
        config = msgspec.json.decode(launch.config)
        options, faults = read_qemu(config)
        raise_option_faults(self.name, faults)
        if not self.emulator:
            raise StartRefused("QEMU is not installed on this node", recoverable=False)
        # What counts is what the emulator is given: texts with the values of inputs.
        filled, faults = read_qemu(fill_options(config, launch, input_variables(launch)))
        raise_option_faults(self.name, faults)
        self._check_args(filled)
        shown = self._shown(filled)
        command = (self.emulator, *emulator_arguments(run, launch, options, ours=not shown))
        devices = (_KVM,) if options.accelerator == "kvm" else ()
        return await self._start_command(
            run, launch, command, IsolationOptions(), devices=devices, shown=shown
        )

    def _check_args(self, options: QemuOptions) -> None:
        allowed = split_list(self.settings.qemu_args)
        for word in options.args:
            name = word.split("=", 1)[0]
            if word.startswith("-") and name not in allowed and "*" not in allowed:
                text = f"args: {name[:40]} is not allowed on this node ({PREFIX}QEMU_ARGS)"
                raise StartRefused(text, recoverable=False)
        if options.args and not options.args[0].startswith("-"):
            raise StartRefused("args: first argument must be an option", recoverable=False)

    def _shown(self, options: QemuOptions) -> tuple[str, ...]:
        """The operator's directory that holds the image; empty: the image is the task's own."""
        if not options.image_path.startswith("/"):
            return ()
        # The resolved path counts.
        real = Path(options.image_path).resolve()
        for place in split_list(self.settings.qemu_images):
            if real.is_relative_to(Path(place).resolve()) and real == Path(options.image_path):
                return (place,)
        if options.image_path.startswith(("/local/", "/alloc/")):
            return ()
        text = f"image_path is not below the task's directory, nor allowed ({PREFIX}QEMU_IMAGES)"
        raise StartRefused(text, recoverable=False)


def emulator_arguments(
    run: DriverRun, launch: TaskLaunch, options: QemuOptions, *, ours: bool
) -> list[str]:
    """Build the emulator's arguments. `ours`: the image is the task's own, and is written to."""
    memory_mib = max(launch.memory_mib, MEMORY_MIN_MIB)
    machine = _MACHINES.get(platform.machine(), "none")
    drive = f"file={options.image_path},if={options.drive_interface}"
    words = ["-machine", f"type={machine},accel={options.accelerator}"]
    words += ["-name", re.sub(r"[^A-Za-z0-9_.-]", "_", run.task)[:60], "-m", f"{memory_mib}M"]
    words += ["-drive", drive if ours else f"{drive},snapshot=on", "-nographic"]
    forwards = []
    for label, inside in sorted(options.port_map.items()):
        if label not in launch.ports:
            raise StartRefused(f"port_map: the group has no port {label[:40]!r}", recoverable=False)
        # In a network of the group its port leads to the emulator, which leads on.
        outside = launch.ports[label][1 if launch.network.address else 0]
        forwards += [f"hostfwd={kind}::{outside}-:{inside}" for kind in ("udp", "tcp")]
    if forwards:
        words += ["-netdev", ",".join(["user,id=user.0", *forwards])]
        words += ["-device", "virtio-net,netdev=user.0"]
    if options.accelerator == "kvm":
        words += ["-cpu", "host"]
    return [*words, *options.args]
