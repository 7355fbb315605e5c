"""Checks over gRPC against the server of grpcio, and against what is no gRPC server."""

import asyncio
from typing import Any

import grpc
import pytest

from services.agent.executor.grpc_health import read_answer, write_question
from shared.core.runtime.agent_messages import CheckChanged
from shared.extras import missing_extra
from tests.integration.test_check_runner import answering, said, spec, with_server

#: Of `localhost`, signed by itself; for this test alone.
KEY = b"""\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgbWHDt946zaFQKIzn
u222T3hy0TBJ0PAurGejPMvjVkuhRANCAAR8PAPriLrZRFB8kZM7sRcu3g3/C7xt
97i02OtMgdQ30fefeswLDBUGakRoN/SwlFLqCJV/ZrMD1uTJ8d3KCiHo
-----END PRIVATE KEY-----
"""
CERTIFICATE = b"""\
-----BEGIN CERTIFICATE-----
MIIBlTCCATugAwIBAgIUMHQn+Pc0jh60MsrQ3WyDsiNQII8wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMzIyMDE0M1oYDzIxMjYxMDMw
MjIwMTQzWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAR8PAPriLrZRFB8kZM7sRcu3g3/C7xt97i02OtMgdQ30fefeswLDBUG
akRoN/SwlFLqCJV/ZrMD1uTJ8d3KCiHoo2kwZzAdBgNVHQ4EFgQUafV5ly3Kt2XD
BrRuFIsG/wsaImAwHwYDVR0jBBgwFoAUafV5ly3Kt2XDBrRuFIsG/wsaImAwDwYD
VR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwID
SAAwRQIhALVaOoM0B+1LuzrzK5hf5jzsypP6jckq7sU8ZDBJhYxCAiATIUF9rtle
zsDXomBBvqGCmt8ReFaCvzUwjLstHK3tWQ==
-----END CERTIFICATE-----
"""
SERVING, NOT_SERVING, UNKNOWN = b"\x08\x01", b"\x08\x02", b""


class HealthServer(grpc.GenericRpcHandler):
    """Serves `grpc.health.v1.Health`: `answers` by service name, None: no answer for now."""

    def __init__(self, answers: dict[str, bytes | None]) -> None:
        self.answers = answers
        self.asked: list[bytes] = []

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method != "/grpc.health.v1.Health/Check":
            return None
        return grpc.unary_unary_rpc_method_handler(self._check)

    async def _check(self, request: bytes, context: Any) -> bytes:
        self.asked.append(request)
        name = request[2:].decode()
        if name not in self.answers:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {name!r}: 100 %")
        answer = self.answers[name]
        if answer is None:
            await asyncio.sleep(3600)
        return answer or b""


