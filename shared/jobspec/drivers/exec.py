"""The options of drivers exec and raw_exec: allow-lists, used where a job is submitted and again on its node.

Options that need the operator's permission (capabilities, namespaces of the node, its network) pass here and are
decided on the node (services/agent/drivers/exec/settings.py).
"""

from typing import Any

import msgspec

from shared.jobspec.drivers.options import (
    Option,
    OptionDiagnostic,
    OptionValues,
    option_table,
    read_options,
)

_COMMAND_OPTIONS = (
    Option(
        "command",
        "text",
        "the program: a path relative to the task's directory, or a name in its PATH",
    ),
    Option("args", "list", "its arguments"),
    Option("work_dir", "text", "working directory, relative to the task's"),
)

#: Options of every driver that isolates processes.
ISOLATION_OPTIONS = (
    Option(
        "pid_mode",
        "text",
        "private (default); host, where the operator allows: sees all processes",
        choices=("private", "host"),
    ),
    Option(
        "ipc_mode",
        "text",
        "private (default); host, where the operator allows",
        choices=("private", "host"),
    ),
    Option(
        "network_mode",
        "text",
        "host (default, where the operator allows); none: only the loopback device",
        choices=("host", "none"),
    ),
    Option(
        "cap_add", "list", "additional capabilities, from those the operator allows; default: none"
    ),
    Option(
        "cap_drop", "list", "capabilities to remove from those the operator gives to every task"
    ),
)
#: Every option that is acted on.
OPTIONS = option_table(*_COMMAND_OPTIONS, *ISOLATION_OPTIONS)
RAW_OPTIONS = option_table(*_COMMAND_OPTIONS)
_NODE_ONLY_TEXT = "is the node operator's setting, not a job's"
REFUSED_OPTIONS = {
    "cgroup_v1_override": _NODE_ONLY_TEXT,
    "cgroup_v2_override": _NODE_ONLY_TEXT,
    "oom_score_adj": _NODE_ONLY_TEXT,
}
RAW_REFUSED_OPTIONS = {**REFUSED_OPTIONS, "denied_envvars": _NODE_ONLY_TEXT}


class IsolationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The isolation that a task requests; empty: the node's default."""

    pid_mode: str = ""
    ipc_mode: str = ""
    network_mode: str = ""
    #: lower case, without CAP_.
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()


class ExecOptions(IsolationOptions, frozen=True, kw_only=True):
    """The options of a task."""

    command: str = ""
    args: tuple[str, ...] = ()
    work_dir: str = ""


def read_exec(config: OptionValues) -> tuple[ExecOptions, tuple[OptionDiagnostic, ...]]:
    """Read the options of driver exec. Faults, if any, are beside what could be read."""
    values, faults = read_options(config, OPTIONS, REFUSED_OPTIONS)
    faults += check_command(config, values)
    return ExecOptions(**normalize_caps(values)), tuple(faults)


def read_raw_exec(config: OptionValues) -> tuple[ExecOptions, tuple[OptionDiagnostic, ...]]:
    """Read the options of driver raw_exec."""
    values, faults = read_options(config, RAW_OPTIONS, RAW_REFUSED_OPTIONS)
    faults += check_command(config, values)
    return ExecOptions(**values), tuple(faults)


def check_command(config: OptionValues, values: dict[str, Any]) -> list[OptionDiagnostic]:
    """Check the command line and the working directory."""
    found = []
    if not config.get("command"):
        found.append(OptionDiagnostic("command", "must name a program"))
    texts = [("command", values.get("command", "")), ("work_dir", values.get("work_dir", ""))]
    texts += [(f"args[{index}]", text) for index, text in enumerate(values.get("args", ()))]
    found += [
        OptionDiagnostic(path, "must not contain a NUL character")
        for path, text in texts
        if "\0" in text
    ]
    if ".." in values.get("work_dir", "").split("/"):
        found.append(OptionDiagnostic("work_dir", "must not lead out of the task's directory"))
    return found


def normalize_caps(values: dict[str, Any]) -> dict[str, Any]:
    """Write capabilities in lower case, without CAP_."""
    for name in ("cap_add", "cap_drop"):
        if name in values:
            values[name] = tuple(text.lower().removeprefix("cap_") for text in values[name])
    return values
