"""`just profile NAME [SIZE]`: one run of a benchmark with a sampler beside every process of it.

Writes, for each process, NAME.svg (a flame graph), NAME.txt (the hottest frames) and NAME.folded (the stacks) into a
folder that it names, and a table of all processes. Samples are taken while the benchmark's clock runs, or all the time
where it has none. Python processes are sampled by py-spy from outside, so that the product is unchanged; the server is
not Python and appears only in the table of CPU seconds. Next: `flame_graph.py`.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from bench.catalog import BENCHMARKS
from bench.report import flame_graph
from shared.errors import CaravanError

ROOT = Path(__file__).parents[2]
RATE_HZ = 200
#: Where the sampled processes' stacks go; set by this command, read by the harness.
PROFILE_FOLDER_VARIABLE = "CARAVAN_PROFILE"
_START_S, _END_S = 5.0, 30.0


class ProfileRefusedError(CaravanError):
    """These processes cannot be sampled: permission or sampler is missing."""


class Samplers:
    """Samplers of some processes, by name. Raises ProfileRefusedError when one may not look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, pids: Mapping[str, int]) -> None:
        """Begin, and wait until each sampler has found its process."""
        command = find_sampler()
        for name, pid in pids.items():
            with (self._folder / f"{name}.log").open("wb") as log:
                self._running[name] = subprocess.Popen(
                    [
                        *(command, "record", "--pid", str(pid), "--format", "raw"),
                        *("--rate", str(RATE_HZ), "--duration", "3600"),
                        *("--output", str(self._folder / f"{name}.folded")),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        for name in pids:
            self._await_start(name)

    def stop(self) -> None:
        """End them all; each writes what it has."""
        for one in self._running.values():
            if one.poll() is None:
                one.send_signal(signal.SIGINT)
        for one in self._running.values():
            try:
                one.wait(_END_S)
            except subprocess.TimeoutExpired:
                one.kill()
        self._running = {}

    def _await_start(self, name: str) -> None:
        log = self._folder / f"{name}.log"
        deadline = time.monotonic() + _START_S
        while "Sampling process" not in (said := log.read_text(errors="replace")):
            if self._running[name].poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise ProfileRefusedError(sampler_error(said))
            time.sleep(0.02)


def find_sampler() -> str:
    """Find py-spy beside this Python, or on PATH. Raises ProfileRefusedError."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if not found:
        raise ProfileRefusedError("there is no py-spy: run the setup of development again")
    return found


def sampler_error(said: str) -> str:
    """Say in one line why a sampler may not attach."""
    if "ermission" in said or "not permitted" in said or "root" in said:
        return (
            "this user may not look into processes (ptrace is forbidden here): run as root, or with the capability "
            "SYS_PTRACE in a container, or set kernel.yama.ptrace_scope to 0"
        )
    lines = said.strip().splitlines()
    return f"py-spy did not start: {lines[-1] if lines else 'it printed nothing'}"


def write_profiles(folder: Path) -> list[tuple[str, int]]:
    """Draw what was sampled; returns processes and their samples, most first."""
    found = []
    for path in sorted(folder.glob("*.folded")):
        stacks = flame_graph.read(path.read_text().splitlines())
        samples = sum(stacks.values())
        if not samples:
            continue
        path.with_suffix(".svg").write_text(flame_graph.render_svg(stacks, path.stem))
        rows = [f"{'own':>7} {'total':>7}  frame"]
        rows += [
            f"{100 * one.own:6.1f}% {100 * one.total:6.1f}%  {one.frame}"
            for one in flame_graph.hottest_frames(stacks, 60)
        ]
        path.with_suffix(".txt").write_text("\n".join(rows) + "\n")
        found.append((path.stem, samples))
    for log in folder.glob("*.log"):
        log.unlink()
    return sorted(found, key=lambda one: (-one[1], one[0]))


def main(words: list[str]) -> int:
    """Run a benchmark once and write its flame graphs; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="just profile", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("name", help="a benchmark, as `caravan bench` lists them")
    parser.add_argument("size", nargs="?", default="", help="part of its size, like 0.1")
    parser.add_argument("--out", default="", help="folder; else one under .cache/profiles")
    parser.add_argument(
        "--option", action="append", default=[], help="further words of the benchmark"
    )
    asked = parser.parse_args(words)
    try:
        return _profiled(asked)
    except ProfileRefusedError as err:
        print(f"no profile: {err}", file=sys.stderr)
        return 1


def _profiled(asked: argparse.Namespace) -> int:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = (
        Path(asked.out) if asked.out else ROOT / ".cache" / "profiles" / f"{asked.name}-{stamp}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    line = [sys.executable, "-m", "services.cli", "bench", asked.name, "--runs", "1"]
    line += ["--size", asked.size] if asked.size else []
    line += [word for option in asked.option for word in option.split()]
    if not _has_cluster(asked.name):
        line = _sampled(line, folder)
    find_sampler()
    environ = {**os.environ, PROFILE_FOLDER_VARIABLE: str(folder)}
    code = subprocess.run(line, cwd=ROOT, env=environ, check=False).returncode
    found = write_profiles(folder)
    if not found:
        print("no profile: the benchmark ended before anything was sampled", file=sys.stderr)
        return code or 1
    for name, samples in found:
        print(f"{samples / RATE_HZ:8.2f} s  {name}")
    print(f"flame graphs and tables: {folder}")
    return code


def _has_cluster(name: str) -> bool:
    """Whether a benchmark has processes of its own; one that does not exist is left to `caravan bench` to refuse."""
    if name in BENCHMARKS:
        import_module(BENCHMARKS[name])
    return "bench.harness.cluster" in sys.modules


def _sampled(line: list[str], folder: Path) -> list[str]:
    """Run a command as a child of its sampler, which then needs no privilege."""
    where = str(folder / "bench.folded")
    return [
        find_sampler(),
        "record",
        "--format",
        "raw",
        "--rate",
        str(RATE_HZ),
        "--output",
        where,
        "--",
        *line,
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
