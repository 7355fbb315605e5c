"""Set up .venv from nothing but python3, then run the main job or the tests.

    python3 deploy/bootstrap.py demo     everything set up, then `caravan demo`
    python3 deploy/bootstrap.py test     everything set up, then the gate of tests (docs/testing.md)
    python3 deploy/bootstrap.py test --full    every test, from a fresh seed; installs Debian's packages for it
    python3 deploy/bootstrap.py setup    everything set up, nothing run

Decides how the environment is made: a virtual environment beside pyproject.toml, filled from the hashed locks in this
folder and nothing else, no root needed, nothing done when it is already as the locks say. Arguments after `demo` go to
it, those after `test` to pytest. Standard library only, and in the syntax of Python 3.8, so that an old python prints
one clear line instead of a SyntaxError. Must not know what the program does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
#: This machine's own python, also when another environment, or .venv itself, runs this file.
HOST = str(Path(sys.executable).resolve())
STAMP = VENV / ".caravan-setup"
BUILD_LOCK = ROOT / "deploy" / "requirements-build.txt"
LOCKS = {
    "run": ROOT / "deploy" / "requirements.txt",
    "dev": ROOT / "deploy" / "requirements-dev.txt",
}
#: Test files run side by side (tests/conftest.py says which must not): they wait for real processes, mostly.
LANES = "3"
#: Programs that the gate calls, and those that all tests together call, each with Debian's package.
GATE_PROGRAMS = {"git": "git"}
FULL_PROGRAMS = {
    **GATE_PROGRAMS,
    "busybox": "busybox-static",
    "cargo": "cargo",
    "cc": "gcc",
    "chromium": "chromium",
    "dockerd": "docker.io",
    "go": "golang-go",
    "haproxy": "haproxy",
    "iptables": "iptables",
    "javac": "default-jdk-headless",
    "mvn": "maven",
    "node": "nodejs",
    "npm": "npm",
    "openssl": "openssl",
    "promtool": "prometheus",
}
#: Environment variable of the seed from which the full tier draws; docs/testing.md.
SEED = "CARAVAN_TEST_SEED"
PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet")


def stop(message: str) -> NoReturn:
    """End with one clear line."""
    print("caravan: " + message, file=sys.stderr)
    sys.exit(1)


def say(message: str) -> None:
    """Report progress, apart from what the command itself prints."""
    print("caravan: " + message, file=sys.stderr, flush=True)


def stamp(level: str) -> str:
    """Write down what the environment is made from: level, hash of locks and project, place."""
    import tomllib  # noqa: PLC0415 - newer than the python that must still reach the line about its age

    digest = hashlib.sha256(LOCKS[level].read_bytes() + BUILD_LOCK.read_bytes())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    digest.update(repr([project["project"], project["build-system"]]).encode())
    return f"{level} {digest.hexdigest()} {ROOT}"


def is_set_up(level: str) -> bool:
    """Say whether .venv already is what the locks of this level, or of a larger one, ask for."""
    done = STAMP.read_text() if STAMP.exists() else ""
    levels = ("run", "dev") if level == "run" else ("dev",)
    return works() and done in [stamp(one) for one in levels]


def works() -> bool:
    """Say whether .venv holds a python that starts and is new enough."""
    check = f"import sys; sys.exit(sys.version_info < {OLDEST!r})"
    return PYTHON.exists() and subprocess.call([str(PYTHON), "-c", check]) == 0


def was_moved() -> bool:
    """Say whether .venv was made elsewhere: its scripts name their python by full path."""
    return STAMP.exists() and not STAMP.read_text().endswith(f" {ROOT}")


def run(command: list[str], why: str) -> None:
    """Run one step of the set-up; what it prints goes to stderr, and a failure ends everything."""
    code = subprocess.call(command, stdout=sys.stderr, cwd=str(ROOT), env=environment())
    if code != 0:
        stop(f"setting up failed: {why} (exit {code}); nothing was run")


def environment() -> dict[str, str]:
    """Copy the caller's environment without what would lead python out of .venv."""
    lead_away = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    kept = {key: value for key, value in os.environ.items() if key not in lead_away}
    return {**kept, "PIP_ROOT_USER_ACTION": "ignore"}  # Root writes into .venv alone.


