"""What a process logs on a terminal: a trace shows lines of code, and no values of variables."""

import io
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from shared.bus.process.settings import configure_logging


class Terminal(io.StringIO):
    """Standard error of a person."""

    def isatty(self) -> bool:
        """It is a terminal."""
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Logging as a process configures it, until the test ends."""
    made = Terminal()
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    monkeypatch.setattr(sys, "stderr", made)
    configure_logging("info")
    yield made
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def test_a_trace_shows_no_value(terminal: Terminal) -> None:
    """Values may be secrets, such as items of a variable."""
    secret = "s3" + "cret"
    try:
        {}[len(secret)]
    except KeyError:
        structlog.get_logger().exception("it.failed")
    text = terminal.getvalue()
    assert "KeyError: 6" in text and "it.failed" in text
    assert secret not in text
