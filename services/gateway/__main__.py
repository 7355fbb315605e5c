"""Wiring of the gateway: settings, role, HTTP server. Run by `caravan run gateway`."""

import asyncio
import sys

from services.gateway.role import Gateway
from shared.bus.process.runner import RoleSpec, run_services, shell_settings
from shared.bus.process.settings import RunSettings, new_instance, settings_from
from shared.bus.shell.shell import Shell
from shared.extras import require

#: Decisions and tasks go before reads over HTTP.
NICENESS = 10


def build(settings: RunSettings) -> RoleSpec:
    """Make the role from the environment."""
    require("faststream")
    require("starlette")
    require("uvicorn")
    # Imported here: the extra may be missing, and the line above says so.
    from services.gateway.edge.context import GatewaySettings, ServerContext  # noqa: PLC0415
    from services.gateway.edge.outgoing import Outgoing  # noqa: PLC0415
    from services.gateway.edge.server import HttpServer  # noqa: PLC0415

    own = settings_from(GatewaySettings, prefix="CARAVAN_GATEWAY_")
    outgoing = Outgoing.of(own.events_out, own.state_dir)
    role = Gateway(instance=new_instance("gateway"), sends_out=outgoing is not None)
    login = shell_settings(settings, role.name).login

    async def serve(shell: Shell) -> None:
        context = ServerContext(role, shell, own, login, outgoing=outgoing)
        sending = asyncio.create_task(outgoing.run(role, lambda: context.bus)) if outgoing else None
        try:
            await HttpServer(context).serve()
        finally:
            if sending is not None:
                sending.cancel()

    return RoleSpec(role=role, side_task=serve, niceness=NICENESS, settings=own)


if __name__ == "__main__":
    sys.exit(run_services([build]))
