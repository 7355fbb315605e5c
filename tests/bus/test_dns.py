"""Services in DNS on a real cluster: they appear with their ports, and leave with a failed check or a stop."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dnslib  # type: ignore[import-untyped]
import pytest

from shared.bus.server.nats_server import free_port
from tests.bounds import WAIT_S
from tests.bus.test_service_directory import job
from tests.bus.up import Up

pytestmark = pytest.mark.bus


class Named:
    """A cluster of one node that answers by DNS."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        place = f"127.0.0.1:{self.port}"
        self.up = Up(folder, one_process=True, CARAVAN_AGENT_DNS=place, CARAVAN_AGENT_DNS_TTL="1")

    def ask(self, name: str, kind: str = "A") -> Any:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.settimeout(WAIT_S)
            one.sendto(dnslib.DNSRecord.question(name, kind).pack(), ("127.0.0.1", self.port))
            return dnslib.DNSRecord.parse(one.recv(65_535))

    def answer(self, name: str, kind: str = "A") -> tuple[str, list[str]]:
        """The code and the records of an answer."""
        found = self.ask(name, kind)
        return dnslib.RCODE[found.header.rcode], [str(one.rdata) for one in found.rr]

    def until(self, name: str, code: str, count: int) -> None:
        def holds() -> bool:
            found = self.answer(name)
            return (found[0], len(found[1])) == (code, count)

        self.up.until(holds, f"{name}: {code} with {count} records")


@pytest.fixture
def named(tmp_path: Path) -> Iterator[Named]:
    """A cluster whose agent answers."""
    one = Named(tmp_path)
    yield one
    assert one.up.end() == 0


def test_a_service_has_a_name_while_it_works(named: Named, tmp_path: Path) -> None:
    """Its A and SRV records are those of its instance; a failed check takes them away, a stop the name itself."""
    up, broken = named.up, tmp_path / "broken"
    named.until("shop.service.caravan", "NXDOMAIN", 0)
    (node,) = up.ask("nodes")["nodes"]
    attributes = up.ask("node", id=node["id"])["attributes"]
    assert (attributes["unique.dns.address"], attributes["dns.zone"]) == ("127.0.0.1", "caravan")
    up.documented("job", "run", job(tmp_path, 8101, "v1", f"test ! -e {broken} || exit 2"))
    named.until("shop.service.caravan", "NOERROR", 1)
    address = attributes["unique.network.ip-address"]
    assert named.answer("v1.shop.service.caravan") == ("NOERROR", [address])
    assert named.answer("v2.shop.service.caravan")[0] == "NXDOMAIN"
    found = named.ask("_shop._tcp.service.caravan", "SRV")
    assert [(one.rdata.port, one.ttl) for one in found.rr] == [(8101, 1)]
    target = str(found.rr[0].rdata.target)
    assert [str(one.rname) for one in found.ar] == [target]
    assert named.answer(target) == ("NOERROR", [address])
    broken.touch()
    named.until("shop.service.caravan", "NOERROR", 0)
    broken.unlink()
    named.until("shop.service.caravan", "NOERROR", 1)
    up.documented("job", "stop", "shop")
    named.until("shop.service.caravan", "NXDOMAIN", 0)
    assert named.answer("example.org")[0] == "REFUSED"
