"""A scripted submitter of several jobs, which it changes together most of the time, and one alone now and then."""

import msgspec

from schemas.jobs import Verdict
from schemas.rollouts import ROLLOUT_ORDERS
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.environment.submitters import SubmitRequest, SubmittedJob, Submitter
from shared.sim.virtual_time import RandomDraws


class JointSubmitter(Submitter):
    """Owner of the jobs of rollouts. It promises nothing of a single job: a failed rollout takes all of them back."""

    def __init__(
        self, context: SimulationContext, draws: RandomDraws, shapes: list[SubmittedJob]
    ) -> None:
        super().__init__(context, draws, shapes[0])
        self._shapes = shapes

    def _wish(self) -> SubmitRequest:
        what = self._draws.below(100)
        nth = self._draws.below(len(self._shapes))
        if self._number and what < 12:
            self._shapes[nth] = shape = self._changed(self._shapes[nth])
            name = self._fresh()
            body = shape.body(name)
            return SubmitRequest(
                verb="submit", body=body, submission_id=name, by_box=False, shape=shape
            )
        if self._number and what < 20:
            return self._named("stop")
        order = ROLLOUT_ORDERS[self._draws.below(2)]
        keep = what < 40
        self._shapes = [
            shape if keep and at == nth else self._changed(shape)
            for at, shape in enumerate(self._shapes)
        ]
        name = self._fresh()
        bodies = [msgspec.json.decode(shape.body("")) for shape in self._shapes]
        request = {
            "SubmissionID": name,
            "Rollout": "joint",
            "Order": order,
            "Jobs": [{"Job": one["Job"]} for one in bodies],
        }
        return SubmitRequest(
            verb="submit_together",
            body=msgspec.json.encode(request),
            submission_id=name,
            by_box=False,
        )

    def _changed(self, shape: SubmittedJob) -> SubmittedJob:
        # A service that ends by itself never becomes healthy.
        run_ms = 50 if self._draws.hit(80) else 0
        return msgspec.structs.replace(shape, edition=shape.edition + 1, run_ms=run_ms)

    def _finish(self, request: SubmitRequest, verdict: Verdict) -> None:
        super()._finish(request, verdict)
        self.promised = None
