"""Tests of the folders without real processes start none: what fails there has no second try, since it is a fault."""

import ast
from collections.abc import Iterator

from tests.second_try import REAL_PROCESSES
from tests.tidy.tree import report, sources

#: A program that runs to its end within the test, once or before a module's tests, depends on nothing beside it.
STARTS = {
    *("Popen", "Thread", "threading.Timer", "start_new_thread", "fork", "NatsServer"),
    *("kill", "killpg", "raise_signal", "pthread_kill"),
    # An application for terminals, with timers of its own; a count that other parts of the runner change.
    *("run_test", "num_fds"),
    *("start_server", "start_unix_server", "HTTPServer", "ThreadingHTTPServer", "create_subprocess_exec"),
}  # fmt: skip
#: Tests of the tests themselves, whose helpers start what they look for.
EXCEPT = {
    "tests/tidy/test_leftovers.py": "a process is left on purpose",
    "tests/unit/cli/test_cli_cluster.py": "a server that is described and not started",
    "tests/unit/cli/test_cli_files.py": "processes that only exist, whose ids a record names",
}


def starts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each call that starts or signals a process, a thread or a server."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            func = node.func
            name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
            if name in STARTS or ast.unparse(func) in STARTS:
                yield node.lineno, name


def test_pure_tests_start_nothing() -> None:
    """No thread, process, server or signal in the folders whose tests run once."""
    found = [
        f"{one.path}:{line}: {name}: move this test to a folder of real processes"
        for one in sources()
        if one.path.startswith("tests/") and one.path.count("/") > 1
        if one.path.split("/")[1] not in REAL_PROCESSES and one.path not in EXCEPT
        for line, name in starts(one.tree)
    ]
    assert not found, report(found)


def test_a_start_is_seen() -> None:
    """The check sees threads, processes and servers."""
    text = "threading.Thread(target=f)\nPopen(['x'])\nawait asyncio.start_server(f)\nos.kill(1, 2)\nrun()"
    assert [name for _, name in sorted(starts(ast.parse(text)))] == [
        "Thread", "Popen", "start_server", "kill",
    ]  # fmt: skip
