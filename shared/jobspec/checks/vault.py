"""Validation of vault blocks. Source: Nomad structs.go, Vault.Validate.

The address of Vault is the operator's: a block says as whom a task logs in, not where.
"""

from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.checks.templates import place_in_allocation
from shared.jobspec.identities import identity_file, task_identities
from shared.jobspec.nomad.job import TaskSpec
from shared.jobspec.nomad.tasks import Vault
from shared.signal_names import signal_error

CHANGE_MODES = ("noop", "signal", "restart")
CLUSTER = "default"
NAME_CHARS_MAX = 512
#: Relative to the task's directory.
TOKEN_FILE = "secrets/vault_token"


def check_vault(faults: ErrorList, task: TaskSpec, path: str) -> None:
    """Find what is impossible in the vault block of the task at `path`."""
    if task.vault is None:
        return
    here = f"{path}.Vault"
    _change(faults, task.vault, here)
    for name, text in (("Role", task.vault.role), ("Namespace", task.vault.namespace)):
        if len(text) > NAME_CHARS_MAX or not text.isprintable() or not text.isascii():
            reason = f"at most {NAME_CHARS_MAX} printable characters of ASCII are allowed"
            faults.add(f"{here}.{name}", reason)
    if (task.vault.cluster or CLUSTER) != CLUSTER:
        text = f"must be {CLUSTER!r}: an agent knows one Vault, was {task.vault.cluster[:40]!r}"
        faults.add(f"{here}.Cluster", text)
    if not task.vault.disable_file:
        _file(faults, task, path)


def _change(faults: ErrorList, block: Vault, path: str) -> None:
    mode = block.change_mode or "restart"
    if mode not in CHANGE_MODES:
        text = f"must be one of {', '.join(CHANGE_MODES)}, was {mode[:80]!r}"
        faults.add(f"{path}.ChangeMode", text)
    elif mode == "signal" and not block.change_signal:
        faults.add(f"{path}.ChangeSignal", "must be set for change_mode signal")
    elif block.change_signal and (text := signal_error(block.change_signal)):
        faults.add(f"{path}.ChangeSignal", text)


def _file(faults: ErrorList, task: TaskSpec, path: str) -> None:
    """Refuse what would be written over the token, or be overwritten by it."""
    token = place_in_allocation(TOKEN_FILE)
    text = f"{TOKEN_FILE} is the token of the vault block; set disable_file, or another place"
    for at, one in enumerate(task.templates):
        if place_in_allocation(one.destination) == token:
            faults.add(f"{path}.Templates[{at}].DestPath", text)
    for found in task_identities(task):
        if place_in_allocation(identity_file(found.name, found.block)) == token:
            faults.add(f"{path}.{found.path}.Filepath", text)
