"""The console's files: read once, served from memory, without a login since they hold no data."""

import mimetypes
from functools import lru_cache
from pathlib import Path

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


async def to_console(call: Call) -> object:
    """Redirect `/` to the console, keeping the query."""
    query = call.connection.url.query
    return RedirectResponse(f"/ui/?{query}" if query else "/ui/", 307)


async def console_file(call: Call) -> object:
    """A file of the console. Raises HttpFault 404."""
    name = call.path.get("name", "") or "index.html"
    body = _files().get(name)
    if body is None:
        raise HttpFault(404, "")
    kind = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0]
    headers = {"Content-Security-Policy": CONTENT_POLICY, "Cache-Control": "no-cache"}
    return Response(body, 200, headers, media_type=kind or "application/octet-stream")


@lru_cache(maxsize=1)
def _files() -> dict[str, bytes]:
    """All files by path below the folder: a request can name no other."""
    found = sorted(one for one in FOLDER.rglob("*") if one.is_file())
    return {str(one.relative_to(FOLDER)): one.read_bytes() for one in found}


ENDPOINTS = (
    Endpoint(pattern="/", summary="Redirect to the console.", read=to_console, is_public=True),
    Endpoint(pattern="/ui", summary="Redirect to the console.", read=to_console, is_public=True),
    Endpoint(
        pattern="/ui/{name:path}", summary="The console's files.", read=console_file, is_public=True
    ),
)
