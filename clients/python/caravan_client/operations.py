"""Requests of operators: deployments, nodes, allocations, versions of jobs.

Each names the wanted state, not a change to it, so it can be sent again: until the log shows the effect.
"""

import asyncio
from typing import Any

import msgspec

from caravan_client.connection import PAUSE_S, Connection
from caravan_client.errors import NoAnswer, Refused
from caravan_client.messages import ErrorDetail, OperatorVerdict

#: Seconds until a request whose effect the log does not show raises NoAnswer.
_DECIDED_S = 30.0


class Operations:
    """Operator verbs. Every one returns the accepted verdict, or raises `Refused`. Ids may be short."""

    def __init__(self, connection: Connection) -> None:
        """Send them on this connection."""
        self._connection = connection

    async def promote(self, deployment: str, groups: tuple[str, ...] = ()) -> OperatorVerdict:
        """Promote the canaries of groups, by default of all that have some."""
        body = {"deployment_id": deployment, "groups": groups}
        return await self.request("deployment.promote", body)

    async def fail(self, deployment: str) -> OperatorVerdict:
        """End a deployment as failed; groups with auto_revert go back to the stable version."""
        return await self.request("deployment.fail", {"deployment_id": deployment})

    async def pause(self, deployment: str) -> OperatorVerdict:
        """Pause a deployment: nothing more is replaced, its deadline stops."""
        return await self.request("deployment.pause", {"deployment_id": deployment})

    async def resume(self, deployment: str) -> OperatorVerdict:
        """Resume a paused deployment."""
        return await self.request("deployment.resume", {"deployment_id": deployment})

    async def drain(
        self, node: str, *, deadline_s: float = 3600.0, ignore_system: bool = False
    ) -> OperatorVerdict:
        """Drain a node at the pace of each job's `migrate` block; at the deadline the rest is stopped.

        deadline_s: 0: at once; -1: never.
        """
        deadline_ns = -1 if deadline_s < 0 else round(deadline_s * 1e9)
        body = {
            "node_id": node,
            "draining": True,
            "deadline_ns": deadline_ns,
            "ignore_system": ignore_system,
        }
        return await self.request("node.drain", body)

    async def end_drain(self, node: str, *, keep_ineligible: bool = False) -> OperatorVerdict:
        """End a drain."""
        body = {"node_id": node, "draining": False, "keep_ineligible": keep_ineligible}
        return await self.request("node.drain", body)

    async def set_eligibility(self, node: str, *, eligible: bool) -> OperatorVerdict:
        """Allow or forbid new allocations on a node."""
        return await self.request("node.set_eligibility", {"node_id": node, "eligible": eligible})

    async def stop_allocation(self, alloc: str) -> OperatorVerdict:
        """Stop an allocation; its job replaces it if it still needs it."""
        return await self.request("alloc.stop", {"alloc_id": alloc})

    async def force_launch(self, job_id: str) -> OperatorVerdict:
        """Launch a child of a periodic job now."""
        return await self.request("job.force_launch", {"job_id": job_id})

    async def tag(self, job_id: str, name: str, *, version: int = -1) -> OperatorVerdict:
        """Name a version of a job, by default the newest."""
        return await self.request("job.tag", {"job_id": job_id, "name": name, "version": version})

    async def request(self, verb: str, body: dict[str, Any]) -> OperatorVerdict:
        """Send `api.<verb>` until it is decided; docs/subjects.md lists the verbs and their bodies."""
        data = msgspec.json.encode(body)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _DECIDED_S
        while True:
            reply = await self._connection.ask_bytes(f"api.{verb}", data)
            verdict = msgspec.json.decode(reply, type=OperatorVerdict)
            if verdict.status == "accepted":
                return verdict
            error = verdict.error or ErrorDetail(code="failed", message="refused without a reason")
            if verdict.status == "refused" and error.code != "unavailable":
                raise Refused(error)
            if loop.time() > deadline:
                raise NoAnswer(f"api.{verb}: the log shows no effect within {_DECIDED_S:g} s")
            await asyncio.sleep(PAUSE_S)
