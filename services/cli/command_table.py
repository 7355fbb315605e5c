"""Every command of `caravan`; the rows live beside their handlers, in the `commands.py` of each folder.

Handlers and results are named by strings and imported when a command runs, so that `caravan --help` costs nothing. A
handler takes a `CommandOutput` and its arguments by name and returns the exit code.
"""

from services.cli.alloc import commands as alloc
from services.cli.any_id import commands as any_id
from services.cli.command_spec import ArgumentSpec, CommandSpec, Needs
from services.cli.deployment import commands as deployment
from services.cli.eval import commands as evaluation
from services.cli.gateway import commands as gateway
from services.cli.gauge import commands as gauge
from services.cli.job import commands as job
from services.cli.job import version_commands as versions
from services.cli.local import commands as local
from services.cli.log import commands as log
from services.cli.node import commands as node
from services.cli.operator import commands as operator
from services.cli.operator import keyring_commands as keyring
from services.cli.rollout import commands as rollout
from services.cli.service import commands as service
from services.cli.simulate import commands as simulate
from services.cli.sql import commands as sql
from services.cli.top import commands as top
from services.cli.variable import commands as variable
from services.cli.volume import commands as volume
from services.cli.what_if import commands as what_if

GROUPS = {
    "job": "run, stop and inspect jobs",
    "node": "inspect and drain nodes",
    "alloc": "inspect allocations and their files",
    "deployment": "follow, promote and end deployments",
    "rollout": "follow, promote and end rollouts of several jobs",
    "service": "list services and their instances",
    "var": "store and read variables, which are encrypted",
    "volume": "create, list and delete host volumes; list and release claims on them",
    "gauge": "publish values that hold updates back",
    "eval": "inspect evaluations",
    "system": "maintain the cluster",
    "operator": "configure the cluster",
    "context": "manage named buses",
    "log": "read and verify the log",
    "sim": "check the simulated world",
    "dead": "inspect undecodable messages",
}

_COMPLETION = (
    CommandSpec(
        ("completion",),
        "print the completion script of a shell",
        "completion:completion",
        (ArgumentSpec("shell", "bash, zsh or fish", metavar="SHELL", complete="(bash zsh fish)"),),
        {"": "completion:CompletionResult"},
        Needs.NOTHING,
        examples=(
            "completion bash > ~/.local/share/bash-completion/completions/caravan",
            "completion zsh > ~/.zfunc/_caravan",
            "completion fish > ~/.config/fish/completions/caravan.fish",
        ),
    ),
)

COMMANDS: tuple[CommandSpec, ...] = (
    *local.COMMANDS,
    *job.COMMANDS,
    *versions.COMMANDS,
    *deployment.COMMANDS,
    *rollout.COMMANDS,
    *service.COMMANDS,
    *variable.COMMANDS,
    *volume.COMMANDS,
    *gauge.COMMANDS,
    *node.COMMANDS,
    *alloc.COMMANDS,
    *evaluation.COMMANDS,
    *any_id.COMMANDS,
    *operator.COMMANDS,
    *keyring.COMMANDS,
    *gateway.COMMANDS,
    *top.COMMANDS,
    *log.COMMANDS,
    *sql.COMMANDS,
    *what_if.COMMANDS,
    *simulate.COMMANDS,
    *_COMPLETION,
)
