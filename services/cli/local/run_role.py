"""`caravan run ROLE[,ROLE...]`: roles in this process. Roles are found by name, so that no service imports another."""

import gc
import signal
from importlib import import_module

from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.process.runner import run_services
from shared.bus.server.accounts import ROLES

AGENT = "agent"


def run(out: CommandOutput, *, role: str) -> int:
    """Run roles until SIGTERM or SIGINT; return the exit code of the process."""
    del out
    names = role.split(",")
    # The agent shares no process.
    known = (*ROLES, AGENT)
    for name in names:
        if name not in known:
            raise CliError("usage", f"unknown role {name!r}; expected one of {', '.join(known)}")
    if len(set(names)) < len(names) or (AGENT in names and len(names) > 1):
        raise CliError("usage", "each role runs once in a process, and the agent runs alone")
    # Until the role's own handlers are installed, Ctrl-C on the whole group must not print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()
    modules = [import_module(f"services.{name}.__main__") for name in names]
    gc.enable()
    if names == [AGENT]:
        return int(modules[0].main())
    return run_services([module.build for module in modules])
