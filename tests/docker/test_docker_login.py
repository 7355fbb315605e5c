"""A container and the bus of its node: it reaches no port of it, and finds no login."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from shared.bus.server.accounts import Credentials, new_credentials
from shared.bus.server.nats_server import NatsServer, ServerSettings
from tests.docker.box import a_box
from tests.docker.engine import OwnEngine

pytestmark = pytest.mark.asyncio

#: Speaks to the port by every address that a container may know its node by, then looks for a login.
THIEF = r"""
for tool in nc ip find; do command -v $tool || exit 9; done
gateway=$(ip route | sed -n 's/^default via \([^ ]*\).*/\1/p')
test -n "$gateway" && echo "node is $gateway"
for host in 127.0.0.1 "$gateway" host.docker.internal; do
  printf 'CONNECT {"verbose":false}\r\nPING\r\n' | nc -w 5 "$host" PORT
done
cat /proc/*/environ
find / -xdev -type f -size -64k -not -path '/proc/*' -not -path '/sys/*' -exec cat {} + | head -c 4000000
echo; echo looked
"""


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[tuple[NatsServer, Credentials]]:
    """A bus as `caravan up` starts it, and its logins."""
    logins = new_credentials(("n1",))
    server = NatsServer(ServerSettings(data_dir=tmp_path / "bus"), logins)
    server.start()
    try:
        yield server, logins
    finally:
        server.stop()


async def test_a_container_gets_nothing_of_the_bus(
    engine: OwnEngine, top: Path, bus: tuple[NatsServer, Credentials]
) -> None:
    """The port answers on the node's loopback alone, and no file or environment in a container has a password."""
    server, logins = bus
    async with a_box(engine, top) as box:
        port = server.url.rpartition(":")[2]
        end = await box.ended(THIEF.replace("PORT", port))
        said = box.output() + box.output("stderr")
        assert end.code == 0 and "looked" in said, said[-500:]
        assert "node is " in said
        assert "INFO {" not in said and "PONG" not in said, said[:500]
        known = msgspec.to_builtins(logins)
        secrets = [*known["users"].values(), *known["nodes"].values()]
        assert len(secrets) > 5
        assert not [one for one in secrets if one in said]
