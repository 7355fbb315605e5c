"""Which variables a task may read by its names alone: paths, as in Nomad. `keeper` decides; the others tell earlier."""

#: What every task may read.
JOBS = "nomad/jobs"


def task_paths(job: str, group: str, task: str) -> tuple[str, str, str, str]:
    """List the paths of a task. `job`: of a periodic or dispatched child the id of its parent."""
    return (JOBS, f"{JOBS}/{job}", f"{JOBS}/{job}/{group}", f"{JOBS}/{job}/{group}/{task}")


def path_refusal(path: str, readable: tuple[str, ...]) -> str:
    """Say why a task cannot read a variable; empty: it can."""
    if path in readable:
        return ""
    return f"this task may not read variable {path[:80]}: it may read {', '.join(readable)}"


def prefix_refusal(prefix: str, readable: tuple[str, ...]) -> str:
    """Say why a task cannot list variables below a prefix; empty: it can."""
    if any(one.startswith(prefix) for one in readable):
        return ""
    return (
        f"this task may not list variables below {prefix[:80]}: it may read {', '.join(readable)}"
    )
