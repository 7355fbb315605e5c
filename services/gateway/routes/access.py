"""Logging in from the page: a one-time code is drawn with a login, and exchanged for it once."""

from services.gateway.edge.call import Call
from services.gateway.edge.callers import token_of
from services.gateway.edge.faults import permission_denied
from services.gateway.edge.route import Endpoint


async def draw_code(call: Call) -> object:
    """Draw a code for the caller's own login."""
    return {"code": call.server.codes.draw(token_of(call.connection.headers))}


async def exchange_code(call: Call) -> object:
    """Exchange a code for the login that it was drawn with. Raises HttpFault 403."""
    token = call.server.codes.exchange(str((await call.body()).get("code", "")))
    if not token:
        raise permission_denied("the code was used, is older than ten minutes, or was never drawn")
    return {"token": token}


async def caller_name(call: Call) -> object:
    """The name of the caller's login, and of the archive that is served in place of a cluster."""
    archive = call.server.archive
    return {"name": call.caller.name, "archive": archive.name if archive is not None else ""}


ENDPOINTS = (
    Endpoint(
        pattern="/v1/caravan/code",
        summary="Draw a one-time code.",
        write=draw_code,
        is_stateless=True,
    ),
    Endpoint(
        pattern="/v1/caravan/login",
        summary="Exchange a one-time code for its login.",
        write=exchange_code,
        is_public=True,
    ),
    Endpoint(
        pattern="/v1/caravan/self",
        summary="The caller's name, and that of the archive.",
        read=caller_name,
        is_stateless=True,
    ),
)
