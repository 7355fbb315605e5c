"""Validation of template blocks: their fields, and the syntax and functions of what they hold.

Source: Nomad structs.go, Template.Validate; a template itself is parsed here, where Nomad finds its faults on the node.
Functions that are not built are no error of the job: it may be accepted without the templates that use them.
"""

import posixpath
import re

from shared.jobspec.checks.error_list import DURATION_NS_MAX, ErrorList
from shared.jobspec.nomad.job import JobSpec, TaskSpec
from shared.jobspec.nomad.tasks import TemplateBlock
from shared.protocol.task_variables import task_paths
from shared.signal_names import signal_error

ESCAPES = "must not leave the directory of the task or the allocation's alloc/"
CHANGE_MODES = ("noop", "restart", "signal", "script")
TEMPLATES_MAX = 100
WITHOUT_TEMPLATE = (
    "--accept-unbuilt (accept_unbuilt beside the job) submits the job without this template"
)
#: Of one job; beyond them templates are checked on the node alone, so that a check stays below half a second.
CHECKED_CHARS_MAX = 256 * 1024
ID_MAX = 2**31 - 1
_OCTAL = re.compile("[0-7]{1,5}")
_MODE_MAX = 0o7777
#: References to directories of a task, as paths from that of the allocation.
_DIRECTORIES = {
    "${NOMAD_ALLOC_DIR}": "/alloc",
    "${NOMAD_TASK_DIR}": "/task/local",
    "${NOMAD_SECRETS_DIR}": "/task/secrets",
}


#: Why `file` is refused in a template that a change of the file should reach.
FILE_UNWATCHED = (
    'reads its file once, which is not watched yet; set once = true or change_mode = "noop"'
)


#: Why a template of a task without a vault block may not use `secret`.
NO_VAULT = "needs a vault block of the task"


def reads_files(block: TemplateBlock) -> bool:
    """Return whether a template may use `file`: it does not ask for its file to be watched."""
    return block.once or block.change_mode == "noop"


def check_templates(faults: ErrorList, job: JobSpec) -> None:
    """Find what is impossible in the templates of a job."""
    left = CHECKED_CHARS_MAX
    for at, group in enumerate(job.groups):
        for number, task in enumerate(group.tasks):
            if task.templates:
                here = f"Job.TaskGroups[{at}].Tasks[{number}].Templates"
                readable = task_paths(job.id, group.name, task.name)
                left = _task(faults, task, here, left, readable=readable)


def _task(
    faults: ErrorList, task: TaskSpec, path: str, left: int, *, readable: tuple[str, ...]
) -> int:
    """Check the templates of a task; return how many characters may still be checked."""
    if len(task.templates) > TEMPLATES_MAX:
        faults.add(path, f"{len(task.templates)} templates, at most {TEMPLATES_MAX} are allowed")
        return left
    seen: set[str] = set()
    for at, block in enumerate(task.templates):
        here = f"{path}[{at}]"
        _places(faults, block, here, seen)
        _changes(faults, block, here)
        _numbers(faults, block, here)
        left -= len(block.data)
        if block.data and left >= 0 and not faults.is_full:
            _content(faults, block, here, readable, has_vault=task.vault is not None)
    return left


def _places(faults: ErrorList, block: TemplateBlock, path: str, seen: set[str]) -> None:
    if not block.source and not block.data:
        faults.add(path, "a template needs data or a source")
    elif block.source and block.data:
        faults.add(f"{path}.SourcePath", "data is set, too; remove one of them")
    if block.source and is_outside(block.source):
        faults.add(f"{path}.SourcePath", ESCAPES)
    if not block.destination:
        faults.add(f"{path}.DestPath", "must be set")
    elif is_outside(block.destination):
        faults.add(f"{path}.DestPath", ESCAPES)
    else:
        place = place_in_allocation(block.destination)
        if place in seen:
            faults.add(f"{path}.DestPath", "another template of the task has the same destination")
        seen.add(place)


