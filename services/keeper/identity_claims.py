"""What stands in the token of an identity: read from the version of the job that the allocation runs (ADR 38).

The question of a node decides nothing but which identity it is about: audience and lifetime are those of the job file.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from schemas.base import SECOND_NS, JobId
from shared.core.state.ids import alloc_id
from shared.core.state.state import State
from shared.core.state.tables.jobs import JobVersion
from shared.errors import CommandInvalid
from shared.jobspec.extra_claims import CLAIM, filled_claims
from shared.jobspec.identities import (
    DeclaredIdentity,
    accepted_without,
    extra_claims_of,
    group_identities,
)
from shared.jobspec.nomad.job import JOB_DECODER, TaskSpec
from shared.jobspec.nomad.services import WorkloadIdentity
from shared.protocol.identity_names import (
    DEFAULT_AUDIENCE,
    DEFAULT_IDENTITY,
    NAMESPACE,
    REGION,
    VAULT_AUDIENCE,
    VAULT_IDENTITY,
    VAULT_LIFE_S,
)

#: Versions whose identities are kept: the text of one is read once.
_VERSIONS_KEPT = 256


class SignedBlock(NamedTuple):
    """An identity of a task: its block, and claims that other blocks of the task add."""

    block: WorkloadIdentity
    claims: Mapping[str, str]
    #: name of the service that it is of; empty: it is the task's own.
    service: str = ""
    #: of the job, for claims of the block's own.
    node_pool: str = ""


#: By group and task: the identities by name.
_Identities = dict[tuple[str, str], dict[str, SignedBlock]]
#: Of a login at Vault, where the job says nothing else.
VAULT_BLOCK = WorkloadIdentity(
    name=VAULT_IDENTITY, audience=(VAULT_AUDIENCE,), ttl_ns=VAULT_LIFE_S * SECOND_NS
)


class TaskIdentities:
    """Identities of tasks by the version of their job."""

    def __init__(self, vault: WorkloadIdentity = VAULT_BLOCK) -> None:
        self._vault = vault
        #: job, seq of the version -> what its text says; oldest first. A purged job begins at version 0 again.
        self._known: dict[tuple[str, int], _Identities] = {}

    def of_task(self, state: State, row: int, task: str) -> dict[str, SignedBlock]:
        """Return the identities of a task of an allocation by name. Raises CommandInvalid."""
        groups = state.allocations.groups
        ref = int(state.allocations.group[row])
        job_id, number, group = groups.job_ids[ref], groups.versions[ref], groups.names[ref]
        version = state.jobs.version(JobId(job_id), number)
        if version is None:
            text = (
                f"version {number} of job {job_id!r}, which the allocation runs, is no longer kept"
            )
            raise CommandInvalid("unavailable", text)
        found = self._read(job_id, version).get((group, task))
        if found is None:
            text = f"job {job_id!r} version {number} has no task {task!r} in group {group!r}"
            raise CommandInvalid("forbidden", text)
        return found

    def _read(self, job_id: str, version: JobVersion) -> _Identities:
        key = (job_id, version.seq)
        if key not in self._known:
            if len(self._known) >= _VERSIONS_KEPT:
                del self._known[next(iter(self._known))]
            self._known[key] = _identities_of(version.spec, self._vault)
        return self._known[key]


def vault_block(audience: str, life_s: int) -> WorkloadIdentity:
    """Return the identity with which tasks log in at Vault, where their job says nothing else."""
    names = (audience,) if audience else ()
    return WorkloadIdentity(name=VAULT_IDENTITY, audience=names, ttl_ns=max(life_s, 0) * SECOND_NS)


def _identities_of(spec: bytes, vault: WorkloadIdentity) -> _Identities:
    job = JOB_DECODER.decode(spec)
    accepted, found = accepted_without(spec), _Identities()
    for group in job.groups:
        declared = group_identities(job, group, accepted)
        for task in group.tasks:
            found[group.name, task.name] = _of_task(task, declared[task.name], vault, job.node_pool)
    return found


def _of_task(
    task: TaskSpec, declared: Iterable[DeclaredIdentity], vault: WorkloadIdentity, pool: str
) -> dict[str, SignedBlock]:
    found = {one.name: SignedBlock(one.block, {}, one.service, pool) for one in declared}
    if task.vault is not None:
        block = found[VAULT_IDENTITY].block if VAULT_IDENTITY in found else vault
        claims = {"vault_namespace": task.vault.namespace, "vault_role": task.vault.role}
        said = {name: text for name, text in claims.items() if text}
        found[VAULT_IDENTITY] = SignedBlock(block, said, "", pool)
    return found


def claims_of(
    state: State,
    row: int,
    *,
    task: str,
    name: str,
    signed: SignedBlock,
    now_ns: int,
    issuer: str,
) -> dict[str, Any]:
    """Make the claims of a token, but for its id."""
    block = signed.block
    table = state.allocations
    ref = int(table.group[row])
    job_id: str = table.groups.job_ids[ref]
    # A child of a periodic or parameterized job is its parent to others.
    job_id = state.launches.parent_of.get(JobId(job_id), job_id)
    audience = (DEFAULT_AUDIENCE,) if name == DEFAULT_IDENTITY else block.audience or ()
    group = table.groups.names[ref]
    issued_s = now_ns // SECOND_NS
    claims: dict[str, Any] = {
        "sub": f"{REGION}:{NAMESPACE}:{job_id}:{group}:{signed.service or task}:{name}",
        "iat": issued_s,
        "nbf": issued_s,
        "nomad_namespace": NAMESPACE,
        "nomad_job_id": job_id,
        "nomad_allocation_id": alloc_id(int(table.key[row])),
    }
    # As in Nomad: the token of a service says nothing of a task.
    claims |= {"nomad_service": signed.service} if signed.service else {"nomad_task": task}
    claims |= signed.claims
    if said := extra_claims_of(block):
        # Below one claim: what a job's author says is never one of the keeper's own claims.
        values = _claim_values(state, row, claims, pool=signed.node_pool, group=group)
        claims[CLAIM] = filled_claims(said, values)
    if audience:
        claims["aud"] = audience[0] if len(audience) == 1 else list(audience)
    if block.ttl_ns > 0:
        claims["exp"] = issued_s + -(-block.ttl_ns // SECOND_NS)
    if issuer:
        claims["iss"] = issuer
    return claims


def _claim_values(
    state: State, row: int, claims: Mapping[str, Any], *, pool: str, group: str
) -> dict[str, str]:
    """Return the values of references in claims (shared/jobspec/extra_claims.py)."""
    node = state.fleet.specs[int(state.allocations.node[row])]
    return {
        "job.region": REGION,
        "job.namespace": NAMESPACE,
        "job.id": claims["nomad_job_id"],
        "job.node_pool": pool,
        "group.name": group,
        "task.name": claims.get("nomad_task", ""),
        "service.name": claims.get("nomad_service", ""),
        "alloc.id": claims["nomad_allocation_id"],
        "node.id": node.node_id,
        "node.datacenter": node.datacenter,
        "node.pool": node.node_pool,
        "node.class": node.node_class,
    }
