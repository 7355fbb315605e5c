"""Where a path of a job's input is on this node."""

from collections.abc import Mapping
from pathlib import Path
from posixpath import normpath

from services.agent.executor.data_dir import TaskDirs


def resolve_place(places: TaskDirs, text: str, view: Mapping[str, str] | None = None) -> Path:
    """Find a path that a job names: relative to the task's directory, or by a reference to one of the directories.

    `view`: the directories as the task sees them. Raises ValueError for one that leaves the allocation.
    """
    known = places.variables()
    for name, path in known.items():
        text = text.replace(f"${{{name}}}", path)
    top = str(places.shared.parent)
    if "\0" in text or "${" in text:
        raise ValueError(f"{text[:80]!r} has a reference that is not known")
    if not text.startswith(f"{top}/"):
        seen = next(
            (name for name, path in (view or {}).items() if text.startswith(f"{path}/")), ""
        )
        inside = text.removeprefix(view[seen]) if view is not None and seen else ""
        text = known[seen] + inside if seen else f"{places.task}/{text}"
    found = Path(normpath(text))
    if not found.is_relative_to(top) or found == Path(top):
        raise ValueError(f"{text.removeprefix(top)[:80]!r} leaves the directory of the allocation")
    return found
