"""`caravan run ROLE`: one role in this process. Roles are found by name, so that no service knows another."""

import signal
from importlib import import_module

from services.cli.output import CliError, Output

ROLES = ("intake", "eval_broker", "scheduler", "plan_applier", "heartbeat", "view", "agent")


def run(out: Output, *, role: str) -> int:
    """Run a role until SIGTERM or SIGINT; its exit code is ours."""
    del out
    if role not in ROLES:
        raise CliError("usage", f"no role {role!r}; known are {', '.join(ROLES)}")
    # Until the role's own handlers stand, Ctrl-C on the whole group must not print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return int(import_module(f"services.{role}.__main__").main())
