"""java: a Java program as an isolated process, on top of driver exec.

Decides the command line of the virtual machine, and which one this node has.
"""

import re
import shutil
import subprocess
from pathlib import Path

import msgspec

from services.agent.drivers.driver import DriverRun, raise_option_faults
from services.agent.drivers.exec.driver import ExecDriver
from services.agent.drivers.process.run_record import ProcessRun
from shared.core.runtime.agent_messages import TaskLaunch
from shared.jobspec.drivers.java import read_java

#: A virtual machine that prints no version within this time is ignored.
VERSION_TIMEOUT_S = 20.0
_PATH = "/usr/local/bin:/usr/bin:/bin"
_VERSION = re.compile(r'version "([^"]+)"')
_RELEASE = re.compile(r'^(\w+)="?([^"\n]*)"?$', re.MULTILINE)


class JavaDriver(ExecDriver):
    """The driver."""

    name = "java"

    def fingerprint(self) -> dict[str, str]:
        """Return the attributes of the virtual machine; empty: none, or isolation is off."""
        program = shutil.which("java", path=_PATH)
        if program is None or self.offer.off():
            return {}
        return _from_release(Path(program)) or _from_version_output(program)

    async def start(self, run: DriverRun, launch: TaskLaunch) -> ProcessRun:
        """Start a run."""
        options, faults = read_java(msgspec.json.decode(launch.config))
        raise_option_faults(self.name, faults)
        return await self._start_command(run, launch, ("java", *options.command), options)


def _from_release(program: Path) -> dict[str, str]:
    """Read the release file of the distribution: starting a virtual machine for its version is slow."""
    try:
        text = (program.resolve().parents[1] / "release").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    said = dict(_RELEASE.findall(text))
    if "JAVA_VERSION" not in said:
        return {}
    runtime = f"{said.get('IMPLEMENTOR', '')} {said.get('JAVA_RUNTIME_VERSION', '')}".strip()
    return {
        "driver.java": "1",
        "driver.java.version": said["JAVA_VERSION"],
        "driver.java.runtime": runtime,
        "driver.java.vm": said.get("JVM_VARIANT", ""),
    }


def _from_version_output(program: str) -> dict[str, str]:
    said = version_text([program, "-version"])
    found = _VERSION.search(said)
    if found is None:
        return {}
    lines = [*said.splitlines(), "", "", ""]
    return {
        "driver.java": "1",
        "driver.java.version": found.group(1),
        "driver.java.runtime": lines[1].strip(),
        "driver.java.vm": lines[2].strip(),
    }


def version_text(command: list[str]) -> str:
    """Run a program that prints its version on any output; empty: it did not."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
            env={"PATH": _PATH},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout + done.stderr).decode(errors="replace") if done.returncode == 0 else ""
