"""Requests to Vault over HTTP: a login, renewals, reads. One server, whose address the node's operator set.

No redirect is followed: a token goes to that server alone. What a failure says holds neither token nor identity.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import urllib3

from services.agent.inputs.vault.settings import VaultSettings
from services.agent.inputs.vault.vault_api import (
    VaultLease,
    VaultRefused,
    VaultToken,
    VaultUnavailable,
)
from shared.gotemplate.data import VaultSecret

#: For a connection, and without a byte.
STALL_S = 10.0
#: Of one answer.
ANSWER_BYTES_MAX = 4 << 20
#: Requests at once: a Vault that hangs does not hold up other work of the agent.
THREADS = 8
_REASON_CHARS_MAX = 200
#: Vault is sealed, a standby, overloaded or failing.
_NOT_NOW = frozenset((412, 429, 472, 473))


class _Mount(NamedTuple):
    path: str
    is_versioned: bool


class VaultClient:
    """One server."""

    def __init__(self, settings: VaultSettings) -> None:
        self.settings = settings
        self._pool = urllib3.PoolManager(
            cert_reqs="CERT_REQUIRED",
            ca_certs=settings.cacert or None,
            timeout=urllib3.Timeout(connect=STALL_S, read=STALL_S),
            retries=False,
            maxsize=THREADS,
        )
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="vault")

    async def login(self, jwt: str, *, role: str, namespace: str) -> VaultToken:
        """Log in with an identity. Raises VaultUnavailable and VaultRefused."""
        body = {"jwt": jwt, **({"role": role} if role else {})}
        path = f"auth/{self.settings.jwt_path}/login"
        found = await self._ask("POST", path, namespace=namespace, body=body, hidden=(jwt,))
        return _token(found, "")

    async def renew(self, token: str, *, namespace: str, increment_s: int) -> VaultToken:
        """Lengthen the life of a token. Raises VaultUnavailable and VaultRefused."""
        body = {"increment": f"{increment_s}s"}
        path = "auth/token/renew-self"
        found = await self._ask("POST", path, namespace=namespace, token=token, body=body)
        return _token(found, token)

    async def read(self, token: str, path: str, *, namespace: str) -> VaultSecret | None:
        """Read a secret, of a versioned key-value store with or without `data/` in its path; None: there is none.

        Raises VaultUnavailable and VaultRefused.
        """
        place = await self._place(token, path, namespace, part="data")
        found = await self._ask("GET", place, namespace=namespace, token=token)
        data = found.get("data")
        is_deleted = place != path or "/data/" in path
        if not isinstance(data, dict) or (
            is_deleted and "metadata" in data and data.get("data") is None
        ):
            return None
        return VaultSecret(
            path=path,
            data=data,
            lease_id=_text(found, "lease_id"),
            lease_s=_number(found, "lease_duration"),
            is_renewable=found.get("renewable") is True,
        )

    async def list(self, token: str, path: str, *, namespace: str) -> tuple[str, ...]:
        """List the names below a path. Raises VaultUnavailable and VaultRefused."""
        place = await self._place(token, path.rstrip("/"), namespace, part="metadata")
        found = await self._ask("GET", place, namespace=namespace, token=token, query="?list=true")
        data = found.get("data")
        keys = data.get("keys") if isinstance(data, dict) else None
        return tuple(one for one in keys or () if isinstance(one, str))

    async def renew_lease(
        self, token: str, lease_id: str, *, namespace: str, increment_s: int
    ) -> VaultLease:
        """Lengthen the lease of a secret. Raises VaultUnavailable and VaultRefused."""
        body = {"lease_id": lease_id, "increment": increment_s}
        path = "sys/leases/renew"
        found = await self._ask("PUT", path, namespace=namespace, token=token, body=body)
        return VaultLease(_number(found, "lease_duration"), found.get("renewable") is True)

    def close(self) -> None:
        """End the connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.clear()

    # ---- inside ----

    async def _place(self, token: str, path: str, namespace: str, *, part: str) -> str:
        """Find the path of a secret in its store: a versioned one has a part between mount and name."""
        mount = await self._mount(token, path, namespace)
        if mount is None or not mount.is_versioned:
            return path
        inside = path.removeprefix(mount.path.rstrip("/")).lstrip("/")
        first, _, rest = inside.partition("/")
        if first == part or (first == "data" and part == "metadata"):
            inside = rest
        return f"{mount.path.rstrip('/')}/{part}/{inside}"

    async def _mount(self, token: str, path: str, namespace: str) -> _Mount | None:
        """Ask which store a path is in; None: the token may not know, and the path stays as it is."""
        try:
            about = f"sys/internal/ui/mounts/{path}"
            found = await self._ask("GET", about, namespace=namespace, token=token)
        except VaultRefused:
            return None
        data = found.get("data")
        if not isinstance(data, dict) or not isinstance(data.get("path"), str):
            return None
        options = data.get("options")
        version = options.get("version") if isinstance(options, dict) else ""
        return _Mount(data["path"], data.get("type") == "kv" and version == "2")

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        namespace: str,
        token: str = "",
        body: Mapping[str, Any] | None = None,
        query: str = "",
        hidden: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        headers = {"X-Vault-Request": "true"}
        headers |= {"X-Vault-Token": token} if token else {}
        headers |= {"X-Vault-Namespace": namespace} if namespace else {}
        url = f"{self.settings.addr}/v1/{quote(path.strip('/'), safe='/')}{query}"
        sent = None if body is None else msgspec.json.encode(body)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._exchange, method, url, headers, sent)
        try:
            status, content = await work
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as err:
            raise VaultUnavailable(f"no answer: {_cause(err)}") from None
        return _read(status, content, hidden=(token, *hidden))

    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        answer = self._pool.request(
            method, url, headers=dict(headers), body=body, redirect=False, preload_content=False
        )
        try:
            content = answer.read(ANSWER_BYTES_MAX + 1, decode_content=True)
            if len(content) > ANSWER_BYTES_MAX:
                raise ValueError(f"more than {ANSWER_BYTES_MAX} bytes")
            return answer.status, content
        finally:
            answer.drain_conn() if answer.length_remaining == 0 else answer.close()


