"""The options of drivers exec and raw_exec: allow-lists, used where a job is submitted and again on its node.

Decides what a process may ask for at all. What only some operators allow (capabilities, namespaces of the node, its
network) passes here and is decided on the node (services/agent/drivers/exec_settings.py).
"""

from typing import Any

import msgspec

from shared.jobspec.drivers.options import Json, Option, OptionFault, by_name, nearest, read_options

_ARGS = Option("args", "list", "its arguments")
_WORK_DIR = Option("work_dir", "text", "working directory, from the task's own")

#: What any driver that isolates processes offers.
ISOLATION = (
    Option(
        "pid_mode", "text", "private (default); host, where the operator allows: sees all processes"
    ),
    Option("ipc_mode", "text", "private (default); host, where the operator allows"),
    Option(
        "network_mode",
        "text",
        "host (default, where the operator allows); none: the loopback alone",
    ),
    Option(
        "cap_add", "list", "capabilities, of those the operator allows; a task has none by itself"
    ),
    Option("cap_drop", "list", "capabilities less, of those the operator gives to every task"),
)
#: Every option that is acted on.
OPTIONS = by_name(
    Option(
        "command", "text", "the program: a path from the task's directory, or a name in its PATH"
    ),
    _ARGS,
    _WORK_DIR,
    *ISOLATION,
)
RAW_OPTIONS = by_name(
    Option(
        "command", "text", "the program: a path from the task's directory, or a name in its PATH"
    ),
    _ARGS,
    _WORK_DIR,
)
_NOT_OURS = "the node's own matter, not a job's"
NEVER = {
    "cgroup_v1_override": _NOT_OURS,
    "cgroup_v2_override": _NOT_OURS,
    "oom_score_adj": _NOT_OURS,
}
RAW_NEVER = {**NEVER, "denied_envvars": _NOT_OURS}
_MODES = {
    "pid_mode": ("private", "host"),
    "ipc_mode": ("private", "host"),
    "network_mode": ("host", "none"),
}


class IsolationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a task asks of its isolation; empty: the node's default."""

    pid_mode: str = ""
    ipc_mode: str = ""
    network_mode: str = ""
    #: lower case, without CAP_.
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()


class ExecOptions(IsolationOptions, frozen=True, kw_only=True):
    """What a task asks for."""

    command: str = ""
    args: tuple[str, ...] = ()
    work_dir: str = ""


def read_exec(config: Json) -> tuple[ExecOptions, tuple[OptionFault, ...]]:
    """Read the options of driver exec. Faults, if any, stand beside what could be read."""
    values, faults = read_options(config, OPTIONS, NEVER)
    faults += command_faults(config, values)
    return ExecOptions(**isolation(values, faults)), tuple(faults)


def read_raw_exec(config: Json) -> tuple[ExecOptions, tuple[OptionFault, ...]]:
    """Read the options of driver raw_exec."""
    values, faults = read_options(config, RAW_OPTIONS, RAW_NEVER)
    faults += command_faults(config, values)
    return ExecOptions(**values), tuple(faults)


def command_faults(config: Json, values: dict[str, Any]) -> list[OptionFault]:
    """Find what no command line may be."""
    found = []
    if not config.get("command"):
        found.append(OptionFault("command", "must name a program"))
    texts = [("command", values.get("command", "")), ("work_dir", values.get("work_dir", ""))]
    texts += [(f"args[{index}]", text) for index, text in enumerate(values.get("args", ()))]
    found += [OptionFault(path, "holds a NUL") for path, text in texts if "\0" in text]
    if ".." in values.get("work_dir", "").split("/"):
        found.append(OptionFault("work_dir", "must not lead out of the task's directory"))
    return found


def isolation(values: dict[str, Any], faults: list[OptionFault]) -> dict[str, Any]:
    """Check and normalise what ISOLATION holds; adds to `faults`."""
    for name, known in _MODES.items():
        value = values.get(name, "")
        if value and "${" not in value and value not in known:
            hint = nearest(value, list(known))
            faults.append(
                OptionFault(name, f"must be {' or '.join(known)}, was {value[:40]!r}{hint}")
            )
    for name in ("cap_add", "cap_drop"):
        if name in values:
            values[name] = tuple(text.lower().removeprefix("cap_") for text in values[name])
    return values
