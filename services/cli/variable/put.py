"""`caravan var put` and `caravan var purge`."""

from collections.abc import Sequence

import msgspec

from services.cli.runtime.output import CliError, CommandOutput
from services.cli.variable.keeper import ask_keeper, held_lock
from services.cli.variable.spec import NAMESPACE, read_arguments
from shared.numerals import is_digits
from shared.variable_client import ANY_REVISION, VariableFault


class VarPutResult(msgspec.Struct, frozen=True, kw_only=True):
    """`var put --json`."""

    path: str
    namespace: str
    modify_index: int


class VarPurgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """`var purge --json`."""

    path: str
    namespace: str


def put(
    out: CommandOutput,
    *,
    words: Sequence[str],
    check_index: str,
    force: bool,
    shred_old: bool,
    spec_format: str,
) -> int:
    """Store items in place of all that the path had."""
    if force and check_index:
        raise CliError("usage", "--force and --check-index exclude each other")
    given = _revision(check_index)
    if spec_format not in ("", "hcl", "json"):
        raise CliError("usage", f"--in must be hcl or json, not {spec_format!r}")
    spec = read_arguments(out, words, spec_format)
    cas = spec.modify_index if given == ANY_REVISION and not force else given
    try:
        revision = ask_keeper(
            lambda client: client.put(
                spec.path, spec.items, cas=cas, shred_old=shred_old, lock_id=held_lock(spec.path)
            )
        )
    except VariableFault as fault:
        if fault.code != "conflict" or not fault.revision:
            raise
        text = f"{fault.message}; --check-index {fault.revision} or --force stores it over that one"
        raise CliError(fault.code, text, path=fault.path) from fault
    out.result(VarPutResult(path=spec.path, namespace=NAMESPACE, modify_index=revision))
    out.line(f"stored {spec.path}, check-index {revision}", "green")
    return 0


def purge(out: CommandOutput, *, path: str, check_index: str) -> int:
    """Erase a path; one that does not exist is erased already."""
    cas = _revision(check_index)
    name = path.strip().strip("/")
    ask_keeper(lambda client: client.delete(name, cas=cas, lock_id=held_lock(name)))
    out.result(VarPurgeResult(path=name, namespace=NAMESPACE))
    out.line(f"erased {name}", "green")
    return 0


def _revision(text: str) -> int:
    """The revision of --check-index. Raises CliError."""
    if text and not is_digits(text):
        raise CliError("usage", f"--check-index must be a number, not {text!r}")
    return int(text) if text else ANY_REVISION
