"""The console's files: read once, served from memory, without a login since they hold no data.

Paths of Nomad's own UI lead to the same things here: its command prints them, and people keep them.
"""

import mimetypes
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.route import Endpoint

FOLDER = Path(__file__).resolve().parent.parent / "console"
#: The page runs what is served here and nothing else, and asks this origin alone.
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
#: Lists of Nomad's UI, and the console's.
_LISTS = {
    "jobs": "jobs",
    "jobs/run": "submit",
    "clients": "nodes",
    "evaluations": "evaluations",
    "services": "services",
    "variables": "variables",
    "topology": "cluster",
    "servers": "cluster",
}
#: First words of Nomad's UI with an id behind them, and the console's.
_NOUNS = {
    "jobs": "job",
    "clients": "client",
    "allocations": "alloc",
    "services": "services",
    "variables": "variables",
}


async def to_console(call: Call) -> object:
    """Redirect `/` to the console, keeping the query."""
    query = call.connection.url.query
    return RedirectResponse(f"/ui/?{query}" if query else "/ui/", 307)


async def console_file(call: Call) -> object:
    """A file of the console, or the way to what a path of Nomad's UI shows. Raises HttpFault 404."""
    name = call.path.get("name", "") or "index.html"
    body = _files().get(name)
    if body is None:
        place = console_place(name, call.connection.query_params)
        return RedirectResponse(f"/ui/#/{place}", 307)
    kind = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0]
    headers = {"Content-Security-Policy": CONTENT_POLICY, "Cache-Control": "no-cache"}
    return Response(body, 200, headers, media_type=kind or "application/octet-stream")


def console_place(name: str, params: Mapping[str, str]) -> str:
    """The console's address of what a path below Nomad's `/ui/` shows. Raises HttpFault 404: it has none.

    Ids of jobs may contain slashes and at signs; behind the last of these is the namespace, then a tab or a group.
    """
    name = name.rstrip("/")
    namespace = params.get("namespace", "default")
    noun, _, rest = name.partition("/")
    if noun == "variables" and rest.startswith("var/"):
        # Paths of variables have no at sign.
        rest, _, behind = rest.removeprefix("var/").partition("@")
        namespace = behind or namespace
    if noun == "jobs" and "@" in rest:
        rest, _, behind = rest.rpartition("@")
        namespace = behind.partition("/")[0]
        # A job may be called `run`.
        name = ""
    if namespace not in ("default", "*"):
        raise HttpFault(404, f"namespace {namespace[:128]!r} not found")
    if noun == "evaluations" and (named := params.get("currentEval", "")):
        return f"evaluation/{quote(named, safe='')}"
    if (found := _LISTS.get(name)) is not None:
        return found
    if noun == "variables" and rest.startswith("path/"):
        return f"variables?q={quote(rest.removeprefix('path/'), safe='')}%2F"
    if noun not in _NOUNS or not rest:
        raise HttpFault(404, "")
    tab = ""
    if noun in ("allocations", "clients"):
        # A task of the allocation, or a tab, or both.
        rest, _, behind = rest.partition("/")
        tab = "?show=logs" if noun == "allocations" and behind.endswith("logs") else ""
    return f"{_NOUNS[noun]}/{quote(rest, safe='')}{tab}"


@lru_cache(maxsize=1)
def _files() -> dict[str, bytes]:
    """All files by path below the folder: a request can name no other."""
    found = sorted(one for one in FOLDER.rglob("*") if one.is_file())
    return {str(one.relative_to(FOLDER)): one.read_bytes() for one in found}


ENDPOINTS = (
    Endpoint(pattern="/", summary="Redirect to the console.", read=to_console, is_public=True),
    Endpoint(pattern="/ui", summary="Redirect to the console.", read=to_console, is_public=True),
    Endpoint(
        pattern="/ui/{name:path}",
        summary="The console's files; Nomad's paths lead to its pages.",
        read=console_file,
        is_public=True,
    ),
)
