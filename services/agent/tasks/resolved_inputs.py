"""What a task is given before it starts, as the agent keeps it of a job: its inputs in the order of the work.

Decides names and order; services/agent/inputs/ prepares them. Next: `task_inputs.py`.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from schemas.base import Wire
from shared.core.runtime.input_specs import (
    ARTIFACT,
    IDENTITY,
    SECRET,
    TEMPLATE,
    VAULT,
    ArtifactInput,
    IdentityInput,
    SecretInput,
    TemplateInput,
    VaultInput,
)
from shared.jobspec.checks.templates import reads_files
from shared.jobspec.identities import (
    DeclaredIdentity,
    identity_file,
)
from shared.jobspec.nomad.job import TaskSpec
from shared.jobspec.nomad.tasks import Artifact, Secret, TemplateBlock, Vault
from shared.protocol.identity_names import DEFAULT_IDENTITY

#: How functions begin whose results change while a task runs.
LIVE_FUNCTIONS = ("service", "nomadService", "nomadVar")
#: Name of the input that is the token of the default identity: with it the task has the task API.
DEFAULT_TOKEN = f"{IDENTITY}[{DEFAULT_IDENTITY}]"
#: Of tasks with a vault block.
VAULT_FUNCTION = "secret"


class ChangeAction(Wire, frozen=True, kw_only=True):
    """What follows from a change of an input while its task runs; Nomad's fields."""

    #: noop, restart, signal or script.
    mode: str = "restart"
    signal: str = ""
    command: tuple[str, ...] = ()
    timeout_ns: int = 5_000_000_000
    #: a script that fails ends the task.
    fail_on_error: bool = False
    #: the script runs after the first start, too.
    on_first_render: bool = False
    #: longest pause before it.
    splay_ns: int = 0


class ResolvedInput(Wire, frozen=True, kw_only=True):
    """One input. `name`: unique in its task."""

    name: str
    kind: str
    #: JSON of the kind's options (shared/core/runtime/input_specs.py), with references.
    spec: msgspec.Raw
    #: options whose text stays as it is: references in them are not ours.
    verbatim: tuple[str, ...] = ()
    #: prepared before every start, not once in the life of the allocation.
    each_start: bool = False
    #: lies in `secrets/`.
    in_memory: bool = False
    #: None: it is made once, and not followed.
    on_change: ChangeAction | None = None


class LeftOutInputs(NamedTuple):
    """Blocks of a task that the submitter does without: identities by name, others by their index."""

    templates: frozenset[int] = frozenset()
    secrets: frozenset[int] = frozenset()
    vault: bool = False


NONE_LEFT_OUT = LeftOutInputs()


def resolve_inputs(
    task: TaskSpec,
    *,
    declared: Iterable[DeclaredIdentity] = (),
    renders_again: bool = False,
    left_out: LeftOutInputs = NONE_LEFT_OUT,
) -> tuple[ResolvedInput, ...]:
    """List the inputs of a task in the order in which they are prepared; the payload is not among them.

    `declared`: identities of the task and of its services. `renders_again`: templates are rendered before each start.
    """
    identities = tuple(
        _identity(one, task.driver)
        for one in declared
        # Without either a token is of no use to the task.
        if one.block.env or one.block.file
    )
    has_vault = task.vault is not None and not left_out.vault
    vault = (_vault(task.vault, task.driver),) if task.vault is not None and has_vault else ()
    secrets = tuple(
        _secret(one) for at, one in enumerate(task.secrets) if at not in left_out.secrets
    )
    templates = tuple(
        _template(one, at, task.driver, each_start=renders_again, has_vault=has_vault)
        for at, one in enumerate(task.templates)
        if at not in left_out.templates
    )
    artifacts = tuple(_artifact(one, at) for at, one in enumerate(task.artifacts))
    return identities + vault + secrets + artifacts + templates


def inputs_left_out(accepted: Iterable[str], path: str, task: TaskSpec) -> LeftOutInputs:
    """List the blocks of the task at `path` that a job was accepted without, all or some of them."""
    paths = frozenset(accepted)
    return LeftOutInputs(
        templates=_left_out(paths, f"{path}.Templates", len(task.templates)),
        secrets=_left_out(paths, f"{path}.Secrets", len(task.secrets)),
        vault=f"{path}.Vault" in paths,
    )


def _left_out(paths: frozenset[str], here: str, count: int) -> frozenset[int]:
    if here in paths:
        return frozenset(range(count))
    return frozenset(at for at in range(count) if f"{here}[{at}]" in paths)


