"""`caravan log roll` and `log drop`: another generation of the log, and the end of an old one.

Decides what a person is told, and what must be proven before anything of the log goes. Rolling is done by the plan
applier. Next: `wishing.py`.
"""

from schemas.operator import RollWish
from services.cli.output import Output
from services.cli.wishing import wish


def roll(out: Output, *, generation: int) -> int:
    """Let a generation of the log end; 0: the newest."""
    verdict = wish("system", "roll", RollWish(generation=generation))
    out.result(
        {
            "generation": verdict.generation,
            "request_id": verdict.request_id,
            "status": verdict.status,
            "changed": verdict.changed,
            "seq": verdict.seq,
            "cluster_id": verdict.cluster_id,
        }
    )
    if verdict.changed:
        out.line(f"the log goes on in generation {verdict.generation}", "green")
    else:
        out.line(
            f"generation {generation} is over already, the log is in generation {verdict.generation}"
        )
    return 0