def _cause(err: BaseException) -> str:
    # urllib3 puts its own objects in front, whose texts have addresses of memory.
    reason = getattr(err, "reason", None)
    err = reason if isinstance(reason, BaseException) else err
    last = err.args[-1] if err.args else type(err).__name__
    words = str(getattr(err, "strerror", None) or last)
    return words.rpartition(": ")[2][:_REASON_CHARS_MAX]


def _read(status: int, content: bytes, *, hidden: tuple[str, ...]) -> dict[str, Any]:
    """Read an answer. Raises VaultUnavailable and VaultRefused."""
    try:
        found: Any = msgspec.json.decode(content) if content else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = None
    if 200 <= status < 300:
        if not isinstance(found, dict):
            raise VaultUnavailable("the answer is not an object in JSON")
        return found
    errors = found.get("errors") if isinstance(found, dict) else None
    said = "; ".join(str(one) for one in errors) if isinstance(errors, list) else ""
    for one in hidden:
        said = said.replace(one, "…") if one else said
    words = " ".join(said.split())[:_REASON_CHARS_MAX]
    text = f"status {status}: {words}" if words else f"status {status}"
    if 300 <= status < 400:
        # A standby names the active server, which is not followed: no operator allowed that address.
        raise VaultUnavailable(f"status {status}: redirected, name the active server")
    if status >= 500 or status in _NOT_NOW:
        raise VaultUnavailable(text)
    raise VaultRefused(text, status)


def _token(found: Mapping[str, Any], before: str) -> VaultToken:
    auth = found.get("auth")
    token = auth.get("client_token") if isinstance(auth, dict) else None
    if not isinstance(auth, dict) or not isinstance(token, str) or not (token or before):
        raise VaultUnavailable("the answer has no token")
    text = token or before
    if len(text) > 16_384 or not text.isascii() or not text.isprintable() or " " in text:
        raise VaultUnavailable("the answer has no token that can be one")
    is_renewable = auth.get("renewable") is True
    return VaultToken(text, _number(auth, "lease_duration"), is_renewable)


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    return value if isinstance(value, str) else ""


def _number(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name)
    return max(value, 0) if isinstance(value, int) else 0
