"""Secrets of tasks: each is fetched once in the life of this process for its task, and kept in its memory alone.

A restart of the task gets the same values. Another life of the agent fetches them again for the next start, and sooner
where a template that is followed needs them.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from services.agent.inputs.input_handler import HOOK_FAILED, InputContext, InputFailed
from services.agent.inputs.secrets.plugins import PluginFailed, SecretPlugins
from services.agent.inputs.templates.data_reads import NoSecrets, NoVariables, readable_variables
from services.agent.inputs.templates.followed_values import DataUnusable
from services.agent.inputs.templates.missing_data import MissingData
from services.agent.inputs.templates.variable_directory import VariableReader, VariableSource
from services.agent.inputs.vault.secret_directory import SecretName, SecretSource
from shared.core.runtime.agent_messages import TaskInput
from shared.core.runtime.input_specs import SECRET, SecretInput
from shared.jobspec.checks.secrets import NOMAD, VAULT
from shared.jobspec.secret_references import SecretReference
from shared.protocol.task_variables import path_refusal

#: Nomad's word, of what is waited for.
WAITING_EVENT = "Task hook message"


class _Held:
    """The values of one secret, for one task."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.values: dict[str, str] | None = None


class SecretHandler:
    """Fetches secrets, and holds their values."""

    kind = SECRET
    event_kind = HOOK_FAILED
    begin_kind = ""
    #: before artifacts, whose sources may refer to them.
    stage = -1
    #: a variable that does not exist is waited for; programs are bounded where they are run.
    timeout_s: float | None = None

    def __init__(
        self,
        plugins: SecretPlugins | None = None,
        *,
        variables: VariableSource | None = None,
        vault: SecretSource | None = None,
    ) -> None:
        self._plugins = plugins or SecretPlugins("")
        self._variables = variables or NoVariables()
        self._vault = vault or NoSecrets()
        self._missing = MissingData(WAITING_EVENT)
        #: allocation -> (task, secret) -> values.
        self._held: dict[str, dict[tuple[str, str], _Held]] = {}

    async def prepare(self, about: InputContext, wanted: TaskInput) -> bytes:
        """Fetch a secret, unless it is there. Raises InputFailed."""
        spec = msgspec.json.decode(wanted.spec, type=SecretInput)
        own = self._held.setdefault(about.alloc_id, {})
        held = own.setdefault((about.task, spec.secret), _Held())
        # Two followed templates may need it at once.
        async with held.lock:
            if held.values is None:
                if spec.provider == NOMAD:
                    held.values = await self._variable(about, wanted.name, spec)
                elif spec.provider == VAULT:
                    held.values = await self._read(about, wanted.name, spec)
                else:
                    held.values = await self._run(about, spec)
            return msgspec.json.encode(sorted(held.values.items()))

    def references(self, alloc_id: str, task: str) -> dict[SecretReference, str]:
        """Return the values that a task has so far."""
        return {
            SecretReference(secret, key): text
            for (owner, secret), one in self._held.get(alloc_id, {}).items()
            if owner == task
            for key, text in (one.values or {}).items()
        }

    def holds(self, alloc_id: str, task: str, wanted: TaskInput) -> bool:
        """Say whether a secret was fetched."""
        secret = msgspec.json.decode(wanted.spec, type=SecretInput).secret
        one = self._held.get(alloc_id, {}).get((task, secret))
        return one is not None and one.values is not None

    def forget(self, alloc_id: str) -> None:
        """Drop the values of an allocation that is over."""
        self._held.pop(alloc_id, None)

    # ---- inside ----

    async def _variable(self, about: InputContext, name: str, spec: SecretInput) -> dict[str, str]:
        """Read a variable; one that does not exist, or has no items but a lock alone, is waited for."""
        path = spec.path
        if text := path_refusal(path, readable_variables(about.launch)):
            raise InputFailed(text, recoverable=False, kind=HOOK_FAILED)
        reader = VariableReader(about.alloc_id, about.task)
        self._missing.note(about, name, (f"nomad.var.block({path})",))
        try:
            while True:
                found = await self._variables.variable(reader, path)
                if found.variable is not None and found.variable.items:
                    return dict(found.variable.items)
                await self._variables.changed(reader, {path: found.version})
        except DataUnusable as err:
            raise InputFailed(str(err), recoverable=True, kind=HOOK_FAILED) from err
        except InputFailed as err:
            raise InputFailed(str(err), recoverable=err.recoverable, kind=HOOK_FAILED) from err
        finally:
            self._missing.note(about, name, ())

    async def _read(self, about: InputContext, name: str, spec: SecretInput) -> dict[str, str]:
        """Read a secret of Vault; one that does not exist is waited for."""
        reader = VariableReader(about.alloc_id, about.task)
        asked = SecretName(spec.path)
        self._missing.note(about, name, (f"vault.read({spec.path})",))
        try:
            while True:
                found = await self._vault.secret(reader, asked)
                if found.secret is not None:
                    return texts_of(found.secret.data)
                await self._vault.changed(reader, {asked: found.version})
        except DataUnusable as err:
            raise InputFailed(str(err), recoverable=True, kind=HOOK_FAILED) from err
        finally:
            self._missing.note(about, name, ())

    async def _run(self, about: InputContext, spec: SecretInput) -> dict[str, str]:
        env: Mapping[str, str] = {
            **spec.env,
            "NOMAD_JOB_ID": about.launch.names.job,
            "NOMAD_NAMESPACE": "default",
        }
        try:
            return await self._plugins.fetch(spec.provider, spec.path, env)
        except PluginFailed as err:
            raise InputFailed(str(err), recoverable=err.recoverable, kind=HOOK_FAILED) from err


def texts_of(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a secret of Vault as texts; those of a versioned store are one level deeper."""
    inner = data.get("data")
    if isinstance(inner, dict) and isinstance(data.get("metadata"), dict):
        data = inner
    return {name: _text_of(one) for name, one in data.items()}


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
