"""`caravan operator`: the cluster as a whole."""

from schemas.answers import ClusterAnswer
from schemas.projections import Query
from services.cli.asking import ask_once
from services.cli.output import Column, Output


def status(out: Output, *, hashes: bool) -> int:
    """Show who leads, how safe the bus is, and how much there is."""
    answer = ask_once("cluster", ClusterAnswer, Query(id="hashes" if hashes else ""))
    out.result(answer)
    counts = answer.counts
    living = {name: n for name, n in counts.allocations.items() if n}
    out.fields(
        [
            ("Cluster", answer.cluster_id),
            ("Seq", str(answer.seq)),
            ("Applier", f"{answer.holder}, epoch {answer.epoch}"),
            ("Bus", f"{'fsync on' if answer.fsync else 'NO FSYNC'}, {answer.replicas} replica(s)"),
            ("Foreign", f"{answer.foreign} records"),
            ("Jobs", str(counts.jobs)),
            ("Nodes", str(counts.nodes)),
            ("Allocations", ", ".join(f"{n} {name}" for name, n in living.items()) or "0"),
            ("Evaluations", str(counts.evaluations)),
        ]
    )
    out.table([Column("TABLE"), Column("HASH")], sorted(answer.tables.items()), "Tables")
    return 0
