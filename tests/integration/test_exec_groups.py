"""Cgroups of agents that are gone: empty ones are removed, those with members stay."""

import asyncio
from pathlib import Path

import pytest

from services.agent.drivers.isolation.cgroups import CgroupLimits, CgroupTree
from services.agent.drivers.process.run_record import group_name
from tests.integration.exec_node import NEEDED, a_cell, need, what_works


@pytest.mark.asyncio
async def test_levels_of_dead_agents_are_removed(tmp_path: Path) -> None:
    """An empty level of another agent is removed and made again when that has a task; one with a task stays."""
    need(*NEEDED)
    async with a_cell(tmp_path, cgroup_parent="caravan-tests") as cell:
        handle = await cell.start("sleep 300")
        ours = cell.driver.groups
        assert ours is not None
        other = CgroupTree(what_works().hierarchies, "caravan-tests/other")
        other.prepare()
        other.sweep_abandoned(-1.0)
        name = group_name(handle.directory)
        assert handle.pid in ours.members(name)
        ours.sweep_abandoned(-1.0)
        assert not any(top.exists() for top in other.tops.values())
        other.make("run", CgroupLimits(memory_mib=16))
        assert all((top / "run").is_dir() for top in other.tops.values())
        await asyncio.to_thread(other.end, "run")
        other.remove()
    for top in other.tops.values():
        top.parent.rmdir()
