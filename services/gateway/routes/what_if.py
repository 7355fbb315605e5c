"""What-ifs from the page: asked, listed, read and cancelled. The runs are in `edge/what_if_runs.py`."""

import os

import msgspec

from services.gateway.edge.call import Call
from services.gateway.edge.callers import token_of
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.route import Endpoint
from services.gateway.edge.what_if_runs import Question, Run
from shared.bus.connection.nats_client import url_with_login

_DECODER = msgspec.json.Decoder(Question)
#: Of our settings the process gets those that say how the bus is reached.
_PASSED = "CARAVAN_NATS_"


async def ask(call: Call) -> object:
    """Start a what-if. Raises HttpFault 400: the question cannot be read; 503: too many run."""
    try:
        question = _DECODER.decode(await call.raw_body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise HttpFault(400, f"the body is not a what-if request: {err}") from err
    if question.seq > call.role.seq:
        raise HttpFault(400, f"seq must be up to {call.role.seq}, was {question.seq}")
    where, env = _log_of(call)
    salt = f"{call.role.answers.lease.cluster_id} {call.caller.name}"
    run = call.server.what_ifs.start(question, salt=salt, where=where, env=env)
    return run.shown(whole=False)


def _log_of(call: Call) -> tuple[list[str], dict[str, str]]:
    """Which log the process reads: the archive, or that of the bus with the caller's login."""
    if call.server.archive is not None:
        return [f"--from-file={call.server.archive}"], {}
    user, _, password = token_of(call.connection.headers).partition(":")
    env = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
    return [], {**env, "CARAVAN_NATS_URL": url_with_login(call.server.nats_url, user, password)}


async def list_runs(call: Call) -> object:
    """The runs that are kept, newest first."""
    return [one.shown(whole=False) for one in reversed(call.server.what_ifs.runs.values())]


async def read_run(call: Call) -> object:
    """One run with its report. Raises HttpFault 404."""
    return _found(call).shown(whole=True)


async def cancel_run(call: Call) -> object:
    """End a run. Raises HttpFault 404."""
    run = _found(call)
    call.server.what_ifs.cancel(run)
    return {"id": run.name}


def _found(call: Call) -> Run:
    run = call.server.what_ifs.runs.get(call.path["run"])
    if run is None:
        raise HttpFault(404, "this what-if is no longer kept: ask again")
    return run


ENDPOINTS = (
    Endpoint(
        pattern="/v1/caravan/what-if",
        summary="Ask a what-if; list those that are kept.",
        read=list_runs,
        write=ask,
    ),
    Endpoint(
        pattern="/v1/caravan/what-if/{run}",
        summary="A what-if with its report; cancel it.",
        read=read_run,
        delete=cancel_run,
    ),
)
