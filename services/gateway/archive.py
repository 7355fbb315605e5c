"""Serves the console on an archive, on loopback, until it is cancelled. Started by `caravan ui --from-file`."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from services.gateway.edge.archive import ArchiveContext
from services.gateway.edge.context import GatewaySettings
from services.gateway.edge.server import HttpServer
from shared.archive.export import ExportReader
from shared.archive.segments import ArchiveInvalid

HOST = "127.0.0.1"


async def serve(
    folder: Path, reading: ExportReader, *, port: int, announce: Callable[[str], None]
) -> None:
    """Serve until cancelled; `announce` gets the address that signs in, and what is wrong with the archive.

    Raises ArchiveInvalid: its first records are missing; ConfigInvalid: the port is in use.
    """
    if not reading.segments or reading.segments[0].first_seq != 1:
        text = "the export does not begin at the first record: its state cannot be rebuilt"
        raise ArchiveInvalid("invalid", text, str(folder))
    context = ArchiveContext(folder, reading, GatewaySettings(host=HOST, port=port))

    def listening(url: str) -> None:
        code = context.codes.draw(context.token)
        # Behind the # it is sent to no server.
        announce(f"{url}/ui/#/login?code={code}")

    async def load() -> None:
        await context.load()
        if context.problem:
            announce(f"shown up to seq {context.role.seq}: {context.problem}")

    await asyncio.gather(HttpServer(context, listening).serve(), load())
