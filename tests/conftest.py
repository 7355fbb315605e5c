"""What holds for every test: generated examples are bounded and repeatable, minutes-long tests are asked for."""

import gc
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from services.cli import global_options, sigint  # noqa: F401 - see pytest_configure
from tests import bounds, leftovers, not_tested, second_try, summary

TESTS = Path(__file__).parent
FULL = not_tested.is_full()

# A deadline, or a check that inputs are made fast, would make a timing a test. The seed is fixed, so that a run
# repeats; `just full` looks further.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "quick", deadline=None, derandomize=True, max_examples=60, suppress_health_check=SLOW
)
hypothesis.settings.register_profile(
    "full", deadline=None, max_examples=1000, print_blob=True, suppress_health_check=SLOW
)
hypothesis.settings.load_profile("full" if FULL else "quick")


#: A folder's tests carry its marker without saying so.
MARKER_OF_FOLDER = {
    "property": "property",
    "sim": "sim",
    "bus": "bus",
    "integration": "bus",
    "e2e": "bus",
    "faults": "bus",
    "bench": "bench",
    "compose": "compose",
    "docker": "docker",
    "attacks": "bus",
    "gateway": "bus",
    "packaging": "bus",
}


#: Where a lane would be busy alone at the end: handed out first, the longest ahead. Beginnings of node ids.
LONG_FIRST = (
    "tests/checks/",
    "tests/compose/",
    "tests/docker/",
    "tests/bus/test_commands.py",
    "tests/faults/",
    "tests/bus/test_lifecycle.py",
    "tests/bus/test_node_rpc.py",
    "tests/bus/",
    "tests/clients/",
    "tests/drivers/",
    "tests/gateway/",
    "tests/docs/",
    "tests/bench/",
    "tests/integration/",
    "tests/attacks/",
    "tests/packaging/",
    "tests/asyncapi/",
    "tests/sim/",
    "tests/property/",
)
#: Each test starts a cluster of its own, or none: they go out one by one.
ONE_BY_ONE = ("tests/checks/", "tests/bench/", "tests/sim/", "tests/docs/test_pages.py")


#: Mounts before the run.
_MOUNTS = pytest.StashKey[frozenset[str]]()
#: The configuration of the process that hands out tests; empty in a lane.
_CONTROLLER: list[pytest.Config] = []
#: Tests that failed since the last one was set up.
_FAILED: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the gate."""
    parser.addoption(
        "--second-try",
        action="store_true",
        help="run a failed test of real processes once more, alone",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Restore Ctrl-C, and name the run for all that it starts.

    A shell's background jobs ignore Ctrl-C, and the command line, once imported, ends at it without a cleanup: imported
    above, it does not do so again. CARAVAN_TEST_WAIT lengthens the last resort with the waits below it.
    """
    if config.option.timeout is None:
        config.option.timeout = float(config.getini("timeout")) * bounds.FACTOR
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        os.environ[leftovers.RUN] = f"{os.getpid()}-{time.time_ns()}"
        config.stash[_MOUNTS] = leftovers.mounts()
        _CONTROLLER.append(config)


def pytest_keyboard_interrupt() -> None:
    """At Ctrl-C end the lanes, too, when they do not end by themselves: xdist would wait ten seconds for them."""
    if _CONTROLLER:
        leftovers.of_run(_CONTROLLER[0], _CONTROLLER[0].stash[_MOUNTS], is_interrupted=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note that a test failed: what it left to the garbage collector is not the next test's."""
    _FAILED.update({report.nodeid} if report.failed else ())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Collect what a failed test of this lane left open, without the warnings that would fail this one."""
    if _FAILED:
        _FAILED.clear()
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """When all lanes have ended: try again what may be, then look at what the run left behind."""
    if hasattr(session.config, "workerinput"):
        return
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    second_try.finish(session, stats)
    is_interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED
    left = leftovers.of_run(
        session.config, session.config.stash[_MOUNTS], is_interrupted=is_interrupted
    )
    if left:
        stats.setdefault("error", []).extend(leftovers.report(one) for one in left)
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by folder, and leave out those marked `full` unless CARAVAN_FULL=1 asks for them (just full)."""
    for item in items:
        marker = MARKER_OF_FOLDER.get(item.path.relative_to(TESTS).parts[0])
        if marker is not None:
            item.add_marker(marker)
    if not FULL:
        full = [item for item in items if item.get_closest_marker("full") is not None]
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if item.get_closest_marker("full") is None]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.nodeid))


def _turn(nodeid: str) -> int:
    """Place of a test in the order in which lanes get work."""
    found = (at for at, start in enumerate(LONG_FIRST) if nodeid.startswith(start))
    return next(found, len(LONG_FIRST))


@pytest.fixture(autouse=True)
def _nothing_chosen() -> None:
    """What the words of a command chose is for its process; a test that ran one here leaves nothing behind."""
    global_options.set_global_options("")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """End with the parts, each failure with its reason, and what was skipped, before pytest's own summary."""
    for line in (
        *summary.table(summary.count_parts(terminalreporter.stats)),
        *summary.failures(terminalreporter.stats),
    ):
        terminalreporter.line(line)
    terminalreporter.line(not_tested.summary(terminalreporter.stats.get("skipped", [])))
    for line in second_try.lines(terminalreporter.stats):
        terminalreporter.line(line)


class _Lanes(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types.
    """Hands out files, because a file's tests share what it started.

    All that needs a container engine is one lane: there is one engine.
    """

    def _split_scope(self, nodeid: str) -> str:
        folder = nodeid.split("/")[1]
        if folder in {"compose", "docker"}:
            return "engine"
        return nodeid if nodeid.startswith(ONE_BY_ONE) else nodeid.split("::", 1)[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Say what may run beside what, where tests run side by side (`-n 3`), in the order of the tests."""
    config.option.loadscopereorder = False
    return _Lanes(config, log)
