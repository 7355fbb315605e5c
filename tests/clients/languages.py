"""The foreign clients: what each needs on the machine, how it is fetched, built and run. Knows nothing of Caravan.

Nothing is written beside the sources: they are copied into a folder of the cache, named for what pins the versions,
and fetched and built there, once. CARAVAN_CACHE says where the cache is, else it is .cache, which git ignores.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.bounds import LONG_S, WAIT_S

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("CARAVAN_CACHE") or HERE.parents[1] / ".cache") / "clients"
FETCHED = ".fetched"
#: A cold build in Rust takes 45 s of processor time; a busy machine makes minutes of it.
STEP_S = 2 * LONG_S
TOO_LONG = f"it took longer than {STEP_S:g} s"
#: What running a client beside its source leaves there.
LEFT = shutil.ignore_patterns("node_modules", "target", "lib", "Cargo.lock")


class NotHere(Exception):
    """A toolchain that is missing, too old for the client's libraries, or cannot fetch what it needs."""


class Language(NamedTuple):
    """One client. Commands run in its folder of the cache."""

    name: str
    client: tuple[str, ...] = ()
    #: the ten lines of the page: the file they are written to, and what runs it; empty: none.
    ten_file: str = ""
    ten: tuple[str, ...] = ()
    #: programs that must be there; `version` asks for the release, `least` is the first that will do.
    tools: tuple[str, ...] = ()
    version: tuple[str, ...] = ()
    least: tuple[int, int] = (0, 0)
    #: the file that pins versions.
    pins: str = ""
    fetch: tuple[str, ...] = ()
    build: tuple[str, ...] = ()
    #: where the sources are; None: in a folder beside this file.
    source: Path | None = None


JAVA = ("java", "-Dfile.encoding=UTF-8", "-cp", "lib/*")
LANGUAGES = (
    Language(
        "bash",
        client=("bash", "client.sh"),
        ten_file="ten.sh",
        ten=("bash", "ten.sh"),
        tools=("bash",),
        version=("bash", "--version"),
        least=(4, 1),
    ),
    Language(
        "python",
        client=(sys.executable, "client.py"),
        ten_file="ten.py",
        ten=(sys.executable, "ten.py"),
    ),
    Language(
        "node",
        client=("node", "client.mjs"),
        ten_file="ten.mjs",
        ten=("node", "ten.mjs"),
        tools=("node", "npm"),
        version=("node", "--version"),
        least=(18, 0),
        pins="package-lock.json",
        fetch=("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"),
    ),
    Language(
        "go",
        client=("bin/caravan-client",),
        ten_file="ten/main.go",
        ten=("bin/ten",),
        tools=("go",),
        version=("go", "version"),
        least=(1, 24),
        pins="go.sum",
        fetch=("go", "mod", "download"),
        # Without cgo there is less to compile.
        build=("env", "CGO_ENABLED=0", "go", "build", "-o", "bin/", "./..."),
    ),
    Language(
        "java",
        client=(*JAVA, "Client.java"),
        ten_file="Submit.java",
        ten=(*JAVA, "Submit.java"),
        tools=("java", "javac", "mvn"),
        version=("java", "--version"),
        least=(17, 0),
        pins="pom.xml",
        fetch=("mvn", "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"),
    ),
    Language(
        "rust",
        client=("target/debug/caravan-client",),
        ten_file="src/bin/ten.rs",
        ten=("target/debug/ten",),
        tools=("cargo", "rustc", "cc"),
        version=("cargo", "--version"),
        least=(1, 89),
        pins="Cargo.toml",
        fetch=("cargo", "fetch", "--quiet"),
        build=("cargo", "build", "--quiet", "--offline", "--target-dir", "target"),
    ),
)


class Workshop(NamedTuple):
    """A client that is ready to run."""

    language: Language
    folder: Path
    #: seconds that fetching and building took.
    prepared_s: float

    def run(
        self, command: tuple[str, ...], env: dict[str, str], *, timeout_s: float = LONG_S
    ) -> str:
        """Run one of the client's commands with nothing of ours in its environment; return its stdout."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**kept, **env},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{command} said:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout


@contextlib.contextmanager
def workshop(language: Language, ten_lines: str) -> Iterator[Workshop]:
    """Make a client ready; no other process uses its folder meanwhile. Raises NotHere."""
    check_tools(language)
    source = language.source or HERE / language.name
    pins = (source / language.pins).read_bytes() if language.pins else b""
    folder = CACHE / f"{language.name}-{hashlib.sha256(pins).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        shutil.copytree(
            source,
            folder,
            ignore=LEFT,
            copy_function=lambda one, to: write(Path(to), Path(one).read_bytes()),
            dirs_exist_ok=True,
        )
        if language.ten_file:
            write(folder / language.ten_file, ten_lines.encode())
        if language.fetch and not (folder / FETCHED).exists():
            if fault := call(language.fetch, folder):
                raise NotHere(f"`{' '.join(language.fetch)}` failed: {fault[-300:]}")
            (folder / FETCHED).touch()
        if language.build:
            fault = call(language.build, folder)
            if fault == TOO_LONG:
                raise NotHere(f"`{' '.join(language.build)}`: {fault}")
            assert not fault, f"`{' '.join(language.build)}` failed:\n{fault}"
        yield Workshop(language, folder, time.monotonic() - began)


def write(file: Path, content: bytes) -> None:
    """Write what is new only: build tools look at times, and take a changed file with an old time for a built one."""
    if not file.exists() or file.read_bytes() != content:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)


def check_tools(language: Language) -> None:
    """Look for the toolchain. Raises NotHere."""
    missing = [tool for tool in language.tools if shutil.which(tool) is None]
    if missing:
        raise NotHere(f"no {' and no '.join(missing)} here")
    if language.version:
        told = subprocess.run(
            language.version, capture_output=True, text=True, timeout=WAIT_S, check=False
        ).stdout
        found = re.search(r"(\d+)\.(\d+)", told)
        if found is None or (int(found[1]), int(found[2])) < language.least:
            least = ".".join(map(str, language.least))
            raise NotHere(f"{language.version[0]} is {told.strip()[:60]!r}, {least} is needed")


def call(command: tuple[str, ...], folder: Path) -> str:
    """Run a step of preparation; return what went wrong, empty for nothing."""
    # A machine that is busy is not made busier.
    busy = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
    env = {**os.environ, **({"CARGO_BUILD_JOBS": "1"} if busy else {})}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TOO_LONG
    return (done.stdout + done.stderr).strip() or "no word" if done.returncode else ""
