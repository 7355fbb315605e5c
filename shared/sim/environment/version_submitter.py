"""A scripted submitter that also takes its job back to an older version, scales it, and starts it again.

Its submission ids say what the next version must be, so that the oracle can judge it by the log alone.
"""

import re
from typing import Any

import msgspec

from schemas.jobs import Verdict
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.environment.submitters import SubmitRequest, SubmittedJob, Submitter
from shared.sim.virtual_time import SECOND, RandomDraws

#: What a submission id says of the version that it makes, and of which older version or count.
ASKED = re.compile(r"-(revert|scale|start)(\d*)$")


class VersionSubmitter(Submitter):
    """Owner of one service. All its requests have an answer that names the version."""

    # More versions than are kept.
    pause_max_ns = SECOND

    def __init__(self, context: SimulationContext, draws: RandomDraws, first: SubmittedJob) -> None:
        super().__init__(context, draws, first)
        #: by version, and of the newest one that was accepted.
        self._shapes: dict[int, SubmittedJob] = {}
        self._newest: SubmittedJob | None = None

    def _wish(self) -> SubmitRequest:
        if self._newest is None or not self._draws.hit(450):
            return super()._wish()
        what = self._draws.below(100)
        if what < 40 and self._shapes:
            versions = sorted(self._shapes)
            version = versions[self._draws.below(len(versions))]
            return self._change("revert", version, self._shapes[version], JobVersion=version)
        if what < 75:
            count = self._draws.between(*self._counts)
            shape = msgspec.structs.replace(self._newest, count=count)
            return self._change("scale", count, shape, Count=count)
        return self._change("start", None, self._newest)

    def _change(
        self, verb: str, number: int | None, shape: SubmittedJob, **fields: Any
    ) -> SubmitRequest:
        name = f"{self._fresh()}-{verb}{'' if number is None else number}"
        body = {"JobID": shape.job_id, "SubmissionID": name, **fields}
        return SubmitRequest(
            verb=verb,
            body=msgspec.json.encode(body),
            submission_id=name,
            by_box=False,
            shape=shape,
        )

    def _submit(self, shape: SubmittedJob) -> SubmitRequest:
        return msgspec.structs.replace(super()._submit(shape), by_box=False)

    def _stop_wish(self) -> SubmitRequest:
        return msgspec.structs.replace(super()._stop_wish(), by_box=False)

    def _finish(self, request: SubmitRequest, verdict: Verdict) -> None:
        if verdict.status == "accepted" and request.shape is not None:
            # A job that was collected begins at 0 again.
            kept = {name: one for name, one in self._shapes.items() if name < verdict.version}
            self._shapes = {**kept, verdict.version: request.shape}
            self._newest = self.shape = request.shape
        super()._finish(request, verdict)
