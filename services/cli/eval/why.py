"""`caravan why` and `caravan why-not`: explain placements, now or at a past moment.

`why` reads the log and repeats the decision on its own snapshot. `why-not` queries the view, or with --at a replayed
state.
"""

from schemas.evaluation_answers import WhyAnswer
from schemas.projections import Query
from services.cli import global_options
from services.cli.runtime.bus_client import query_view, resolve_job, with_bus
from services.cli.runtime.log_position import read_log_until
from services.cli.runtime.log_source import log_end_seq_or_zero
from services.cli.runtime.output import CommandOutput, short_id
from services.cli.runtime.progress import ProgressBar
from shared.bus.connection.public_client import Client
from shared.core.runtime.messages import Record
from shared.query.explain import explain_placement as explain
from shared.query.explain import shown_lack
from shared.query.historical_state import HistoricalState
from shared.query.lookup import find_alloc


def why(out: CommandOutput, *, alloc_id: str) -> int:
    """Explain the placement of an allocation."""

    async def work(client: Client) -> WhyAnswer:
        records: list[Record] = []
        found = HistoricalState()
        with ProgressBar("reading the log", await log_end_seq_or_zero(client)) as bar:
            async for record in read_log_until(client, global_options.at_position()):
                records.append(record)
                found.apply(record)
                bar.update(record.seq)
        return explain(found.state, records, find_alloc(found.state, alloc_id))

    answer = with_bus(work)
    out.result(answer)
    print_why(out, answer)
    return 0


def why_not(out: CommandOutput, *, job_id: str, node_id: str, group: str) -> int:
    """Explain why a job's next allocation cannot be placed, or not on this node."""

    async def work(client: Client) -> WhyAnswer:
        name = await resolve_job(client, job_id)
        query = Query(id=name, node_id=node_id, group=group)
        return await query_view(client, "why_not", WhyAnswer, query)

    answer = with_bus(work)
    out.result(answer)
    print_why(out, answer)
    return 0


def print_why(out: CommandOutput, answer: WhyAnswer) -> None:
    """Print an explanation: the decision, filters, shortages, the best nodes."""
    colour = "" if not answer.wait_class else "yellow"
    out.line(answer.text, colour or "bold")
    decision = answer.decision
    made = f"by {decision.worker}, plan {decision.number}, " if decision.worker else ""
    lane = f", lane {decision.lane} of {decision.lanes}" if decision.lanes > 1 else ""
    out.fields(
        [
            ("Group", f"{answer.job_id}.{answer.group}"),
            ("Decided", f"{made}on seq {decision.snapshot_seq}{lane}"),
            *_queued(answer),
            ("Policy", short_id(decision.policy)),
            (
                "Nodes",
                (
                    f"{answer.nodes_considered}, {answer.feasible} feasible, {answer.fitting} with "
                    f"capacity, {answer.lacking} without"
                ),
            ),
        ]
    )
    rows = [
        (one.name, one.refused, ", ".join(f"{name or '-'} {n}" for name, n in one.by_class.items()))
        for one in answer.filters
    ]
    out.table("FILTER|FILTERED>|BY CLASS", rows, "Filters")
    out.table(
        "DIMENSION|NODES>",
        [(one.dimension, one.nodes) for one in answer.exhausted],
        "Exhausted dimensions",
    )
    out.table(
        "NODE|LACKS",
        [
            (one.node, ", ".join(map(shown_lack, one.shortfall, one.shortfall.values())))
            for one in answer.nearest
        ],
        "Closest nodes without capacity",
    )
    out.table(
        "NODE|SCORE>|SCORES",
        [
            (
                f"{one.node} *" if one.node == answer.node else one.node,
                f"{one.score:.3f}",
                ", ".join(f"{name} {value:.3f}" for name, value in one.scores.items()),
            )
            for one in answer.top
        ],
        "Best nodes with capacity",
    )
    _print_evictions(out, answer)
    for victim in answer.victims:
        out.line(f"evicted: {victim}", "yellow")
    for reason in answer.reasons:
        out.line(reason, "yellow")


def _queued(answer: WhyAnswer) -> list[tuple[str, str]]:
    """What the queue holds of the group, and of which seq that is."""
    one = answer.queue
    if one is None:
        return []
    when = f"decided at seq {one.decided_seq}" if one.decided_seq else "not decided yet, parked"
    text = "; ".join(one.reasons) or one.wait_class
    return [("Queue", f"{when}: {one.n} waiting, {one.wait_class.replace('_', ' ')}; {text}")]


def _print_evictions(out: CommandOutput, answer: WhyAnswer) -> None:
    chosen = () if answer.eviction is None else (answer.eviction,)
    out.table(
        "NODE|VICTIMS>|HIGHEST PRIORITY>|PRIORITIES>|WORK LOST>|JOBS|WORSE BY",
        [
            (
                one.node if one.worse_by else f"{one.node} *",
                one.victims,
                one.highest_priority,
                one.priority_sum,
                one.work_lost,
                ", ".join(one.jobs),
                one.worse_by,
            )
            for one in (*chosen, *answer.alternatives)
        ],
        "Evictions: the choice and its alternatives",
    )