def _identity(one: DeclaredIdentity, driver: str) -> ResolvedInput:
    block = one.block
    spec = IdentityInput(
        identity=one.name,
        env=block.env,
        file=identity_file(one.name, block),
        ttl_ns=block.ttl_ns,
        driver=driver,
    )
    action = ChangeAction(mode=block.change_mode or "noop", signal=block.change_signal)
    return ResolvedInput(
        name=f"{IDENTITY}[{one.name}]",
        kind=IDENTITY,
        spec=msgspec.Raw(msgspec.json.encode(spec)),
        verbatim=("identity",),
        # The token is kept by the agent's process alone.
        in_memory=True,
        on_change=action if block.ttl_ns else None,
    )


def _vault(block: Vault, driver: str) -> ResolvedInput:
    spec = VaultInput(
        role=block.role,
        namespace=block.namespace,
        env=block.env,
        disable_file=block.disable_file,
        allows_expiration=block.allow_token_expiration,
        driver=driver,
    )
    # Also where it is not renewed: another life of the agent finds the token again for the task's templates.
    mode = "noop" if block.allow_token_expiration else block.change_mode or "restart"
    signal = block.change_signal if mode == "signal" else ""
    return ResolvedInput(
        name=VAULT,
        kind=VAULT,
        spec=msgspec.Raw(msgspec.json.encode(spec)),
        in_memory=True,
        on_change=ChangeAction(mode=mode, signal=signal, splay_ns=0),
    )


def _secret(one: Secret) -> ResolvedInput:
    spec = SecretInput(secret=one.name, provider=one.provider, path=one.path, env=one.env)
    return ResolvedInput(
        name=f"{SECRET}.{one.name}",
        kind=SECRET,
        spec=msgspec.Raw(msgspec.json.encode(spec)),
        # Its values are kept by the agent's process alone.
        in_memory=True,
    )


def _artifact(one: Artifact, at: int) -> ResolvedInput:
    spec = ArtifactInput(
        source=one.source,
        options=one.options,
        headers=one.headers,
        mode=one.mode,
        insecure=one.insecure,
        destination=one.destination,
        chown=one.chown,
    )
    return ResolvedInput(
        name=f"{ARTIFACT}[{at}]",
        kind=ARTIFACT,
        spec=msgspec.Raw(msgspec.json.encode(spec)),
        in_memory=_is_in_memory(one.destination),
    )


def _template(
    one: TemplateBlock, at: int, driver: str, *, each_start: bool, has_vault: bool
) -> ResolvedInput:
    spec = TemplateInput(
        data=one.data,
        source=one.source,
        destination=one.destination,
        left_delimiter=one.left_delimiter,
        right_delimiter=one.right_delimiter,
        perms=one.perms or "0644",
        uid=-1 if one.uid is None else one.uid,
        gid=-1 if one.gid is None else one.gid,
        env=one.env,
        error_on_missing_key=one.error_on_missing_key,
        reads_files=reads_files(one),
        driver=driver,
        wait_min_ns=-1 if one.wait is None or one.wait.min_ns is None else one.wait.min_ns,
        wait_max_ns=-1 if one.wait is None or one.wait.max_ns is None else one.wait.max_ns,
    )
    return ResolvedInput(
        name=f"{TEMPLATE}[{at}]",
        kind=TEMPLATE,
        spec=msgspec.Raw(msgspec.json.encode(spec)),
        verbatim=("data", "left_delimiter", "right_delimiter"),
        each_start=each_start,
        # Variables are kept by the agent's process alone, so that no task changes those of its next run.
        in_memory=one.env or _is_in_memory(one.destination),
        on_change=_change_action(one) if _may_change(one, has_vault=has_vault) else None,
    )


def _may_change(one: TemplateBlock, *, has_vault: bool) -> bool:
    """Say whether what a template reads may change; of a source file only its rendering tells."""
    words = (*LIVE_FUNCTIONS, VAULT_FUNCTION) if has_vault else LIVE_FUNCTIONS
    return not one.once and (bool(one.source) or any(word in one.data for word in words))


def _change_action(one: TemplateBlock) -> ChangeAction:
    script = one.change_script if one.change_mode == "script" else None
    return ChangeAction(
        mode=one.change_mode or "restart",
        signal=one.change_signal,
        command=() if script is None else (script.command, *script.args),
        timeout_ns=0 if script is None else script.timeout_ns,
        fail_on_error=script is not None and script.fail_on_error,
        on_first_render=script is not None and script.run_on_first_render,
        splay_ns=one.splay_ns,
    )


def _is_in_memory(destination: str) -> bool:
    return destination.lstrip("./").startswith(("secrets", "${NOMAD_SECRETS_DIR}"))
