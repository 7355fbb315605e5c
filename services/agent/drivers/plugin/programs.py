"""Which programs of the operator's folder are drivers, and where each keeps what it needs in the data directory."""

import re
from collections.abc import Collection, Mapping

import structlog

from services.agent.drivers.plugin.driver import PluginDriver
from services.agent.drivers.plugin.process import DriverProcess
from services.agent.drivers.plugin.run_record import RunClaims
from services.agent.executor.data_dir import DataDir
from services.agent.executor.orphans import known_runs
from services.agent.operator_programs import OperatorFolder, ProgramRefused
from shared.jobspec.drivers.registry import DRIVERS

SETTING = "CARAVAN_AGENT_DRIVER_PLUGINS"
#: Settings of the agent that a driver gets; none of the others.
_PASSED = "CARAVAN_DRIVER_"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_log = structlog.get_logger()


def plugin_drivers(
    folder: str, home: DataDir, environ: Mapping[str, str], *, taken: Collection[str] = ()
) -> list[PluginDriver]:
    """Start the drivers of a folder; an empty text: there are none. Raises ConfigInvalid.

    What is no driver is logged with its reason. `taken`: further names of drivers that this node has.
    """
    programs = OperatorFolder(folder, SETTING)
    found = []
    for name in programs.names():
        try:
            if not _NAME.fullmatch(name):
                raise ProgramRefused(f"a driver's name must match {_NAME.pattern}")  # noqa: TRY301
            if name in DRIVERS or name in taken:
                raise ProgramRefused(f"driver {name} is built in")  # noqa: TRY301
            programs.check(name)
        except ProgramRefused as err:
            _log.warning("driver.skipped", driver=name, reason=str(err))
            continue
        found.append(_driver(name, programs, home, environ))
    return found


def _driver(
    name: str, programs: OperatorFolder, home: DataDir, environ: Mapping[str, str]
) -> PluginDriver:
    folder = home.top / "drivers" / name
    for part in (home.top / "drivers", folder, folder / "runs", folder / "state"):
        part.mkdir(mode=0o700, exist_ok=True)
    environment = {
        **{key: text for key, text in environ.items() if key.startswith(_PASSED)},
        "PATH": _PATH,
        "CARAVAN_DRIVER_NAME": name,
        "CARAVAN_DRIVER_STATE": str(folder / "state"),
    }
    claims = RunClaims(folder / "runs")

    def settle() -> None:
        driver.settle_claims()

    process = DriverProcess(
        name, folder, lambda: programs.check(name), environment=environment, on_ready=settle
    )
    driver = PluginDriver(
        name,
        process,
        claims,
        host_id=home.host_id,
        kernel_boot=home.kernel_boot,
        known=known_runs(home, home.journal.entries),
    )
    process.begin()
    return driver
