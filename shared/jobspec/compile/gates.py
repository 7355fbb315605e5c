"""The gates and windows of a job's update block, as the core needs them."""

from schemas.gates import UpdateGate, UpdateWindow
from shared.jobspec.nomad.job import JobSpec
from shared.jobspec.nomad.policies import GateBlock

_PARTS = 1000


def compile_gates(job: JobSpec) -> tuple[UpdateGate, ...]:
    """Return the gates of a valid job."""
    blocks = job.update.gates if job.update is not None else None
    return tuple([_gate(block) for block in blocks or ()])


def _gate(block: GateBlock) -> UpdateGate:
    bound = block.below if block.below is not None else block.above
    return UpdateGate(
        name=block.name,
        gauge=block.gauge,
        bound=round((bound or 0) * _PARTS),
        is_above=block.below is None,
        for_ns=block.for_ns,
        timeout_ns=block.timeout_ns,
        on_timeout=block.on_timeout or ("fail" if block.timeout_ns else "wait"),
    )


def compile_windows(job: JobSpec) -> tuple[UpdateWindow, ...]:
    """Return the windows of a valid job."""
    blocks = job.update.windows if job.update is not None else None
    return tuple(
        [
            UpdateWindow(
                cron=block.cron,
                duration_ns=block.duration_ns,
                time_zone=block.time_zone or "UTC",
            )
            for block in blocks or ()
        ]
    )
