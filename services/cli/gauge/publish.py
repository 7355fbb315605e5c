"""`caravan gauge set`: publish the value of a gauge."""

import msgspec

from schemas.gates import EVERY_MS_MAX, GAUGE_MAX, Gauge
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.output import CliError, CommandOutput
from shared.bus.connection.public_client import Client
from shared.durations import InvalidDuration, parse_duration
from shared.jobspec.checks.gates import BUILT_IN, gauge_error
from shared.numerals import parse_decimal
from shared.protocol import subjects

_MS_NS = 1_000_000


class GaugeResult(msgspec.Struct, frozen=True):
    """`gauge set --json`."""

    name: str
    value: float
    every_ms: int


def set_value(out: CommandOutput, *, name: str, value: str, every: str) -> int:
    """Publish the value of a gauge once. Raises CliError."""
    if fault := gauge_error(name):
        raise CliError("usage", fault)
    if BUILT_IN.fullmatch(name):
        raise CliError("usage", f"the cluster itself publishes {name!r}")
    said = Gauge(value=_number(value), every_ms=_interval_ms(every))

    async def work(client: Client) -> None:
        client.publish(subjects.gauge(name), msgspec.json.encode(said))
        await client.bus.flush()

    with_bus(work)
    out.result(GaugeResult(name, float(said.value), said.every_ms))
    lasting = f"{3 * said.every_ms / 1000:g} s"
    out.line(f"gauge {name}: {said.value:g}; it counts for {lasting}")
    return 0


def _number(text: str) -> float:
    try:
        number = parse_decimal(text)
    except ValueError:
        raise CliError("usage", f"{text[:80]!r} is not a number") from None
    if not -GAUGE_MAX <= number <= GAUGE_MAX:
        raise CliError("usage", f"the value must be -{GAUGE_MAX} to {GAUGE_MAX}, was {text[:80]}")
    return number


def _interval_ms(text: str) -> int:
    try:
        found = parse_duration(text) // _MS_NS
    except InvalidDuration as fault:
        raise CliError("usage", f"--every: {fault}") from None
    if not 1 <= found <= EVERY_MS_MAX:
        raise CliError("usage", f"--every is 1ms to {EVERY_MS_MAX // 1000}s")
    return found
