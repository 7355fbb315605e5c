"""Jobs of benchmarks, in Nomad's JSON."""

from typing import Any


def sample_job(
    name: str,
    *,
    count: int,
    cpu_mhz: int,
    memory_mib: int,
    command: str = "/bin/sleep 3600",
    **fields: Any,
) -> dict[str, Any]:
    """One job of one group with one raw_exec task; `fields` are further fields of the job."""
    program, *args = command.split()
    task = {
        "Name": "task",
        "Driver": "raw_exec",
        "Config": {"command": program, "args": args},
        "Resources": {"CPU": cpu_mhz, "MemoryMB": memory_mib},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
    }
    group = {"Name": "g", "Count": count, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [task]}
    return {"ID": name, "Name": name, "Type": "service", **fields, "TaskGroups": [group]}
