"""`/v1/jobs` and `/v1/job/<id>/…`: which function of `jobs` or `job_writes` serves which path and method."""

from services.gateway.edge.route import Endpoint
from services.gateway.routes import job_actions, job_writes, jobs

_JOB = "/v1/job/{job:path}"
ENDPOINTS = (
    Endpoint(
        pattern="/v1/jobs",
        summary="List jobs, or register one.",
        read=jobs.list_jobs,
        write=job_writes.register,
    ),
    Endpoint(
        pattern="/v1/jobs/parse", summary="Turn a job file into JSON.", write=job_writes.parse
    ),
    Endpoint(pattern="/v1/validate/job", summary="Check a job.", write=job_writes.validate),
    Endpoint(
        pattern=_JOB + "/versions/{tag}/tag",
        summary="Name a version.",
        write=job_writes.tag,
        delete=job_writes.untag,
    ),
    Endpoint(
        pattern=_JOB + "/dispatch/payload",
        summary="Dispatch with the body as payload.",
        write=job_writes.dispatch_payload,
    ),
    Endpoint(
        pattern=_JOB + "/periodic/force",
        summary="Launch a periodic job now.",
        write=job_writes.force_launch,
    ),
    Endpoint(pattern=_JOB + "/plan", summary="Plan a job.", write=job_writes.plan),
    Endpoint(pattern=_JOB + "/evaluate", summary="Evaluate a job.", write=job_writes.evaluate),
    Endpoint(
        pattern=_JOB + "/allocations", summary="Allocations of a job.", read=jobs.list_job_allocs
    ),
    Endpoint(
        pattern=_JOB + "/evaluations", summary="Evaluations of a job.", read=jobs.list_job_evals
    ),
    Endpoint(
        pattern=_JOB + "/deployments",
        summary="Deployments of a job.",
        read=jobs.list_job_deployments,
    ),
    Endpoint(
        pattern=_JOB + "/deployment",
        summary="The newest deployment of a job.",
        read=jobs.latest_deployment,
    ),
    Endpoint(
        pattern=_JOB + "/summary", summary="Counts of a job's groups.", read=jobs.read_summary
    ),
    Endpoint(pattern=_JOB + "/versions", summary="Versions of a job.", read=jobs.read_versions),
    Endpoint(pattern=_JOB + "/actions", summary="Actions of a job.", read=job_actions.list_actions),
    Endpoint(
        pattern=_JOB + "/action",
        summary="Run an action of a task.",
        read=job_actions.run_action,
        is_socket=True,
    ),
    Endpoint(
        pattern=_JOB + "/submission",
        summary="The file that a version was made of.",
        read=jobs.read_submission,
    ),
    Endpoint(
        pattern=_JOB + "/dispatch",
        summary="Dispatch a parameterized job.",
        write=job_writes.dispatch,
    ),
    Endpoint(pattern=_JOB + "/revert", summary="Revert a job.", write=job_writes.revert),
    Endpoint(
        pattern=_JOB + "/stable",
        summary="Mark a version stable or unstable.",
        write=job_writes.stable,
    ),
    Endpoint(
        pattern=_JOB + "/scale",
        summary="Counts of groups, or change one.",
        read=jobs.read_scale,
        write=job_writes.scale,
    ),
    Endpoint(
        pattern=_JOB,
        summary="Read, register or stop a job.",
        read=jobs.read_job,
        write=job_writes.update,
        delete=job_writes.stop,
    ),
)
