"""Ctrl-C in a query that does not look at signals."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from services.cli.sql.interrupt import interruptible
from shared.archive.database import FactDatabase, SqlInvalid
from tests.bounds import WAIT_S

ROOT = Path(__file__).parents[2]


def press(started: threading.Event) -> None:
    """Ctrl-C that does not end the wait of the main thread: it may come just before that begins."""
    started.wait(WAIT_S)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


def test_ctrl_c_ends_a_long_question() -> None:
    """The database is interrupted until it ends, and the caller hears of Ctrl-C; the next question is answered."""
    database, started = FactDatabase(), threading.Event()
    database.lock_sources({})
    errors: list[Exception] = []

    def work() -> None:
        started.set()
        try:
            database.ask("SELECT count(*) FROM range(1000000000) a, range(1000000) b")
        except SqlInvalid as err:
            errors.append(err)

    threading.Thread(target=press, args=(started,)).start()
    with pytest.raises(KeyboardInterrupt):
        interruptible(work, database.interrupt)
    assert "INTERRUPT" in str(errors[0])
    assert database.ask("SELECT 1").rows == [(1,)]
    database.close()


def test_a_second_ctrl_c_ends_the_process() -> None:
    """Where the work does not listen, the second one is the end, without a word."""
    code = (
        "import threading, sys\n"
        "from services.cli.sql.interrupt import interruptible\n"
        "def work():\n"
        "    print('begun', flush=True); threading.Event().wait()\n"
        "interruptible(work, lambda: print('asked', flush=True))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in (b"begun\n", b"asked\n"):
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
        assert process.stderr.read() == b""


def test_what_the_work_raises_is_raised() -> None:
    """The thread is not seen from outside."""
    assert interruptible(lambda: 7, lambda: None) == 7
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, lambda: None)


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    """A query in the background of a script, whose SIGINT is ignored, is answered though Ctrl-C is pressed."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert interruptible(lambda: signal.raise_signal(signal.SIGINT) or 7, lambda: None) == 7
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
