"""A scripted submitter of a parameterized job, which dispatches it with payload, meta and few tokens.

Tokens repeat under other submissions, so that late and doubled ones of one token meet.
"""

import base64

import msgspec

from shared.sim.environment.submitters import SubmitRequest, Submitter
from shared.sim.virtual_time import SECOND

#: Dispatches share so few tokens.
_TOKENS = 3
#: What the job requires of a dispatch.
META_REQUIRED = "lot"
_PAYLOAD_REPEATS = 60


def payload_of(submission_id: str) -> bytes:
    """The payload of a dispatch; some have none."""
    has_one = not submission_id.endswith(("0", "5"))
    return f"{submission_id}|".encode() * _PAYLOAD_REPEATS if has_one else b""


class Dispatcher(Submitter):
    """Owner of one parameterized job."""

    pause_max_ns = SECOND

    def _wish(self) -> SubmitRequest:
        if not self._number or self._draws.hit(100):
            return self._submit(self.shape)
        return self._stop_wish() if self._draws.hit(30) else self._dispatch()

    def _dispatch(self) -> SubmitRequest:
        name = self._fresh()
        token = self._draws.below(_TOKENS + 1)
        # One in eight lacks what is required, and must be refused.
        meta = {} if self._draws.hit(125) else {META_REQUIRED: name}
        payload = base64.b64encode(payload_of(name)).decode()
        body = {
            "JobID": self.shape.job_id,
            "SubmissionID": name,
            "Payload": payload,
            "Meta": meta,
            "IdempotencyToken": f"token-{token}" if token else "",
        }
        return SubmitRequest(
            verb="dispatch",
            body=msgspec.json.encode(body),
            submission_id=name,
            by_box=self._draws.hit(350),
        )
