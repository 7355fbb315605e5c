"""One method for each `query.<noun>`. Written by `python -m schemas.generate`; a test compares.

Every answer carries the `seq` of the state that it was made from. With `min_seq`, the `seq` of a verdict, the answer
is at least as new.
"""

from typing import Any, Protocol, TypeVar

from caravan_client import messages

T = TypeVar("T")


class Ask(Protocol):
    """Sends one query and decodes its answer."""

    async def __call__(self, noun: str, parameters: dict[str, Any], answer: type[T], /) -> T:
        """Ask `query.<noun>`; raises on an error."""
        ...



class Queries:
    """Questions about the state of the cluster, answered by any view."""

    def __init__(self, ask: Ask) -> None:
        """Send queries by `ask`."""
        self._ask = ask

    async def jobs(
        self,
        id_: str = "",
        *,
        job_id: str = "",
        status: str = "",
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.JobsAnswer:
        """Return `jobs`, by id; children of one job newest first.

        id: prefix of the ids.
        job_id: children of this job.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "job_id": job_id,
            "status": status,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("jobs", parameters, messages.JobsAnswer)

    async def job(
        self,
        id_: str,
        *,
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.JobAnswer:
        """Return `allocations`: those that have not ended first, then by group, index, newest first.

        id: the job's id.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("job", parameters, messages.JobAnswer)

    async def job_version(
        self,
        id_: str,
        *,
        version: int = -1,
        min_seq: int = 0,
    ) -> messages.JobVersionAnswer:
        """Ask `query.job_version`.

        id: the job's id.
        version: -1: the newest.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "version": version,
            "min_seq": min_seq,
        }
        return await self._ask("job_version", parameters, messages.JobVersionAnswer)

    async def job_versions(
        self,
        id_: str,
        *,
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.JobVersionsAnswer:
        """Return `versions`, newest first.

        id: the job's id.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("job_versions", parameters, messages.JobVersionsAnswer)

    async def plan(
        self,
        job: dict[str, Any],
        *,
        accept_unbuilt: bool = False,
        accept_unknown: bool = False,
        min_seq: int = 0,
    ) -> messages.PlanAnswer:
        """Ask `query.plan`.

        Job: the job, as in `api.jobs.submit`.
        accept_unbuilt: as in `api.jobs.submit`.
        accept_unknown: as in `api.jobs.submit`.
        """
        parameters: dict[str, Any] = {
            "Job": job,
            "accept_unbuilt": accept_unbuilt,
            "accept_unknown": accept_unknown,
            "min_seq": min_seq,
        }
        return await self._ask("plan", parameters, messages.PlanAnswer)

    async def why_not(
        self,
        id_: str,
        *,
        node_id: str = "",
        group: str = "",
        min_seq: int = 0,
    ) -> messages.WhyAnswer:
        """Ask `query.why_not`.

        id: the job's id.
        node_id: one node alone.
        group: empty: the first group.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "node_id": node_id,
            "group": group,
            "min_seq": min_seq,
        }
        return await self._ask("why_not", parameters, messages.WhyAnswer)

    async def policy(
        self,
        *,
        min_seq: int = 0,
    ) -> messages.PolicyAnswer:
        """Ask `query.policy`."""
        parameters: dict[str, Any] = {
            "min_seq": min_seq,
        }
        return await self._ask("policy", parameters, messages.PolicyAnswer)

    async def nodes(
        self,
        id_: str = "",
        *,
        status: str = "",
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.NodesAnswer:
        """Return `nodes`, by id.

        id: prefix of the ids.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "status": status,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("nodes", parameters, messages.NodesAnswer)

    async def node(
        self,
        id_: str,
        *,
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.NodeAnswer:
        """Return `allocations`: as in `query.job`.

        id: the node's id, a unique prefix of it, or its name.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("node", parameters, messages.NodeAnswer)

    async def allocs(
        self,
        id_: str = "",
        *,
        job_id: str = "",
        node_id: str = "",
        status: str = "",
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.AllocsAnswer:
        """Return `allocations`, newest first.

        id: prefix of the shown ids.
        job_id: of this job.
        node_id: on this node.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "job_id": job_id,
            "node_id": node_id,
            "status": status,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("allocs", parameters, messages.AllocsAnswer)

    async def alloc(
        self,
        id_: str,
        *,
        min_seq: int = 0,
    ) -> messages.AllocAnswer:
        """Ask `query.alloc`.

        id: the shown id, a unique prefix of it, or `job.group[index]`.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "min_seq": min_seq,
        }
        return await self._ask("alloc", parameters, messages.AllocAnswer)

    async def evals(
        self,
        job_id: str = "",
        *,
        status: str = "",
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.EvalsAnswer:
        """Return `evaluations`, newest first.

        job_id: of this job.
        """
        parameters: dict[str, Any] = {
            "job_id": job_id,
            "status": status,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("evals", parameters, messages.EvalsAnswer)

    async def eval(
        self,
        id_: str,
        *,
        min_seq: int = 0,
    ) -> messages.EvalAnswer:
        """Ask `query.eval`.

        id: the shown id, or a unique prefix of it.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "min_seq": min_seq,
        }
        return await self._ask("eval", parameters, messages.EvalAnswer)

    async def deployments(
        self,
        job_id: str = "",
        *,
        status: str = "",
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.DeploymentsAnswer:
        """Return `deployments`, newest first.

        job_id: of this job.
        """
        parameters: dict[str, Any] = {
            "job_id": job_id,
            "status": status,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("deployments", parameters, messages.DeploymentsAnswer)

    async def deployment(
        self,
        id_: str = "",
        *,
        job_id: str = "",
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.DeploymentAnswer:
        """Return `allocations`: as in `query.job`.

        id: the shown id, or a unique prefix of it.
        job_id: the newest of this job, where `id` is absent.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "job_id": job_id,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("deployment", parameters, messages.DeploymentAnswer)

    async def rollouts(
        self,
        job_id: str = "",
        *,
        status: str = "",
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.RolloutsAnswer:
        """Return `rollouts`, newest first.

        job_id: with this job.
        """
        parameters: dict[str, Any] = {
            "job_id": job_id,
            "status": status,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("rollouts", parameters, messages.RolloutsAnswer)

    async def rollout(
        self,
        id_: str = "",
        *,
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.RolloutAnswer:
        """Return `members`: as submitted.

        id: the shown id, a unique prefix of it, or a name: the newest rollout with it.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("rollout", parameters, messages.RolloutAnswer)

    async def services(
        self,
        id_: str = "",
        *,
        job_id: str = "",
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.ServicesAnswer:
        """Return `services`, by name.

        id: prefix of the names.
        job_id: of this job.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "job_id": job_id,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("services", parameters, messages.ServicesAnswer)

    async def service(
        self,
        id_: str,
        *,
        job_id: str = "",
        node_id: str = "",
        status: str = "",
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.ServiceAnswer:
        """Return `instances`, by job, group and index.

        id: the name.
        job_id: of this job.
        node_id: on this node.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "job_id": job_id,
            "node_id": node_id,
            "status": status,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("service", parameters, messages.ServiceAnswer)

    async def waiting(
        self,
        job_id: str = "",
        *,
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.WaitingAnswer:
        """Return `waiting`, the next first.

        job_id: of this job.
        """
        parameters: dict[str, Any] = {
            "job_id": job_id,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("waiting", parameters, messages.WaitingAnswer)

    async def cluster(
        self,
        id_: str = "",
        *,
        min_seq: int = 0,
    ) -> messages.ClusterAnswer:
        """Ask `query.cluster`.

        id: `hashes`: with the hash of every table.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "min_seq": min_seq,
        }
        return await self._ask("cluster", parameters, messages.ClusterAnswer)

    async def resources(
        self,
        id_: str = "",
        *,
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.ResourcesAnswer:
        """Return `pools`, by name.

        id: prefix of the names.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("resources", parameters, messages.ResourcesAnswer)

    async def submission(
        self,
        id_: str,
        *,
        min_seq: int = 0,
    ) -> messages.SubmissionAnswer:
        """Ask `query.submission`.

        id: the submission's id.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "min_seq": min_seq,
        }
        return await self._ask("submission", parameters, messages.SubmissionAnswer)

    async def variables(
        self,
        id_: str = "",
        *,
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.VariablesAnswer:
        """Return `variables`, by path, without their items; paths that a lock holds too.

        id: prefix of the paths.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("variables", parameters, messages.VariablesAnswer)

    async def keys(
        self,
        *,
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.KeysAnswer:
        """Return `keys`, newest first: clients seal items with the first one."""
        parameters: dict[str, Any] = {
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("keys", parameters, messages.KeysAnswer)

    async def signing_keys(
        self,
        *,
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.SigningKeysAnswer:
        """Return `keys`, newest first: the first one signs, all of them verify."""
        parameters: dict[str, Any] = {
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("signing_keys", parameters, messages.SigningKeysAnswer)

    async def claims(
        self,
        job_id: str = "",
        *,
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.ClaimsAnswer:
        """Return `claims`, by job, group, index and volume.

        job_id: of this job.
        """
        parameters: dict[str, Any] = {
            "job_id": job_id,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("claims", parameters, messages.ClaimsAnswer)

    async def volumes(
        self,
        id_: str = "",
        *,
        node_id: str = "",
        status: str = "",
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.VolumesAnswer:
        """Return `volumes`, host volumes that were created by request, by name and id.

        id: beginning of the ids.
        node_id: on this node.
        status: of this status.
        """
        parameters: dict[str, Any] = {
            "id": id_,
            "node_id": node_id,
            "status": status,
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("volumes", parameters, messages.VolumesAnswer)

    async def dead(
        self,
        *,
        limit: int = 1000,
        offset: int = 0,
        min_seq: int = 0,
    ) -> messages.DeadAnswer:
        """Return `messages`, newest first."""
        parameters: dict[str, Any] = {
            "limit": limit,
            "offset": offset,
            "min_seq": min_seq,
        }
        return await self._ask("dead", parameters, messages.DeadAnswer)
