"""Requests to addresses outside: which are refused, what counts as an answer, and that no redirect is followed."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from services.gateway.edge import outgoing_http
from services.gateway.edge.outgoing_http import TargetAnswer, is_public, send
from services.gateway.outgoing.settings import TargetAddress
from tests.not_tested import missing_tool


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::",
        "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::1", "2001:db8::1",
    ],
)  # fmt: skip
def test_an_inner_address_is_refused(address: str) -> None:
    """Loopback, link-local, private, shared, multicast and reserved ones, and those hidden in another."""
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:4700::1111"])
def test_a_public_address_is_accepted(address: str) -> None:
    """Those of the internet."""
    assert is_public(address)


def answered(raw: bytes, *, context: ssl.SSLContext | None = None, **more: object) -> TargetAnswer:
    """Send one request to a server that answers with these bytes, and keeps the connection open."""
    return asyncio.run(_answered(raw, context, **more))[0]


async def _answered(
    raw: bytes, context: ssl.SSLContext | None = None, **more: object
) -> tuple[TargetAnswer, list[bytes]]:
    heard: list[bytes] = []
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        heard.append(await reader.readexactly(4))
        writer.write(raw)
        await writer.drain()
        if not raw:
            writer.close()
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    scheme = "https" if context is not None else "http"
    settings: dict[str, object] = {
        "url": f"{scheme}://localhost:{port}/hook",
        "allow_http": True,
        "allow_private": True,
        **more,
    }
    endpoint = TargetAddress(**settings)  # type: ignore[arg-type]
    answer = await send(endpoint, method="POST", path="/hook", headers={"X": "y"}, body=b"body")
    ended.set()
    server.close()
    return answer, heard


def test_a_request_has_a_host_a_length_and_its_body() -> None:
    """As HTTP/1.1 wants it; the answer is taken when it is complete, though the connection stays open."""
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
    answer, heard = asyncio.run(_answered(raw))
    assert (answer.status, answer.body, answer.is_accepted) == (200, b"[]", True)
    head = heard[0].decode()
    assert head.startswith("POST /hook HTTP/1.1\r\nHost: localhost:")
    assert "Content-Length: 4\r\n" in head
    assert "X: y\r\n" in head
    assert heard[1] == b"body"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", 204),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", 302),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n", 200),
        (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", 503),
        (b"", 0),
        (b"SSH-2.0-x\r\n", 0),
    ],
)
def test_a_status_is_that_of_the_answer_itself(raw: bytes, status: int) -> None:
    """No interim answer counts, no redirect is followed, and what is no HTTP is no answer but has a reason."""
    answer = answered(raw)
    assert answer.status == status
    assert bool(answer.error) is (status == 0)


def test_an_answer_is_read_to_a_bound_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that never ends its body does not fill the memory."""
    monkeypatch.setattr(outgoing_http, "ANSWER_BYTES_MAX", 1000)
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 100_000
    assert len(answered(raw).body) <= 1000 + 16 * 1024


def test_a_name_of_an_inner_address_is_refused_before_anything_is_sent() -> None:
    """The text says which permission is missing."""
    answer, heard = asyncio.run(_answered(b"HTTP/1.1 200 OK\r\n\r\n", allow_private=False))
    assert "the address of localhost, is not public; allow_private = true" in answer.error
    assert heard == []


def test_a_name_is_resolved_once_and_one_inner_address_refuses_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was checked is what is connected to: no second look at a name that changes."""
    looked: list[str] = []

    async def lookup(
        self: object, host: str, port: int, **_: object
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        looked.append(host)
        return [(2, 1, 6, "", (one, port)) for one in addresses]

    connected: list[str] = []

    async def connect(host: str, port: int, **_: object) -> None:
        connected.append(host)
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", lookup)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    endpoint = TargetAddress(url="https://hooks.example/x")
    addresses = ["93.184.216.34", "127.0.0.1"]
    refused = asyncio.run(send(endpoint, method="POST", path="/x", headers={}))
    assert "127.0.0.1" in refused.error
    assert connected == []
    addresses = ["93.184.216.34"]
    asyncio.run(send(endpoint, method="POST", path="/x", headers={}))
    assert connected == addresses
    assert looked == ["hooks.example"] * 2


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for `localhost`, which is its own authority."""
    if shutil.which("openssl") is None:
        missing_tool("openssl")
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    words += ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


@pytest.mark.full("needs the program openssl")
def test_a_certificate_is_verified_for_the_name(tmp_path: Path) -> None:
    """An unknown authority is refused; one that the operator names is accepted for its name alone."""
    cert, context = certificate(tmp_path)
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    assert answered(raw, context=context, ca_file=str(cert)).status == 200
    assert "CERTIFICATE_VERIFY_FAILED" in answered(raw, context=context).error
    missing = answered(raw, context=context, ca_file=str(tmp_path / "none.pem"))
    assert "FileNotFoundError" in missing.error