def place_in_allocation(path: str) -> str:
    """Write a path from the directory of the allocation: below `task/` or `alloc/`."""
    for name, directory in _DIRECTORIES.items():
        path = path.replace(name, directory)
    own = path if path.startswith(tuple(_DIRECTORIES.values())) else f"/task/{path}"
    return posixpath.normpath(own).lstrip("/")


def is_outside(path: str) -> bool:
    """Return whether a path leaves the directories of its task, as far as it is known."""
    return "\0" in path or not place_in_allocation(path).startswith(("task/", "alloc/"))


def _changes(faults: ErrorList, block: TemplateBlock, path: str) -> None:
    mode = block.change_mode or "restart"
    if mode not in CHANGE_MODES:
        text = f"must be one of {', '.join(CHANGE_MODES)}, was {mode[:80]!r}"
        faults.add(f"{path}.ChangeMode", text)
    if mode == "signal" and not block.change_signal:
        faults.add(f"{path}.ChangeSignal", "must be set for change_mode signal")
    elif block.change_signal and (text := signal_error(block.change_signal)):
        faults.add(f"{path}.ChangeSignal", text)
    if mode == "signal" and block.env:
        text = "must not be signal with env: a running task does not see its environment change"
        faults.add(f"{path}.ChangeMode", text)
    if mode == "script" and (block.change_script is None or not block.change_script.command):
        faults.add(f"{path}.ChangeScript.Command", "must be set for change_mode script")
    if block.change_script is not None:
        timeout_ns = block.change_script.timeout_ns
        faults.within_span(path, ".ChangeScript.Timeout", timeout_ns, (0, DURATION_NS_MAX))


def _numbers(faults: ErrorList, block: TemplateBlock, path: str) -> None:
    faults.within_span(path, ".Splay", block.splay_ns, (0, DURATION_NS_MAX))
    if block.perms and not (_OCTAL.fullmatch(block.perms) and int(block.perms, 8) <= _MODE_MAX):
        faults.add(f"{path}.Perms", f"must be octal, up to 7777, was {block.perms[:80]!r}")
    for name, number in (("Uid", block.uid), ("Gid", block.gid)):
        if number is not None and number > ID_MAX:
            faults.add(f"{path}.{name}", f"must be at most {ID_MAX}, was {number}")
    if block.wait is None:
        return
    least, most = block.wait.min_ns, block.wait.max_ns
    faults.within_span(path, ".Wait.Min", least or 0, (0, DURATION_NS_MAX))
    faults.within_span(path, ".Wait.Max", most or 0, (0, DURATION_NS_MAX))
    if least is not None and most is not None and least > most:
        faults.add(f"{path}.Wait.Min", "must not exceed max")


def _content(
    faults: ErrorList,
    block: TemplateBlock,
    path: str,
    readable: tuple[str, ...],
    *,
    has_vault: bool,
) -> None:
    # Most jobs have no template, and its functions import a parser of YAML.
    from shared.gotemplate.functions.catalog import OF_VAULT, FunctionPolicy  # noqa: PLC0415
    from shared.gotemplate.template import parse_template  # noqa: PLC0415

    delimiters = (block.left_delimiter, block.right_delimiter)
    unwatched = {} if reads_files(block) else {"file": FILE_UNWATCHED}
    # As in Nomad the block alone says it; the job may do without what it cannot render.
    without = {} if has_vault else dict.fromkeys(OF_VAULT, NO_VAULT)
    policy = FunctionPolicy(unbuilt={**unwatched, **without}, readable=readable)
    found = parse_template(block.data, delimiters=delimiters, policy=policy).faults
    for fault in found:
        if not fault.is_unbuilt:
            text = f"line {fault.line} of the template: {fault.message}"
            faults.add(f"{path}.EmbeddedTmpl", text)
    unbuilt = [one for one in found if one.is_unbuilt]
    if unbuilt:
        named = "; ".join(f"line {one.line} of the template: {one.message}" for one in unbuilt[:3])
        more = f", and {len(unbuilt) - 3} more" if len(unbuilt) > 3 else ""
        faults.add_unbuilt(path, f"{named}{more}; {WITHOUT_TEMPLATE}")
