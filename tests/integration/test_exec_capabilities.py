"""What a hostile task gets from the capabilities that an operator allows: nothing of the node outside its view."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.agent.drivers.driver import StartRefused
from tests.integration.exec_node import NEEDED, Cell, a_cell, need

pytestmark = pytest.mark.asyncio

CAPS = ["dac_override", "chown", "fowner", "fsetid", "setuid", "setgid"]


@pytest_asyncio.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    """A driver whose operator allows the capabilities over files."""
    need(*NEEDED)
    async with a_cell(tmp_path, allowed_caps=",".join(CAPS)) as made:
        yield made


async def test_what_the_view_shows_of_the_node_stays_read_only(cell: Cell) -> None:
    """With every right over files, no file, directory or device of the node is opened for writing or changed."""
    # Opened for appending, with nothing written: also where it works, the node stays as it is.
    script = """
for path in /etc/* /etc/*/* /usr/bin/env /proc/sys/kernel/hostname /proc/irq/*/smp_affinity /proc/kcore; do
  [ -f "$path" ] && (: >> "$path") 2>/dev/null && echo "written: $path"
done
for path in /etc /etc/* /usr /usr/bin/env /dev/* /dev/pts/ptmx /proc/kcore /proc/irq /proc/bus /proc/fs; do
  [ -L "$path" ] && continue
  mode=$(stat -c %a "$path" 2>/dev/null) || continue
  case "$path" in /dev/shm|/dev/pts*) continue;; esac
  chmod "$mode" "$path" 2>/dev/null && echo "changed: $path"
done
echo x > /dev/null && echo "devices work"
head -c 4 /dev/urandom | wc -c
"""
    _, said = await cell.run(script, config={"cap_add": CAPS})
    lines = said.splitlines()
    assert [line for line in lines if line.startswith(("written", "changed"))] == []
    assert lines == ["devices work", "4"]


@pytest.mark.parametrize(
    "where", ["/proc/self/fd/{}", "/proc/self/cwd", "/proc", "proc/self/fd/{}", "//proc/1/root"]
)
async def test_a_work_dir_in_proc_is_refused(cell: Cell, where: str) -> None:
    """No spelling of a working directory in /proc is taken."""
    with pytest.raises(StartRefused, match="work_dir"):
        await cell.start("pwd", config={"work_dir": where.format(5), "cap_add": CAPS})


@pytest.mark.parametrize("where", ["/dev/fd/{}", "local/way/{}"])
@pytest.mark.parametrize("as_command", [False, True])
async def test_no_descriptor_of_the_agent_is_a_way_out(
    cell: Cell, where: str, *, as_command: bool
) -> None:
    """A link to /proc/self/fd leads to no directory that was open when the task began: as directory and as command."""
    await cell.run("ln -s /proc/self/fd local/way", config={"cap_add": CAPS})
    for number in range(3, 24):
        place = where.format(number)
        script = "readlink /proc/self/cwd; ls -d ../*/journal ../../*/journal ../../../journal ../../../../journal"
        config: dict[str, object] = {"work_dir": place, "cap_add": CAPS}
        if as_command:
            program = (
                f"{'' if place.startswith('/') else '/'}{place}/../../../../../../../../../bin/sh"
            )
            config = {"command": program, "cap_add": CAPS}
            script = "echo started"
        try:
            _, said = await cell.run(f"{script} 2>/dev/null", config=config)
        except StartRefused:
            continue
        assert said.strip() in {"", "/", "/dev"}, (place, said)