async def checked(
    answers: dict[str, bytes | None] | None, *, tls: bool = False, **more: Any
) -> tuple[CheckChanged, list[bytes]]:
    """What one check tells of a server with these answers, and what it asked; None: without the health protocol."""
    server = grpc.aio.server()
    handler = HealthServer(answers or {})
    if answers is not None:
        server.add_generic_rpc_handlers((handler,))
    if tls:
        credentials = grpc.ssl_server_credentials([(KEY, CERTIFICATE)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        fields = {"kind": "grpc", "port": port, **more}
        (found,) = await said(spec(**fields))
    finally:
        await server.stop(None)
    return found, handler.asked


@pytest.mark.parametrize(
    ("service", "answer", "status", "output"),
    [
        ("", SERVING, "passing", "SERVING"),
        ("web.v1.Web", SERVING, "passing", "SERVING"),
        ("web", NOT_SERVING, "critical", "NOT_SERVING"),
        ("web", UNKNOWN, "critical", "UNKNOWN"),
        ("web", b"\x08\x03", "critical", "SERVICE_UNKNOWN"),
        ("web", b"\x08\x63", "critical", "status 99"),
    ],
)
def test_a_service_that_serves_passes(
    service: str, answer: bytes, status: str, output: str
) -> None:
    """Only SERVING passes; the server hears the service's name (S82)."""
    found, asked = asyncio.run(checked({service: answer}, grpc_service=service))
    assert (found.status, found.output) == (status, output)
    assert asked[0] == (b"\x0a" + bytes((len(service),)) + service.encode() if service else b"")


def test_a_long_name_is_written_in_full() -> None:
    """A length above 127 takes two bytes."""
    name = "x" * 300
    assert write_question(name)[5:] == b"\x0a\xac\x02" + name.encode()


def test_what_the_server_refuses_is_critical_with_its_words() -> None:
    """An unknown service, and a server without the health protocol."""
    found, _ = asyncio.run(checked({"": SERVING}, grpc_service="web"))
    assert (found.status, found.output) == (
        "critical",
        "grpc-status 5: unknown service 'web': 100 %",
    )
    found, _ = asyncio.run(checked(None))
    assert found.status == "critical" and found.output.startswith("grpc-status 12")


def test_no_answer_is_critical_at_the_timeout() -> None:
    """A call that hangs is given up."""
    found, asked = asyncio.run(checked({"": None}, timeout_ns=500_000_000))
    assert (found.status, found.output) == ("critical", "no answer within the timeout of 0.5 s")
    assert asked == [b""]


def test_tls_is_verified_unless_told_otherwise() -> None:
    """A certificate that no authority signed fails the check, except with tls_skip_verify."""
    more: dict[str, Any] = {"tls": True, "grpc_use_tls": True}
    found, asked = asyncio.run(checked({"": SERVING}, **more))
    assert found.status == "critical" and "certificate verify failed" in found.output
    assert asked == []
    found, _ = asyncio.run(checked({"": SERVING}, tls_skip_verify=True, **more))
    assert (found.status, found.output) == ("passing", "SERVING")
    found, _ = asyncio.run(checked({"": SERVING}, tls=True))
    assert found.status == "critical"


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "the answer is not HTTP/2"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the answer is not HTTP/2"),
        (b"", "the connection ended without an answer"),
    ],
)
def test_a_server_of_another_protocol_is_critical(answer: bytes, output: str) -> None:
    """HTTP/1 and a server that hangs up."""
    serve, _ = answering(answer)
    (found,) = asyncio.run(with_server(serve, kind="grpc"))
    assert (found.status, found.output) == ("critical", output)


def test_a_port_without_a_listener_is_critical() -> None:
    """Nothing listens there."""

    async def story() -> CheckChanged:
        server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return (await said(spec(kind="grpc", port=port)))[0]

    found = asyncio.run(story())
    assert found.status == "critical" and "Connect call failed" in found.output


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\0\0\0\0\0", "UNKNOWN"),
        (b"\0\0\0\0\x02\x08\x01", "SERVING"),
        (b"\0\0\0\0\x08\x12\x02hi\x08\x01\x18\x05", "SERVING"),
        (b"\0\0\0\0\x07\x15abcd\x08\x02", "NOT_SERVING"),
    ],
)
def test_unknown_fields_of_an_answer_are_skipped(data: bytes, status: str) -> None:
    """A later version of the protocol may have more fields."""
    assert read_answer(data) == status


@pytest.mark.parametrize(
    "data",
    [b"", b"\0\0\0\0\x02\x08", b"\1\0\0\0\0", b"\0\0\0\0\x01\x08", b"\0\0\0\0\x02\x0b\x00"],
)
def test_a_broken_answer_is_refused(data: bytes) -> None:
    """Cut, compressed or of an unknown kind."""
    with pytest.raises(ValueError, match="the answer"):
        read_answer(data)


def _not_found(_name: str) -> None:
    pass


def test_an_agent_without_the_extra_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is critical and names what to install."""
    monkeypatch.setattr("shared.extras.find_spec", _not_found)
    (found,) = asyncio.run(said(spec(kind="grpc", port=1)))
    assert (found.status, found.output) == ("critical", missing_extra("h2"))
