"""The blocks of a job that make it a pattern for others, as the core needs them."""

from schemas.jobs import ParameterizedBlock, PeriodicBlock
from shared.jobspec.nomad.job import JobSpec


def compile_periodic(job: JobSpec) -> PeriodicBlock | None:
    """Return when the children of a job are launched; None: it is not periodic."""
    block = job.periodic
    if block is None:
        return None
    return PeriodicBlock(
        crons=block.crons or (block.cron,),
        time_zone=block.time_zone or "UTC",
        prohibit_overlap=block.prohibit_overlap,
        enabled=block.enabled,
    )


def compile_parameterized(job: JobSpec) -> ParameterizedBlock | None:
    """Return what a dispatch of a job must have; None: it is not dispatched."""
    block = job.parameterized
    if block is None:
        return None
    return ParameterizedBlock(
        payload=block.payload or "optional",
        meta_required=tuple(sorted(block.meta_required)),
        meta_optional=tuple(sorted(block.meta_optional)),
    )
