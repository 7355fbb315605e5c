"""Reservations: which nodes are reserved for which job. Few at a time, so that a scheduler can read all of them."""

from hashlib import blake2b

from schemas.base import JobId
from schemas.envelope import ENCODER
from schemas.evaluations import Reservation, ReservationsChanged
from schemas.jobs import JobsCollected
from shared.core.state.tables.consumer import EventConsumer, EventHandlers


class ReservationTable(EventConsumer):
    """Nodes held back, by the job that waits for them."""

    def __init__(self) -> None:
        #: jobs for which something is held back, in the order of their places in the queue.
        self.by_job: dict[JobId, Reservation] = {}

    def handlers(self) -> EventHandlers:
        """What applies each fact."""
        return {ReservationsChanged: self._change, JobsCollected: self._collect}

    def _change(self, event: ReservationsChanged, seq: int) -> None:
        del seq
        for one in event.reservations:
            self.by_job.pop(one.job_id, None)
            if one.holds:
                self.by_job[one.job_id] = one
        self.by_job = dict(sorted(self.by_job.items(), key=lambda item: queue_position(item[1])))

    def _collect(self, event: JobsCollected, seq: int) -> None:
        del seq
        for job_id in event.job_ids:
            self.by_job.pop(job_id, None)

    def digest(self) -> str:
        """Hash of the table, 16 hex digits."""
        return blake2b(ENCODER.encode(list(self.by_job.values())), digest_size=8).hexdigest()


def queue_position(reservation: Reservation) -> tuple[int, int, JobId]:
    """Position of a job in the queue, as `shapes.order_of` gives it; the smaller is first."""
    return (-reservation.priority, reservation.since_seq, reservation.job_id)
