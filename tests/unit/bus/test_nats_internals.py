"""The internals of nats-py that shared/bus/connection overrides or uses exist (docs/adr/0025)."""

import asyncio
import inspect
from importlib import metadata

import pytest
from nats.aio import transport
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.protocol.parser import Parser

from shared.bus.connection.frame_parser import FrameParser
from shared.bus.connection.nats_client import BusClient

#: The minor version in pyproject.toml.
MINOR = "2.16"
#: Attributes that nats-py sets and shared/bus/connection reads or replaces.
ATTRIBUTES = (
    *("_ps", "_sid", "_subs", "_transport", "_max_payload", "_pending", "_pending_data_size"),
    *("_pongs", "_error_cb"),
)
#: Method -> parameters, of which the first is self.
METHODS = {
    "_read_loop": ["self"],
    "_send_ping": ["self", "future"],
    "_process_msg": ["self", "sid", "subject", "reply", "data", "headers"],
    "_process_op_err": ["self", "e"],
    "_process_pong": ["self"],
}


def test_the_minor_version_is_ours() -> None:
    """The installed nats-py is of the minor version that pyproject.toml pins."""
    assert metadata.version("nats-py").startswith(f"{MINOR}.")


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_exists(name: str) -> None:
    """A client has each attribute that is used here."""
    assert hasattr(Client(), name)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_its_parameters(name: str) -> None:
    """Each method that is overridden or called has the parameters of the pinned version."""
    theirs = inspect.signature(getattr(Client, name))
    assert list(theirs.parameters) == METHODS[name]
    ours = inspect.signature(getattr(BusClient, name))
    assert list(ours.parameters) == METHODS[name]


def test_coroutines_stay_coroutines() -> None:
    """What nats-py awaits is a coroutine function on both sides."""
    for name in ("_read_loop", "_send_ping", "_process_msg", "_process_op_err"):
        assert asyncio.iscoroutinefunction(getattr(Client, name))
        assert asyncio.iscoroutinefunction(getattr(BusClient, name))


def test_the_parser_is_replaceable() -> None:
    """The client feeds `_ps.parse` with bytes; the parser keeps them in `buf` and can be reset."""
    assert "self._ps.parse(" in inspect.getsource(Client._read_loop)
    assert "self._ps" in inspect.getsource(Client)
    assert isinstance(Parser(Client()).buf, bytearray)
    assert issubclass(FrameParser, Parser)
    assert {"parse", "reset"} <= set(vars(Parser))


def test_the_transport_has_a_plain_stream() -> None:
    """A TCP transport holds the reader and writer that FrameProtocol takes over."""
    plain = transport.TcpTransport()
    assert hasattr(plain, "_io_reader")
    assert hasattr(plain, "_io_writer")
    assert "self._buffer = " in inspect.getsource(asyncio.StreamReader.__init__)


def test_a_subscription_has_its_number() -> None:
    """A subscription shows its number as `_id`."""
    assert "_id" in inspect.getsource(Subscription.__init__)
