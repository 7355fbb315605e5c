"""Secrets of a launch: values of `${secret.NAME.KEY}`, which no message to or from the role holds.

The executor adds them to what the role composed. Each driver fills them in last, after all other references, so that a
value is never read for references.
"""

from collections.abc import Mapping
from typing import Any

from shared.core.runtime.agent_messages import TaskLaunch
from shared.jobspec.secret_references import SecretReference, fill_references


class LaunchWithSecrets(TaskLaunch, frozen=True, kw_only=True):
    """What a driver needs to start a task, with the values of its secrets."""

    secrets: dict[SecretReference, str]

    def __repr__(self) -> str:
        return f"<launch of {self.names.task} with {len(self.secrets)} secrets>"


def with_secrets(launch: TaskLaunch, secrets: Mapping[SecretReference, str]) -> TaskLaunch:
    """Add values to a launch."""
    if not secrets:
        return launch
    fields = {name: getattr(launch, name) for name in TaskLaunch.__struct_fields__}
    return LaunchWithSecrets(**fields, secrets=dict(secrets))


def fill_secrets(value: Any, launch: TaskLaunch) -> Any:
    """Fill in the secrets of a launch in a JSON value."""
    if not isinstance(launch, LaunchWithSecrets):
        return value
    return fill_references(value, launch.secrets)
