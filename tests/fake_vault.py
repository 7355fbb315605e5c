"""A server that answers as Vault's documentation says: logins with an identity, renewals, key-value stores, leases."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PREFIX = "hvs.marker-77"


class FakeVault:
    """Its state, which tests set and read. Mount `secret/` is a versioned store, `kv1/` a plain one."""

    def __init__(self) -> None:
        self.life_s = 3600
        self.is_renewable = True
        #: of the answer to a renewal; None: as at the login.
        self.renewed_s: int | None = None
        #: method and path -> status that is answered instead.
        self.fails: dict[str, int] = {}
        self.is_sealed = False
        #: what was asked: method, path, headers, body.
        self.asked: list[tuple[str, str, dict[str, str], dict[str, Any]]] = []
        self.tokens: list[str] = []
        #: path without `data/` -> content, by store.
        self.versioned: dict[str, dict[str, Any]] = {}
        self.plain: dict[str, dict[str, Any]] = {}
        #: path -> life of the lease of what it gives; each read makes another.
        self.dynamic: dict[str, int] = {}
        self.leases = 0
        self.address = ""

    def count(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(1 for _, one, _, _ in self.asked if one == path)

    def answer(self, method: str, path: str, headers: dict[str, str], body: Any) -> tuple[int, Any]:
        """Answer a request: status and JSON."""
        self.asked.append((method, path, headers, body))
        if self.is_sealed:
            return 503, {"errors": ["Vault is sealed"]}
        if (status := self.fails.get(path.partition("?")[0])) is not None:
            return status, {"errors": ["permission denied" if status == 403 else "internal error"]}
        if path.startswith("auth/") and path.endswith("/login"):
            self.tokens.append(f"{PREFIX}.{len(self.tokens) + 1}")
            return 200, self._auth(self.tokens[-1], self.life_s)
        token = headers.get("X-Vault-Token", "")
        if token not in self.tokens:
            return 403, {"errors": ["permission denied"]}
        if path == "auth/token/renew-self":
            life_s = self.life_s if self.renewed_s is None else self.renewed_s
            return 200, self._auth(token, life_s)
        if path == "sys/leases/renew":
            return 200, {"lease_id": body["lease_id"], "lease_duration": 3600, "renewable": True}
        return self._read(path)

    def _auth(self, token: str, life_s: int) -> dict[str, Any]:
        auth = {"client_token": token, "lease_duration": life_s, "renewable": self.is_renewable}
        return {"auth": auth, "data": None}

    def _read(self, path: str) -> tuple[int, Any]:
        if path.startswith("sys/internal/ui/mounts/"):
            mount = path.removeprefix("sys/internal/ui/mounts/").partition("/")[0]
            version = {"secret": {"version": "2"}, "kv1": {"version": "1"}}.get(mount)
            kind = "kv" if version else "database"
            return 200, {"data": {"path": f"{mount}/", "type": kind, "options": version}}
        if path.startswith("secret/metadata/") and path.endswith("?list=true"):
            below = path.removeprefix("secret/metadata/").removesuffix("?list=true")
            keys = [
                one.removeprefix(below + "/") for one in self.versioned if one.startswith(below)
            ]
            return (200, {"data": {"keys": keys}}) if keys else (404, {"errors": []})
        if path.startswith("secret/data/"):
            found = self.versioned.get(path.removeprefix("secret/data/"))
            data = {"data": found, "metadata": {"version": 1}}
            return (200, {"data": data}) if found is not None else (404, {"errors": []})
        if path in self.dynamic:
            self.leases += 1
            return 200, {
                "lease_id": f"{path}/{self.leases}",
                "lease_duration": self.dynamic[path],
                "renewable": True,
                "data": {"username": f"user-{self.leases}"},
            }
        found = self.plain.get(path.removeprefix("kv1/"))
        return (200, {"data": found}) if found is not None else (404, {"errors": []})


@contextmanager
def fake_vault() -> Iterator[FakeVault]:
    """Run one on a free port of this machine."""
    state = FakeVault()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length", "0"))
            body = json.loads(self.rfile.read(size)) if size else {}
            path = self.path.removeprefix("/v1/")
            status, found = state.answer(self.command, path, dict(self.headers), body)
            content = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = _answer  # noqa: N815 - names of the base class.

        def log_message(self, *_words: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
