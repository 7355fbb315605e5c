"""Gates of a deployment: their state, and what a reading makes of it.

Pure: time and readings are arguments. The timekeeper asks the same functions whether a reading is worth a command.
"""

import msgspec

from schemas.base import SECOND_NS
from schemas.gates import GATE_STATUSES, UpdateGate, UpdateWindow, WindowReading
from shared.durations import write_duration

CLOSED, OPENING, OPEN, PASSED = GATE_STATUSES
#: A gate that was open opens again where its gauge is so far inside the bound.
_MARGIN_PARTS = 10
_DAY_S = 86_400


class GateState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One gate."""

    gate: UpdateGate
    #: one of GATE_STATUSES.
    status: str = CLOSED
    #: the reading that made it so, in thousandths; None: there was none.
    value: int | None = None
    #: of the status and the reading.
    since_ns: int
    #: since when it lets nothing through; its timeout counts from here.
    shut_ns: int
    was_open: bool = False
    #: how often its gauge is published.
    every_ns: int = 0

    @property
    def lets_through(self) -> bool:
        """It holds nothing back."""
        return self.status in {OPEN, PASSED}

    @property
    def timeout_ns(self) -> int:
        """The instant at which it times out; 0: it does not."""
        gate = self.gate
        if self.lets_through or not gate.timeout_ns or gate.on_timeout == "wait":
            return 0
        return self.shut_ns + gate.timeout_ns


class WindowState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """All windows of a deployment together: open while any of them is."""

    windows: tuple[UpdateWindow, ...]
    is_open: bool = False
    #: when that ends; 0: it is not known, or never.
    until_ns: int = 0
    since_ns: int


def next_status(one: GateState, value: int | None, now_ns: int) -> str:
    """Return what a reading makes of a gate. None: its gauge is silent."""
    if one.status == PASSED:
        return PASSED
    if value is None or not _is_within(one, value):
        return CLOSED
    if one.status == OPEN or not one.gate.for_ns:
        return OPEN
    if one.status == OPENING and now_ns - one.since_ns >= one.gate.for_ns:
        return OPEN
    return OPENING


def is_crossing(one: GateState, value: int | None, now_ns: int) -> bool:
    """Tell whether a reading changes a gate, or is the first after silence, or silence after readings."""
    if next_status(one, value, now_ns) != one.status:
        return True
    return one.status == CLOSED and (value is None) != (one.value is None)


def _is_within(one: GateState, value: int) -> bool:
    gate = one.gate
    margin = abs(gate.bound) // _MARGIN_PARTS if one.status == CLOSED and one.was_open else 0
    return value > gate.bound + margin if gate.is_above else value < gate.bound - margin


def is_new_window(now: WindowState, said: WindowReading, now_ns: int) -> bool:
    """Tell whether windows changed: what was known is over, or was not known."""
    if said.is_open and not said.from_ns <= now_ns < said.until_ns:
        return False
    is_over = now.until_ns <= now_ns
    return is_over and (now.is_open, now.until_ns) != (said.is_open, said.until_ns)


# ---- words ----


def gate_text(one: GateState) -> str:
    """Say why a gate is as it is."""
    gate, wanted = one.gate, wanted_text(one.gate)
    name = f"gate {gate.name!r}"
    if one.status == PASSED:
        return f"{name} timed out and is passed"
    if one.value is None:
        return f"{name} has no reading of {gate.gauge}, which must be {wanted}"
    reading = f"{name}: {gate.gauge} is {thousandths_text(one.value)}"
    if one.status == CLOSED:
        return f"{reading}, must be {wanted}"
    if one.status == OPENING:
        return f"{reading}, must stay {wanted} for {write_duration(gate.for_ns)}"
    return f"{reading}, {wanted}"


def terms_text(gate: UpdateGate) -> str:
    """Say what a gate asks for."""
    lasting = f" for {write_duration(gate.for_ns)}" if gate.for_ns else ""
    text = f"gate {gate.name!r}: {gate.gauge} {wanted_text(gate)}{lasting}"
    if gate.timeout_ns and gate.on_timeout != "wait":
        ends = {"fail": "fails", "proceed": "continues"}[gate.on_timeout]
        text += f"; it {ends} after {write_duration(gate.timeout_ns)}"
    return text


def window_terms_text(one: UpdateWindow) -> str:
    """Say when a window is open."""
    return f"window: for {write_duration(one.duration_ns)} from {one.cron!r} ({one.time_zone})"


def window_text(one: WindowState) -> str:
    """Describe the state of the windows of a deployment."""
    until = f" until {utc_text(one.until_ns)}" if one.until_ns else ""
    return f"{'inside' if one.is_open else 'outside'} of its window{until}"


def wanted_text(gate: UpdateGate) -> str:
    """Say the bound of a gate."""
    return f"{'above' if gate.is_above else 'below'} {thousandths_text(gate.bound)}"


def thousandths_text(value: int) -> str:
    """Write thousandths as a decimal number."""
    whole, rest = divmod(abs(value), 1000)
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}" + (f".{rest:03}".rstrip("0") if rest else "")


def utc_text(t_ns: int) -> str:
    """Write a time as `2026-11-23 22:10:05 UTC`."""
    days, second = divmod(t_ns // SECOND_NS, _DAY_S)
    # Days since 0000-03-01, in eras of 400 years. Source: Howard Hinnant, civil_from_days.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    of_year = day - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    of_month = of_year - (153 * month + 2) // 5 + 1
    number = month + 3 if month < 10 else month - 9
    full = year + era * 400 + (number <= 2)
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"{full:04}-{number:02}-{of_month:02} {clock} UTC"
