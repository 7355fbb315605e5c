"""The table of endpoints in docs/http.md, written from the gateway's own: `python -m tests.docs.http_page`."""

import re
from pathlib import Path

from services.gateway.edge.route import Endpoint
from services.gateway.routes.table import ENDPOINTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "http.md"
_BEGIN, _END = "<!-- endpoints: begin -->\n", "<!-- endpoints: end -->\n"
#: What stands in a pattern for Starlette.
_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")


def methods(one: Endpoint) -> str:
    """The methods of an endpoint, as a client writes them."""
    if one.is_socket:
        return "websocket"
    found = ("GET", one.read), ("PUT", one.write), ("DELETE", one.delete)
    return ", ".join(word for word, handler in found if handler is not None)


def table() -> str:
    """The table, by path. PUT and POST are the same everywhere."""
    lines = ["| path | methods | what |", "|---|---|---|"]
    rows: dict[str, str] = {}
    for one in ENDPOINTS:
        path = _PARAMETER.sub(r"<\1>", one.pattern)
        login = " Needs no login." if one.is_public else ""
        note = f" {one.note}" if one.note else ""
        rows[path] = f"| `{path}` | {methods(one)} | {one.summary}{note}{login} |"
    return "\n".join([*lines, *(rows[path] for path in sorted(rows))]) + "\n"


def with_table(page: str) -> str:
    """The page with the table of now."""
    before, _, rest = page.partition(_BEGIN)
    _, found, after = rest.partition(_END)
    assert found, f"{PAGE.name} has no {_END.strip()}"
    return f"{before}{_BEGIN}{table()}{_END}{after}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
