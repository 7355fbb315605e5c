"""`caravan why` and `caravan why-not`: what spoke for and against nodes, now or at any past moment.

Decides how an explanation looks. `why` reads the log itself: the decision is made again on the snapshot that it was
made on. `why-not` asks the view, or with --at a replayed past.
"""

from schemas.answers import WhyAnswer
from schemas.projections import Query
from services.cli import chosen
from services.cli.asking import ask_once, with_bus
from services.cli.moments import records_to
from services.cli.output import Column, Output, short
from shared.bus.client import Client
from shared.core.role import Record
from shared.query.past import Past
from shared.query.why import why as explain


def why(out: Output, *, alloc_id: str) -> int:
    """Say why an allocation is where it is."""

    async def work(client: Client) -> WhyAnswer:
        records: list[Record] = [one async for one in records_to(client, chosen.at())]
        found = Past()
        for record in records:
            found.apply(record)
        return explain(found.state, records, found.find_alloc(alloc_id))

    answer = with_bus(work)
    out.result(answer)
    _show(out, answer, verb="was")
    return 0


def why_not(out: Output, *, job_id: str, node_id: str, group: str) -> int:
    """Say why a job's next allocation finds no place, or not on this node."""
    query = Query(id=job_id, node_id=node_id, group=group)
    answer = ask_once("why_not", WhyAnswer, query)
    out.result(answer)
    _show(out, answer, verb="is")
    return 0


def _show(out: Output, answer: WhyAnswer, *, verb: str) -> None:
    colour = "" if not answer.wait_class else "yellow"
    out.line(answer.text, colour or "bold")
    decision = answer.decision
    made = f"by {decision.worker}, plan {decision.number}, " if decision.worker else ""
    lane = f", lane {decision.lane} of {decision.lanes}" if decision.lanes > 1 else ""
    out.fields(
        [
            ("Group", f"{answer.job_id}.{answer.group}"),
            ("Decided", f"{made}on seq {decision.snapshot_seq}{lane}"),
            ("Policy", short(decision.policy)),
            (
                "Nodes",
                f"{answer.nodes_considered}, {answer.feasible} feasible, {answer.fitting} with room",
            ),
        ]
    )
    rows = [
        (one.name, one.refused, ", ".join(f"{name or '-'} {n}" for name, n in one.by_class.items()))
        for one in answer.filters
    ]
    columns = [Column("FILTER"), Column("REFUSES", right=True), Column("BY CLASS", 1)]
    out.table(columns, rows, "Filters")
    out.table(
        [Column("DIMENSION"), Column("NODES", right=True)],
        [(one.dimension, one.nodes) for one in answer.exhausted],
        f"What {verb} exhausted",
    )
    out.table(
        [Column("NODE"), Column("LACKS")],
        [
            (one.node, ", ".join(f"{name} {_number(n)}" for name, n in one.shortfall.items()))
            for one in answer.nearest
        ],
        "Nearest without room",
    )
    out.table(
        [Column("NODE"), Column("SCORE", right=True), Column("MEAN OF", 1)],
        [
            (
                f"{one.node} *" if one.node == answer.node else one.node,
                f"{one.score:.3f}",
                ", ".join(f"{name} {value:.3f}" for name, value in one.scores.items()),
            )
            for one in answer.top
        ],
        "Best nodes with room",
    )
    for victim in answer.victims:
        out.line(f"evicted for it: {victim}", "yellow")
    for reason in answer.reasons:
        out.line(reason, "yellow")


def _number(value: float) -> str:
    return f"{value:g}"
