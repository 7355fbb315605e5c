"""One cluster for all clients, the clients made ready once, and a line that says what was not tested."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import pytest

from services.cli.local.processes import processes_using
from tests import not_tested
from tests.bounds import WAIT_S
from tests.clients.languages import LANGUAGES, NotHere, Workshop, workshop

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "any-language.md"
#: What a language's block is called in Markdown, where it is not its name.
FENCES = {"node": "js"}
#: With this set, a client that cannot be tested fails (CI).
ALL = os.environ.get("CARAVAN_ALL_CLIENTS") == "1"

#: language -> what to say of it at the end.
SAID: dict[str, str] = {}


def inbox_prefix(url: str) -> str:
    """Where the user of a URL may listen for answers."""
    return f"_INBOX.{urlsplit(url).username}"


@pytest.fixture(scope="session")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Keep `caravan up` running; the URL of its bus as `caravan context env` prints it."""
    folder = tmp_path_factory.mktemp("clients")
    words = ["up", "--port", "0", "--raw-exec", "--data-dir", str(folder / "data"), "--json"]
    homes = ("XDG_STATE_HOME", "XDG_CONFIG_HOME")
    env = {**os.environ, **{name: str(folder / name.lower()) for name in homes}}
    env.pop("CARAVAN_NATS_URL", None)
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", *words],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    with process.stdout as told:
        line = told.readline()
        assert line, (folder / "up.log").read_text()
        shown = subprocess.run(
            [sys.executable, "-m", "services.cli", "context", "env", "--json"],
            cwd=ROOT,
            env=env,
            capture_output=True,
            check=True,
        )
        yield json.loads(shown.stdout)["url"]
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
    assert processes_using(folder / "data") == []


@pytest.fixture(scope="session")
def ready() -> Iterator[Callable[[str], Workshop]]:
    """Make clients ready by name, each once; skips, saying why, where that cannot be."""
    with contextlib.ExitStack() as held:
        made: dict[str, Workshop | NotHere] = {}

        def get(name: str) -> Workshop:
            if name not in made:
                language = next(one for one in LANGUAGES if one.name == name)
                try:
                    made[name] = held.enter_context(workshop(language, ten_lines(name)))
                except NotHere as fault:
                    made[name] = fault
            found = made[name]
            if isinstance(found, Workshop):
                return found
            return untested(name, found)

        yield get


def untested(name: str, fault: NotHere) -> NoReturn:
    """Leave a client out, or fail: with CARAVAN_FULL=1 or CARAVAN_ALL_CLIENTS=1 every toolchain must be new enough."""
    SAID[name] = f"NOT TESTED: {fault}"
    why = f"the client in {name}: {fault}"
    if ALL:
        pytest.fail(why)
    not_tested.missing_tool(why)


def ten_lines(name: str) -> str:
    """Find a language's ten lines on the page."""
    fence = FENCES.get(name, name)
    found = re.search(rf"^```{fence}\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert found, f"no block of {fence} on the page"
    return found[1]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say of each client how long it took, or that it was not tested."""
    if SAID:
        terminalreporter.section("clients in other languages")
        for name, said in SAID.items():
            terminalreporter.line(f"{name:7} {said}", red=said.startswith("NOT"))
