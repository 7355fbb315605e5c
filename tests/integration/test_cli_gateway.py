"""`caravan operator api` and `caravan ui` against an HTTP server: what is sent, what is printed, what is refused."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from services.cli.main import main

LOGIN = "ann:secret"


class Handler(BaseHTTPRequestHandler):
    """Answers with what was asked; 404 below /missing; a code for a login."""

    def _answer(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(size).decode()
        asked = {
            "method": self.command,
            "path": self.path,
            "body": body,
            "token": self.headers.get("x-nomad-token"),
            "kind": self.headers.get("content-type", ""),
        }
        status, text = 200, json.dumps(asked)
        if self.path.startswith("/missing"):
            status, text = 404, "job not found"
        elif self.path == "/v1/caravan/code":
            is_known = self.headers.get("x-nomad-token") == LOGIN
            status, text = (200, '{"code":"once"}') if is_known else (403, "Permission denied")
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - of the base class.

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the base class.
        """Say nothing."""


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A server that the commands talk to, and a bus whose login they have."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("CARAVAN_GATEWAY_URL", url)
        monkeypatch.setenv("CARAVAN_NATS_URL", f"nats://{LOGIN}@127.0.0.1:1")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        yield url
        server.shutdown()
        thread.join()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = main(words)
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.mark.usefixtures("gateway")
def test_a_request_is_signed_in_and_its_method_follows_from_its_body(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """GET without a body, PUT with one, -X as it says; a body may be a file; headers are sent."""
    file = tmp_path / "body.json"
    file.write_text('{"a":1}')
    for words, wanted in (
        (("/v1/jobs?prefix=w",), {"method": "GET", "path": "/v1/jobs?prefix=w", "body": ""}),
        (("v1/jobs", "-d", "{}"), {"method": "PUT", "path": "/v1/jobs", "body": "{}"}),
        (("-d", f"@{file}", "/v1/jobs"), {"method": "PUT", "body": '{"a":1}'}),
        (("-X", "delete", "/v1/job/web"), {"method": "DELETE", "path": "/v1/job/web"}),
        (("--header", "Content-Type: x/y", "/v1/jobs"), {"kind": "x/y"}),
    ):
        code, out, _ = run(capsys, "operator", "api", *words)
        asked: dict[str, Any] = json.loads(out)
        assert code == 0
        assert asked["token"] == LOGIN
        assert {name: asked[name] for name in wanted} == wanted


@pytest.mark.usefixtures("gateway")
def test_a_refusal_is_printed_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """The text of the gateway, exit 1; with --json the status beside it."""
    assert run(capsys, "operator", "api", "/missing")[:2] == (1, "job not found\n")
    code, out, _ = run(capsys, "operator", "api", "/missing", "--json")
    assert (code, json.loads(out)) == (1, {"status": 404, "body": "job not found"})
    code, out, _ = run(capsys, "operator", "api", "/v1/jobs", "--json")
    assert (code, json.loads(out)["body"]["path"]) == (0, "/v1/jobs")


@pytest.mark.usefixtures("gateway")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--header", "no colon", "/v1/jobs"), "--header must be NAME: VALUE"),
        (("-d", "@/nowhere", "/v1/jobs"), "-d @/nowhere"),
        ((), "PATH"),
    ],
)
def test_bad_words_are_refused_before_anything_is_sent(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    """One line that names what is wrong."""
    code, out, err = run(capsys, "operator", "api", *words)
    assert (code, out) == (1, "")
    assert text in err


def test_the_console_is_opened_with_a_code_that_no_server_sees(
    capsys: pytest.CaptureFixture[str], gateway: str
) -> None:
    """The code stands behind the #, the password nowhere."""
    code, out, err = run(capsys, "ui", "--print-only")
    assert (code, out) == (0, f"{gateway}/ui/#/login?code=once\n")
    assert "secret" not in out + err
    code, out, _ = run(capsys, "ui", "--print-only", "--json")
    assert json.loads(out) == {"url": f"{gateway}/ui/#/login?code=once"}


@pytest.mark.usefixtures("gateway")
def test_a_login_that_the_gateway_refuses_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer's text is the reason."""
    monkeypatch.setenv("CARAVAN_NATS_URL", "nats://ann:wrong@127.0.0.1:1")
    code, _, err = run(capsys, "ui", "--print-only")
    assert code == 1
    assert "the gateway answered 403: Permission denied" in err


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://127.0.0.1:1", "no gateway answers at http://127.0.0.1:1/v1/jobs"),
        ("file:///etc", "is not an http(s) address"),
        ("http://", "is not an http(s) address"),
    ],
)
@pytest.mark.usefixtures("gateway")
def test_an_address_without_a_gateway_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str, text: str
) -> None:
    """Nothing listens, or it is no address of HTTP."""
    monkeypatch.setenv("CARAVAN_GATEWAY_URL", url)
    code, _, err = run(capsys, "operator", "api", "/v1/jobs")
    assert code == 1
    assert text in err


def test_a_bus_without_a_login_cannot_sign_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, gateway: str
) -> None:
    """The reason is the bus, not the gateway."""
    del gateway
    monkeypatch.setenv("CARAVAN_NATS_URL", "nats://127.0.0.1:1")
    code, _, err = run(capsys, "operator", "api", "/v1/jobs")
    assert code == 1
    assert "no user and password to sign in with" in err
