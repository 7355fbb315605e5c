"""Delays before a failed allocation is replaced: arithmetic on a policy and the reschedules of a chain so far.

Source: Nomad structs.go, RescheduleEligible and NextDelay.
"""

from schemas.jobs import ReschedulePolicy


def reschedule_delay_ns(
    policy: ReschedulePolicy, chain: tuple[int, ...], now_ns: int
) -> int | None:
    """Delay before the next replacement; None: no more are allowed within the policy's interval.

    `chain` holds due time and delay of the reschedules so far. Source: Nomad structs.go, RescheduleEligible and
    NextDelay: an allocation that outlived the capped delay begins again with the first one.
    """
    if (
        not policy.unlimited
        and len(recent_reschedules(policy, chain, now_ns)) >= 2 * policy.attempts
    ):
        return None
    delay = _next_delay(policy, chain)
    if policy.max_delay_ns and delay > policy.max_delay_ns:
        lived_ns = now_ns - chain[-2] if chain else 0
        return policy.delay_ns if lived_ns > policy.max_delay_ns else policy.max_delay_ns
    return delay


def _next_delay(policy: ReschedulePolicy, chain: tuple[int, ...]) -> int:
    """The delay behind those of `chain`, without the cap."""
    delays = chain[1::2]
    if not delays or policy.delay_function == "constant":
        return policy.delay_ns
    if policy.delay_function == "exponential":
        return delays[-1] * 2
    if len(delays) == 1:
        return policy.delay_ns
    if delays[-2] == policy.max_delay_ns and delays[-1] == policy.delay_ns:
        # It began again: the sum would jump to the cap at once.
        return delays[-1]
    return delays[-1] + delays[-2]


def recent_reschedules(
    policy: ReschedulePolicy, chain: tuple[int, ...], now_ns: int
) -> tuple[int, ...]:
    """Those reschedules of a chain that count: of a limited policy what lies in its interval, else the last five."""
    if policy.unlimited:
        return chain[-10:]
    since = now_ns - policy.interval_ns
    recent = [at for at in range(0, len(chain), 2) if chain[at] > since]
    return chain[recent[0] :] if recent else ()
