"""Requests to the gateway over HTTP, with the login of the selected context.

The gateway is that of CARAVAN_GATEWAY_URL, else that of the selected `caravan up`, else port 4646 of this machine.
"""

import os
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from services.cli.runtime import contexts
from services.cli.runtime.local_clusters import running_at
from services.cli.runtime.output import CliError
from shared.bus.connection.nats_client import url_login

DEFAULT_URL = "http://127.0.0.1:4646"
_TIMEOUT_S = 330.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HttpAnswer(NamedTuple):
    """Status and body of an answer."""

    status: int
    body: bytes


def gateway_url() -> str:
    """Address of the gateway, without a slash at its end. Raises CliError for one that is none."""
    given = os.environ.get("CARAVAN_GATEWAY_URL", "")
    if given:
        if urlsplit(given).scheme not in ("http", "https") or not urlsplit(given).hostname:
            raise CliError("config", f"CARAVAN_GATEWAY_URL {given!r} is not an http(s) address")
        return given.rstrip("/")
    up = running_at(contexts.select().context.url)
    if up is None:
        return DEFAULT_URL
    try:
        return (Path(up.data_dir) / "logs" / "gateway.url").read_text("utf-8").strip()
    except OSError as err:
        text = f"the gateway of {up.data_dir} has not started: {err.strerror}"
        raise CliError("unavailable", text) from err


def login() -> str:
    """USER:PASSWORD of the selected context. Raises CliError without one."""
    context = contexts.select().context
    user, password = url_login(context.url) if any(url_login(context.url)) else context.login()
    if not user:
        raise CliError("config", "the selected bus has no user and password to sign in with")
    return f"{user}:{password}"


def request(
    method: str, path: str, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()
) -> HttpAnswer:
    """Send one request. Raises CliError `unavailable` where no gateway answers; a refusal is an answer."""
    url = f"{gateway_url()}/{path.lstrip('/')}"
    given = {"X-Nomad-Token": login(), **dict(headers)}
    one = urllib.request.Request(url, data=body or None, method=method, headers=given)  # noqa: S310 - see gateway_url.
    try:
        with _OPENER.open(one, timeout=_TIMEOUT_S) as answer:
            return HttpAnswer(answer.status, answer.read())
    except urllib.error.HTTPError as err:
        with err:
            return HttpAnswer(err.code, err.read())
    except (OSError, ValueError) as err:
        reason = getattr(err, "reason", err)
        raise CliError("unavailable", f"no gateway answers at {url}: {reason}") from err
