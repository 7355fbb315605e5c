"""Decides whether, and when, a task that ended is started again in place.

By Nomad's restart policy (reference defaults in shared/jobspec/nomad/defaults.py). Pure: the jitter is drawn from the
allocation's key and the attempt, so that a replay waits as long as the first run did. Next: `runtime_state.py`.
"""

import msgspec

from services.agent.tasks.resolved_group import ResolvedRestartPolicy
from shared.core.splitmix import splitmix64

#: Draws of one attempt are 2**-16 steps of a quarter of the delay.
_DRAW_BITS = 16


class RestartCount(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the policy's present interval is used up."""

    attempts: int = 0
    interval_start_ns: int = 0


class RestartDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from an end. With `again`, start after `delay_ns`; else the task is dead."""

    again: bool
    failed: bool
    delay_ns: int
    reason: str
    count: RestartCount


def decide_restart(
    plan: ResolvedRestartPolicy, count: RestartCount, *, success: bool, seed: int, now_ns: int
) -> RestartDecision:
    """Judge an exit (`success`: with code 0) or a start that failed but may succeed later.

    Source: Nomad client/allocrunner/taskrunner/restarts.
    """
    if success and not plan.on_success:
        return RestartDecision(
            again=False, failed=False, delay_ns=0, reason="task is complete", count=count
        )
    if plan.attempts == 0:
        return RestartDecision(
            again=False, failed=True, delay_ns=0, reason="policy allows no restarts", count=count
        )
    if not count.attempts or now_ns >= count.interval_start_ns + plan.interval_ns:
        count = RestartCount(attempts=0, interval_start_ns=now_ns)
    attempt = count.attempts + 1
    count = msgspec.structs.replace(count, attempts=attempt)
    if attempt <= plan.attempts:
        delay = plan.delay_ns + jitter_ns(plan.delay_ns, seed, attempt)
        return RestartDecision(
            again=True, failed=False, delay_ns=delay, reason="within policy", count=count
        )
    if plan.mode == "delay":
        wait = max(count.interval_start_ns + plan.interval_ns - now_ns, 0)
        delay = wait + jitter_ns(plan.delay_ns, seed, attempt)
        reason = f"exceeded {plan.attempts} attempts, delaying until the interval ends"
        return RestartDecision(again=True, failed=False, delay_ns=delay, reason=reason, count=count)
    reason = f"exceeded {plan.attempts} attempts in {plan.interval_ns // 1_000_000_000} s"
    return RestartDecision(again=False, failed=True, delay_ns=0, reason=reason, count=count)


def jitter_ns(delay_ns: int, seed: int, attempt: int) -> int:
    """Draw up to a quarter of the delay, from `seed` and `attempt` alone. Range: [0, delay_ns / 4)."""
    draw = splitmix64(splitmix64(seed) + attempt) >> (64 - _DRAW_BITS)
    return (delay_ns // 4 * draw) >> _DRAW_BITS
