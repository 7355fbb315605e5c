"""Replay one golden log in a process of its own and print, as JSON, everything that must not depend on the machine.

Run by `test_logs.py` under several hash seeds, and with the processor's newer instructions switched off.
"""

import gzip
import json
import sys
from pathlib import Path

from shared.core.scheduling.explain.verify_decisions import (DecisionCheck, verify_decisions)
from shared.core.runtime.replica import Replica
from shared.core.runtime.messages import Record


def read_log(path: Path) -> list[Record]:
    """Read a recorded log: one line a record, its subject and its bytes as latin-1 text."""
    lines = gzip.decompress(path.read_bytes()).decode("ascii").splitlines()
    pairs = [json.loads(line) for line in lines]
    return [
        Record(seq, subject, data.encode("latin-1")) for seq, (subject, data) in enumerate(pairs, 1)
    ]


def write_log(path: Path, records: list[tuple[str, bytes]]) -> None:
    """Record a log; the same records always make the same file."""
    lines = [json.dumps([subject, data.decode("latin-1")]) for subject, data in records]
    path.write_bytes(gzip.compress("\n".join(lines).encode("ascii"), mtime=0))


def told(path: Path) -> dict[str, object]:
    """Replay and decide again. Raises LogError where a table differs from a checkpoint."""
    records = read_log(path)
    replica = Replica()
    for record in records:
        replica.apply(record)
    decided: DecisionCheck = verify_decisions(lambda: records)
    return {
        "seq": replica.seq,
        "head": replica.chain.head,
        "foreign": replica.chain.foreign,
        "checkpoints": replica.checked,
        "tables": replica.state.hashes(),
        "checked": decided.checked,
        "equal": decided.equal,
        "other_version": decided.other_version,
        "untold": decided.untold,
        "differences": [
            f"{one.seq}: {one.recorded} / {one.decided}" for one in decided.differences
        ],
    }


if __name__ == "__main__":
    print(json.dumps(told(Path(sys.argv[1]))))
