"""What is answered instead of a value: a status with one plain text, as Nomad's clients expect."""

from collections.abc import Sequence
from typing import Any

#: Codes of our refusals (docs/http.md) as HTTP. `invalid` is 400 although Nomad has 500 for most of them.
STATUS_OF_CODE = {
    "invalid": 400,
    "too_large": 413,
    "not_found": 404,
    "conflict": 500,
    "ambiguous": 500,
    "unavailable": 503,
    "pending": 504,
    "usage": 400,
}


class HttpFault(Exception):
    """Ends a request with a status and a plain text. `headers`: further ones of the answer."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers or {}


def permission_denied(detail: str = "") -> HttpFault:
    """403; Nomad's clients look for the last two words."""
    return HttpFault(403, f"{detail}: Permission denied" if detail else "Permission denied")


def unavailable(text: str) -> HttpFault:
    """503, to be tried again after a second."""
    return HttpFault(503, text, {"Retry-After": "1"})


def of_refusal(error: dict[str, Any], errors: Sequence[dict[str, Any]] = ()) -> HttpFault:
    """The fault for a refusal of ours: all that it names, one a line; the status of the first."""
    status = STATUS_OF_CODE.get(str(error.get("code", "")), 500)
    retry = {"Retry-After": "1"} if status in (503, 504) else {}
    lines = dict.fromkeys(_line(one) for one in (errors or (error,)))
    return HttpFault(status, "\n".join(lines), retry)


def _line(error: dict[str, Any]) -> str:
    text = str(error.get("message", "")) or str(error.get("code", "")) or "refused"
    path = str(error.get("path", ""))
    return f"{path}: {text}" if path and path not in text else text
