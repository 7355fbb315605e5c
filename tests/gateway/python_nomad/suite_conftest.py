"""`tests/conftest.py` of python-nomad's suite, which its source archive lacks: its clients."""

import os
import time
from typing import Any

import nomad
import pytest

from tests import common

#: What this suite calls `tests` is not ours.
WAIT_S = float(os.environ["WAIT_S"])


def client(**more: Any) -> nomad.Nomad:
    """A client with the login of the cluster."""
    return nomad.Nomad(
        host=common.IP,
        port=common.NOMAD_PORT,
        verify=False,
        token=common.NOMAD_TOKEN,
        timeout=WAIT_S,
        **more,
    )


@pytest.fixture
def nomad_setup() -> nomad.Nomad:
    """A client."""
    return client()


@pytest.fixture
def nomad_setup_with_namespace() -> nomad.Nomad:
    """A client that names its namespace."""
    return client(namespace=common.NOMAD_NAMESPACE)


@pytest.fixture(autouse=True)
def settled() -> None:
    """Let a test begin when what the one before it asked for was decided: the suite reads right after it writes."""
    deadline = time.monotonic() + WAIT_S
    while any(one["Status"] == "pending" for one in client().evaluations.get_evaluations()):
        assert time.monotonic() < deadline, "an evaluation stays pending"
        time.sleep(0.1)
    while any(one["ClientStatus"] == "pending" for one in client().allocations.get_allocations()):
        assert time.monotonic() < deadline, "an allocation stays pending"
        time.sleep(0.1)