def site_packages() -> str:
    """Name the folder of .venv that holds packages."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.check_output([str(PYTHON), "-c", ask], env=environment(), text=True).strip()


def answers(python: str, module: str, *arguments: str) -> bool:
    """Say whether that python can run a module; what it prints does not matter."""
    command = [python, "-Wignore", "-m", module, *arguments]
    quiet = subprocess.DEVNULL
    return subprocess.call(command, stdout=quiet, stderr=quiet, env=environment()) == 0


def make_venv() -> None:
    """Make an empty virtual environment, by hand where this python has no venv module."""
    if VENV.exists():
        shutil.rmtree(str(VENV))
    if answers(HOST, "venv", "--without-pip", str(VENV)):
        return
    (VENV / "bin").mkdir(parents=True, exist_ok=True)
    PYTHON.symlink_to(HOST)
    (VENV / "bin" / "python3").symlink_to("python")
    (VENV / "pyvenv.cfg").write_text(
        f"home = {Path(HOST).parent}\ninclude-system-site-packages = false\n"
    )
    major, minor = sys.version_info[:2]
    (VENV / "lib" / f"python{major}.{minor}" / "site-packages").mkdir(parents=True)


def find_pip() -> list[str]:
    """Return the command that installs into .venv, with whatever installer this machine has.

    Debian without python3-venv has no ensurepip but may have pip, of any age and barred from the system's own
    packages: `--target` works with all of them.
    """
    inside = str(PYTHON)
    if answers(inside, "pip", "--version") or answers(inside, "ensurepip"):
        return [inside, *PIP]
    if answers(HOST, "pip", "--version"):
        return [HOST, *PIP, "--target", site_packages(), "--upgrade"]
    return stop(
        f"{HOST} has neither pip nor ensurepip; "
        "install one (Debian: python3-venv or python3-pip) and run this again"
    )


def set_up(level: str) -> None:
    """Bring .venv to the locks of one level: "run" for the program, "dev" for its tests too."""
    if is_set_up(level):
        return
    began = time.monotonic()
    if not works() or was_moved():
        make_venv()
    STAMP.unlink(missing_ok=True)
    first = find_pip()
    say(f"setting up .venv from {LOCKS[level].name} (once, about a minute)")
    run([*first, "--require-hashes", "-r", str(BUILD_LOCK)], "installing pip into .venv")
    pip = [str(PYTHON), *PIP]
    run([*pip, "--require-hashes", "-r", str(LOCKS[level])], f"installing {LOCKS[level].name}")
    project = ["--no-deps", "--no-build-isolation", "--force-reinstall", "-e", str(ROOT)]
    run([*pip, *project], "installing the project")
    STAMP.write_text(stamp(level))
    say(f"set up in {time.monotonic() - began:.0f} s")


def missing(programs: dict[str, str]) -> dict[str, str]:
    """Return the programs that are not on PATH, each with its package."""
    return {name: package for name, package in programs.items() if not shutil.which(name)}


def require(programs: dict[str, str]) -> None:
    """End, before anything runs, when a program is missing, with the package that has it."""
    lacking = missing(programs)
    if lacking:
        named = ", ".join(f"{name} (Debian: {package})" for name, package in lacking.items())
        stop(f"not on PATH: {named}; install what is missing and run this again; no test was run")


def install(programs: dict[str, str]) -> None:
    """Install what is missing, where this is root on Debian."""
    packages = sorted(set(missing(programs).values()))
    if not packages or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    say("installing " + " ".join(packages))
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        command = ["apt-get", "-qq", *words]
        if subprocess.call(command, stdout=sys.stderr, env=quiet) != 0:
            stop(f"{' '.join(command)} failed; no test was run")


def run_full(extra: list[str]) -> NoReturn:
    """Become a run of every test, or of those that the caller names, from a seed that is printed."""
    seed = os.environ.get(SEED) or str(int.from_bytes(os.urandom(4), "big"))
    say(f"every test, from seed {seed} ({SEED}={seed} repeats it)")
    chosen = extra or ["tests", "-n", LANES]
    full = {"CARAVAN_FULL": "1", "CARAVAN_ALL_CLIENTS": "1", SEED: seed}
    become_pytest([f"--hypothesis-seed={seed}", *chosen], {**environment(), **full})


def become_pytest(arguments: list[str], env: dict[str, str]) -> NoReturn:
    """Become pytest, so that a signal reaches what it means; it prints each part's time and its summary."""
    os.chdir(str(ROOT))
    common = [str(PYTHON), "-m", "pytest", "--durations=10", "--second-try"]
    os.execve(str(PYTHON), [*common, *arguments], env)


def main(arguments: list[str]) -> int:
    """Set up, then do what was asked."""
    command, extra = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command not in ("demo", "test", "setup"):
        stop(
            "expected one of demo, test, setup: python3 deploy/bootstrap.py demo | test [--full] | setup"
        )
    is_full = command == "test" and "--full" in extra
    if is_full:
        install(FULL_PROGRAMS)
    if command == "test":
        require(FULL_PROGRAMS if is_full else GATE_PROGRAMS)
    set_up("run" if command == "demo" else "dev")
    if command == "demo":
        caravan = str(VENV / "bin" / "caravan")
        os.execve(caravan, [caravan, "demo", *extra], environment())
    if is_full:
        run_full([one for one in extra if one != "--full"])
    if command == "test":
        become_pytest(extra or ["-n", LANES], environment())
    return 0


if __name__ == "__main__":
    if sys.version_info < OLDEST:
        stop(
            "python {}.{} or newer is needed, this is {}.{}".format(*OLDEST, *sys.version_info[:2])
        )
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
