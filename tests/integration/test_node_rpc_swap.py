"""A task that changes its directories while they are read."""

import threading
from pathlib import Path

from services.agent.node_rpc import files
from shared.errors import CommandInvalid
from tests.unit.agent.test_node_rpc_files import ALLOC, SECRET, at, top

__all__ = ["top"]


def test_a_swap_between_two_looks_leads_nowhere(top: Path) -> None:
    """38: while a directory and a link to the outside change places, nothing of the outside is ever read."""
    local = top / "alloc" / ALLOC / "server/local"
    outside = top.parent / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(SECRET)
    real, link = local / "real", local / "link"
    real.mkdir()
    (real / "x").write_bytes(b"inside")
    link.symlink_to(outside)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            real.rename(local / "third")
            link.rename(real)
            (local / "third").rename(link)

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen = set()
    try:
        for _ in range(3000):
            try:
                seen.add(files.read_file(top, at("server/local/real/x")).data)
            except CommandInvalid:
                seen.add(None)
    finally:
        over.set()
        swapping.join()
    assert SECRET not in seen
    assert seen <= {b"inside", None}
