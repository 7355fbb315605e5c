"""Values that inputs of a task hold, for its start: variables of templates, and `${secret.NAME.KEY}`.

No message to or from the role has them: the executor adds them to what the role composed. A driver puts them in with
the references that it resolves itself, in one pass, so that a value is never read for references.
"""

from collections.abc import Mapping
from typing import Any

from services.agent.tasks.environment import interpolate, interpolate_json
from shared.core.runtime.agent_messages import TaskLaunch
from shared.jobspec.secret_references import SecretReference, fill_references


class LaunchWithValues(TaskLaunch, frozen=True, kw_only=True):
    """What a driver needs to start a task, with what its inputs hold."""

    #: of the task's environment, over those of its own: texts as they are.
    variables: dict[str, str]
    secrets: dict[SecretReference, str]

    def __repr__(self) -> str:
        return f"<launch of {self.names.task} with values of its inputs>"


def with_values(
    launch: TaskLaunch, variables: Mapping[str, str], secrets: Mapping[SecretReference, str]
) -> TaskLaunch:
    """Add values to a launch."""
    if not variables and not secrets:
        return launch
    fields = {name: getattr(launch, name) for name in TaskLaunch.__struct_fields__}
    return LaunchWithValues(**fields, variables=dict(variables), secrets=dict(secrets))


def input_variables(launch: TaskLaunch) -> dict[str, str]:
    """Return the variables that inputs hold."""
    return launch.variables if isinstance(launch, LaunchWithValues) else {}


def fill_secrets(value: Any, launch: TaskLaunch) -> Any:
    """Fill in the secrets of a launch in a JSON value, and nothing else."""
    return fill_references(value, launch.secrets) if isinstance(launch, LaunchWithValues) else value


def launch_environment(launch: TaskLaunch, inherited: Mapping[str, str]) -> dict[str, str]:
    """Add the variables of a task to those that it inherits of its node, to which its own may refer.

    `PATH = "${PATH}:/opt/own"` adds to the inherited one.
    """
    values = {**inherited, **_secret_values(launch)}
    own = {name: interpolate(text, values) for name, text in launch.env.items()}
    return {**inherited, **own, **input_variables(launch)}


def fill_options(value: Any, launch: TaskLaunch, env: Mapping[str, str]) -> Any:
    """Resolve the references of a driver's options by a task's whole environment and its secrets, in one pass."""
    return interpolate_json(value, {**env, **_secret_values(launch)})


def references_filled(
    words: tuple[str, ...], env: Mapping[str, str], secrets: Mapping[SecretReference, str]
) -> tuple[str, ...]:
    """Resolve the references of a command by variables and secrets, in one pass."""
    values = {**env, **{one.text[2:-1]: text for one, text in secrets.items()}}
    return tuple(interpolate(word, values) for word in words)


def _secret_values(launch: TaskLaunch) -> dict[str, str]:
    """Name values as references do, without their braces."""
    if not isinstance(launch, LaunchWithValues):
        return {}
    return {one.text[2:-1]: text for one, text in launch.secrets.items()}
