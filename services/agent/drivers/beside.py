"""What drivers of plain processes have in common: options with faults, and commands beside a task.

Decides what a command beside a task inherits: the environment and the directory of the task, as they are now.
"""

import os
from pathlib import Path

from services.agent.drivers.driver import StartRefused
from services.agent.drivers.isolation.orders import Enter, Jail
from services.agent.drivers.process import Process
from shared.jobspec.drivers.options import OptionFault


def refuse_faults(driver: str, faults: tuple[OptionFault, ...]) -> None:
    """Raise StartRefused when options have faults: what intake lets through with a reference is checked here."""
    if faults:
        first = faults[0]
        raise StartRefused(f"{driver}: {first.path}: {first.message}", recoverable=False)


def order_beside(process: Process, command: tuple[str, ...], *, tty: bool) -> Enter:
    """Ask for a command beside a task that is kept apart by nothing. Raises StartRefused."""
    try:
        text = Path(f"/proc/{process.pid}/environ").read_bytes()
        where = str(Path(f"/proc/{process.pid}/cwd").readlink())
    except OSError as err:
        raise StartRefused("the task has ended", recoverable=False) from err
    pairs = [pair.split(b"=", 1) for pair in text.split(b"\0") if b"=" in pair]
    return Enter(
        pid=process.pid,
        start_ticks=process.start_ticks,
        argv=command,
        env={os.fsdecode(name): os.fsdecode(value) for name, value in pairs},
        work_dir=where,
        jail=Jail(plain=True),
        tty=tty,
    )
