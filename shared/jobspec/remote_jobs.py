"""What a task that runs elsewhere cannot be given: refused where the job is submitted.

Decides from what the task's driver declares, by the attributes of the registered nodes. Files of the node that tracks
a task are not where it runs, so whatever would put them there is refused, and nothing is silently without effect.
"""

from collections.abc import Iterator

from shared.jobspec.nomad.job import TaskGroup, TaskSpec


def remote_faults(
    group: TaskGroup, task: TaskSpec, at: str, number: int
) -> Iterator[tuple[str, str]]:
    """List the blocks that a remote task cannot have: path and reason. `at`: the group's path."""
    path = f"{at}.Tasks[{number}]"
    because = f"driver {task.driver} runs tasks elsewhere, and takes no files of the node"
    for name, blocks in (
        ("Artifacts", task.artifacts),
        ("Templates", task.templates),
        ("VolumeMounts", task.volume_mounts),
    ):
        yield from ((f"{path}.{name}[{nth}]", because) for nth in range(len(blocks)))
    if task.dispatch_payload is not None:
        yield f"{path}.DispatchPayload", because
    if task.vault is not None:
        yield f"{path}.Vault", because
    for nth, identity in enumerate(task.identities):
        if identity.file:
            yield f"{path}.Identities[{nth}].File", because
    if task.identity is not None and task.identity.file:
        yield f"{path}.Identity.File", because
    yield from _script_checks(group, task, at, path)
    for nth, network in enumerate(group.networks):
        if network.mode not in ("", "host"):
            text = f"driver {task.driver} runs tasks elsewhere, outside of the group's network"
            yield f"{at}.Networks[{nth}].Mode", text
    if task.resources.cores:
        text = f"driver {task.driver} runs tasks elsewhere: no cores of the node are its own"
        yield f"{path}.Resources.Cores", text


def _script_checks(
    group: TaskGroup, task: TaskSpec, at: str, path: str
) -> Iterator[tuple[str, str]]:
    text = f"driver {task.driver} runs tasks elsewhere: no check can run a script in one"
    for where, services in ((path, task.services), (at, group.services)):
        for nth, service in enumerate(services):
            for place, check in enumerate(service.checks):
                named = check.task_name or service.task_name
                is_here = where == path or named in ("", task.name)
                if check.type == "script" and is_here:
                    yield f"{where}.Services[{nth}].Checks[{place}]", text
