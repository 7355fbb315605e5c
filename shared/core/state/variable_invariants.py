"""Invariants of variables: rows, lives that are over and what is derived from them agree."""

from shared.core.state.deployment_invariants import Violation
from shared.core.state.state import State
from shared.core.state.tables.variables import MARKS_KEPT, VariableRow


def check_variables(state: State) -> list[Violation]:
    """Check the table of variables against itself."""
    table = state.variables
    found = [
        Violation("variables", f"{path!r}: {fault}")
        for path, row in table.by_path.items()
        if (fault := _fault(row))
    ]
    for path, incarnation in table.ended:
        row = table.by_path.get(path)
        if row is None or incarnation > row.incarnation - bool(row.revision):
            text = f"life {incarnation} of {path!r} is not over, the row says {row}"
            found.append(Violation("variables", text))
    live = sorted(path for path, row in table.by_path.items() if row.revision)
    if live != table.live:
        found.append(Violation("variables", f"live are {table.live}, rows say {live}"))
    total = sum(table.by_path[path].size for path in live)
    if total != table.total_size:
        found.append(Violation("variables", f"{table.total_size} bytes, rows have {total}"))
    return found


def _fault(row: VariableRow) -> str:
    """Say what is wrong with a row; empty: nothing."""
    if row.incarnation < 1 or max(len(row.puts), len(row.deletes)) > MARKS_KEPT:
        return f"incarnation {row.incarnation}, {len(row.puts)} puts"
    if not row.puts or row.puts[-1].revision > row.modify_seq:
        return "its newest put is not among its marks"
    if not row.revision:
        held = (row.cipher, row.digest, row.items, row.size, row.create_seq)
        return "it is deleted and holds something" if any(held) else ""
    newest = row.puts[-1]
    if (newest.revision, newest.digest) != (row.revision, row.digest):
        return f"revision {row.revision} is not that of its newest put"
    is_ordered = 0 < row.create_seq <= row.revision == row.modify_seq
    return "" if is_ordered and row.items > 0 else f"revision {row.revision}, {row.items} items"
