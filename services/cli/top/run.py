"""`caravan top`: opens the log, then the app."""

import asyncio
import functools
import signal
import sys

from services.cli import global_options
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.log_position import parse_log_position
from services.cli.runtime.output import CliError, CommandOutput
from services.cli.runtime.progress import ProgressBar
from services.cli.top.source import ClientSource
from services.cli.top.state_source import Moments
from shared.bus.connection.public_client import Client
from shared.errors import LogError
from shared.extras import require


def run(out: CommandOutput) -> int:
    """Show the cluster until q."""
    require("textual")
    # The app draws on stderr and reads keys from stdin.
    if not (out.is_live and sys.stdin.isatty() and sys.stderr.isatty()):
        raise CliError("usage", "top needs a terminal; `caravan job status` and others print once")
    at, archive = global_options.at_position(), global_options.export_dir()
    parse_log_position(at)
    # From here on queries are about now: the app itself goes to the moment.
    global_options.set_global_options(global_options.context_name(), "", archive)

    async def work(client: Client) -> int:
        # Imported here: of all commands this one alone needs it.
        from services.cli.top.app import TopApp
        from services.cli.top.session import Session

        source = ClientSource(client, is_archive=bool(archive))
        moments = Moments(source)
        problem = ""
        with ProgressBar("reading the log", await source.end_seq()) as bar:
            try:
                await moments.open(bar.update)
            except LogError as err:
                # Records before the damage are shown.
                problem = str(err)
        session = Session(moments, at=await moments.reached(at) if at else None)
        session.feed.problem = problem
        app = TopApp(session, source)
        for number in (signal.SIGTERM, signal.SIGHUP):
            # The app restores the terminal on its way out.
            leave = functools.partial(app.exit, return_code=128 + number)
            asyncio.get_running_loop().add_signal_handler(number, leave)
        await app.run_async()
        return app.return_code or 0

    return with_bus(work, is_quiet=True)
