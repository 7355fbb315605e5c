"""Validation of artifacts: what can be known of a source, its checksum and its destination before they are fetched.

What holds a reference (`${…}`) is checked on the node, when it is filled in.
"""

from shared.jobspec.artifact_source import checksum_error, read_source
from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.nomad.job import TaskSpec
from shared.jobspec.nomad.tasks import Artifact

MODES = ("any", "file", "dir")
ARTIFACTS_MAX = 64
TEXT_CHARS_MAX = 4_096
PAIRS_MAX = 64
#: References to directories of the allocation that a destination may begin with.
DIRECTORIES = ("${NOMAD_TASK_DIR}", "${NOMAD_ALLOC_DIR}", "${NOMAD_SECRETS_DIR}")


def check_artifacts(faults: ErrorList, task: TaskSpec, path: str) -> None:
    """Check the artifacts of a task."""
    if len(task.artifacts) > ARTIFACTS_MAX:
        faults.add(f"{path}.Artifacts", f"at most {ARTIFACTS_MAX} artifacts are allowed")
        return
    for at, one in enumerate(task.artifacts):
        _artifact(faults, one, f"{path}.Artifacts[{at}]")


def _artifact(faults: ErrorList, one: Artifact, path: str) -> None:
    if one.mode not in MODES:
        faults.add(
            f"{path}.GetterMode", f"must be one of {', '.join(MODES)}, was {one.mode[:40]!r}"
        )
    _pairs(faults, one, path)
    _source(faults, one, path)
    if text := destination_error(one.destination):
        faults.add(f"{path}.RelativeDest", text)


def _source(faults: ErrorList, one: Artifact, path: str) -> None:
    if not one.source:
        faults.add(f"{path}.GetterSource", "is required")
        return
    if len(one.source) > TEXT_CHARS_MAX or not one.source.isprintable():
        faults.add(
            f"{path}.GetterSource", f"at most {TEXT_CHARS_MAX} printable characters are allowed"
        )
        return
    said = one.options.get("checksum", "")
    if said and "${" not in said and (text := checksum_error(said)):
        faults.add(f"{path}.GetterOptions", f"checksum {text}")
    if "${" in one.source or any("${" in value for value in one.options.values()):
        return
    try:
        found = read_source(one.source, one.options)
        if found.archive == "git" and one.mode == "file":
            faults.add(f"{path}.GetterMode", "a repository is a directory; mode file takes a file")
    except ValueError as err:
        faults.add(f"{path}.GetterSource", str(err))
        return
    checksum = found.options.get("checksum", "")
    if checksum and checksum != said and (text := checksum_error(checksum)):
        faults.add(f"{path}.GetterSource", f"checksum {text}")


def _pairs(faults: ErrorList, one: Artifact, path: str) -> None:
    for name, pairs in (("GetterOptions", one.options), ("GetterHeaders", one.headers)):
        texts = (*pairs, *pairs.values())
        if len(pairs) > PAIRS_MAX or any(len(text) > TEXT_CHARS_MAX for text in texts):
            faults.add(
                f"{path}.{name}", f"at most {PAIRS_MAX} of {TEXT_CHARS_MAX} characters are allowed"
            )
    if any(not key or not text.isprintable() for key, text in one.headers.items()):
        faults.add(f"{path}.GetterHeaders", "a header has a name, and a value that is printable")


def destination_error(text: str) -> str:
    """Say why a destination leaves the allocation, as far as it is known; empty: it does not."""
    if len(text) > TEXT_CHARS_MAX or "\0" in text:
        return f"at most {TEXT_CHARS_MAX} characters are allowed"
    for name in DIRECTORIES:
        text = text.replace(name, "1/2" if name != "${NOMAD_ALLOC_DIR}" else "1")
    if text.startswith("${"):
        return ""
    # A relative one begins in the task's directory, one level below the allocation's.
    depth = 0 if text.startswith("1") else 1
    for part in text.split("/"):
        depth += -1 if part == ".." else 1 if part not in ("", ".") else 0
        if depth < 0:
            return f"{text[:80]!r} leaves the directory of the allocation"
    return ""
