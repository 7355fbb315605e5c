"""Gathers the measurements of one minute of all tasks of a node into one message."""

from schemas.usage import UsageMinute

MINUTE_S = 60


class _TaskMinute:
    """One task in the minute."""

    def __init__(self) -> None:
        self.samples = 0
        self.cpu_ns = 0
        self.passed_s = 0.0
        self.peak = 0
        self.memory = 0
        self.throttled_ns = 0
        self.oom_kills = 0

    @property
    def millicores(self) -> int:
        return round(self.cpu_ns / 1e6 / self.passed_s) if self.passed_s > 0 else 0


class UsageMinutes:
    """The minute that has begun. `node_id`: whose tasks they are."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._at_s = 0
        self._tasks: dict[tuple[str, str], _TaskMinute] = {}

    def begin(self, now_s: float) -> UsageMinute | None:
        """Begin the minute of this moment; returns the one before where it is over and anything was measured in it.

        A clock that was set back begins another minute, too.
        """
        minute_s = int(now_s) // MINUTE_S * MINUTE_S
        if minute_s == self._at_s:
            return None
        ended = self.end()
        self._at_s = minute_s
        return ended

    def add(
        self,
        name: tuple[str, str],
        memory: int,
        *,
        cpu_ns: int,
        passed_s: float,
        throttled_ns: int,
        oom_kills: int,
    ) -> None:
        """Add a measurement of a task, by allocation and name. `passed_s` since the one before; 0: it is the first."""
        one = self._tasks.setdefault(name, _TaskMinute())
        one.samples += 1
        one.memory = max(one.memory, memory)
        one.throttled_ns += throttled_ns
        one.oom_kills += oom_kills
        if passed_s > 0:
            one.cpu_ns += cpu_ns
            one.passed_s += passed_s
            one.peak = max(one.peak, round(cpu_ns / 1e6 / passed_s))

    def end(self) -> UsageMinute | None:
        """Return what was measured since `begin`, and forget it; None: nothing."""
        tasks, self._tasks = sorted(self._tasks.items()), {}
        if not tasks:
            return None
        rows = [one for _, one in tasks]
        return UsageMinute(
            node_id=self._node_id,
            at_s=self._at_s,
            allocs=tuple(alloc for (alloc, _), _ in tasks),
            tasks=tuple(task for (_, task), _ in tasks),
            samples=tuple(one.samples for one in rows),
            cpu_millicores=tuple(one.millicores for one in rows),
            cpu_peak_millicores=tuple(one.peak for one in rows),
            memory_bytes=tuple(one.memory for one in rows),
            throttled_ms=tuple(one.throttled_ns // 1_000_000 for one in rows),
            oom_kills=tuple(one.oom_kills for one in rows),
        )
