"""Policies: restarts, rescheduling, rollouts, drains, schedules, scaling.

Nomad's names and defaults. Where inner blocks override outer ones field by field, None means unset; `defaults.py`
resolves it.
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from msgspec import field

from shared.jobspec.nomad.base import EMPTY_OBJECT, JobBlock


class RestartBlock(JobBlock, frozen=True, kw_only=True):
    """How an agent restarts a task in place. Unset: the default of the job's type."""

    attempts: int | None = field(name="Attempts", default=None)
    interval_ns: int | None = field(name="Interval", default=None)
    delay_ns: int | None = field(name="Delay", default=None)
    #: fail or delay.
    mode: str | None = field(name="Mode", default=None)
    #: render templates again at each restart.
    render_templates: bool | None = field(name="RenderTemplates", default=None)


class RescheduleBlock(JobBlock, frozen=True, kw_only=True):
    """When a failed allocation is replaced elsewhere. Unset: the default of the job's type."""

    attempts: int | None = field(name="Attempts", default=None)
    interval_ns: int | None = field(name="Interval", default=None)
    delay_ns: int | None = field(name="Delay", default=None)
    #: constant, exponential or fibonacci.
    delay_function: str | None = field(name="DelayFunction", default=None)
    max_delay_ns: int | None = field(name="MaxDelay", default=None)
    unlimited: bool | None = field(name="Unlimited", default=None)


class GateBlock(JobBlock, frozen=True, kw_only=True):
    """A gauge that has to be within a bound for deployments to continue. Caravan's own."""

    LABEL: ClassVar[str] = "Name"

    name: str = field(name="Name", default="")
    gauge: str = field(name="Gauge", default="")
    #: one of both.
    below: int | float | None = field(name="Below", default=None)
    above: int | float | None = field(name="Above", default=None)
    for_ns: int = field(name="For", default=0)
    #: 0: none.
    timeout_ns: int = field(name="Timeout", default=0)
    #: fail, proceed or wait; None: fail where there is a timeout.
    on_timeout: str | None = field(name="OnTimeout", default=None)


class WindowBlock(JobBlock, frozen=True, kw_only=True):
    """Times at which deployments continue. Caravan's own."""

    cron: str = field(name="Cron", default="")
    duration_ns: int = field(name="Duration", default=0)
    time_zone: str = field(name="TimeZone", default="UTC")


class UpdateStrategy(JobBlock, frozen=True, kw_only=True):
    """How a new version replaces the old one. Unset: Nomad's default."""

    HCL: ClassVar[Mapping[str, str]] = {"Gates": "gate", "Windows": "window"}

    stagger_ns: int | None = field(name="Stagger", default=None)
    max_parallel: int | None = field(name="MaxParallel", default=None)
    #: checks, task_states or manual.
    health_check: str | None = field(name="HealthCheck", default=None)
    min_healthy_time_ns: int | None = field(name="MinHealthyTime", default=None)
    healthy_deadline_ns: int | None = field(name="HealthyDeadline", default=None)
    progress_deadline_ns: int | None = field(name="ProgressDeadline", default=None)
    canary: int | None = field(name="Canary", default=None)
    auto_revert: bool | None = field(name="AutoRevert", default=None)
    auto_promote: bool | None = field(name="AutoPromote", default=None)
    #: what holds deployments back; in the job's block alone.
    gates: tuple[GateBlock, ...] | None = field(name="Gates", default=None)
    #: when deployments continue; in the job's block alone.
    windows: tuple[WindowBlock, ...] | None = field(name="Windows", default=None)


class MigrateStrategy(JobBlock, frozen=True, kw_only=True):
    """How allocations leave a draining node. Unset: Nomad's default."""

    max_parallel: int | None = field(name="MaxParallel", default=None)
    health_check: str | None = field(name="HealthCheck", default=None)
    min_healthy_time_ns: int | None = field(name="MinHealthyTime", default=None)
    healthy_deadline_ns: int | None = field(name="HealthyDeadline", default=None)


class DisconnectBlock(JobBlock, frozen=True, kw_only=True):
    """How allocations of a disconnected node are handled, also when it reconnects."""

    #: None: at once.
    lost_after_ns: int | None = field(name="LostAfter", default=None)
    stop_on_client_after_ns: int | None = field(name="StopOnClientAfter", default=None)
    replace: bool = field(name="Replace", default=True)
    #: best_score, keep_original, keep_replacement or longest_running.
    reconcile: str = field(name="Reconcile", default="best_score")


class CheckRestart(JobBlock, frozen=True, kw_only=True):
    """When a failing check restarts its task. Limit 0: never."""

    limit: int = field(name="Limit", default=0)
    grace_ns: int = field(name="Grace", default=1_000_000_000)
    ignore_warnings: bool = field(name="IgnoreWarnings", default=False)


class Periodic(JobBlock, frozen=True, kw_only=True):
    """Run a batch job on a schedule."""

    HCL: ClassVar[Mapping[str, str]] = {"Spec": "cron", "Specs": "crons"}

    enabled: bool = field(name="Enabled", default=True)
    cron: str = field(name="Spec", default="")
    crons: tuple[str, ...] = field(name="Specs", default=())
    spec_type: str = field(name="SpecType", default="cron")
    prohibit_overlap: bool = field(name="ProhibitOverlap", default=False)
    time_zone: str = field(name="TimeZone", default="UTC")


class Parameterized(JobBlock, frozen=True, kw_only=True):
    """A job that runs when it is dispatched with arguments."""

    #: optional, required or forbidden.
    payload: str = field(name="Payload", default="optional")
    meta_required: tuple[str, ...] = field(name="MetaRequired", default=())
    meta_optional: tuple[str, ...] = field(name="MetaOptional", default=())


class Scaling(JobBlock, frozen=True, kw_only=True):
    """Bounds and policy of an autoscaler. `policy` is passed through."""

    #: None: the group's count.
    min: int | None = field(name="Min", default=None)
    max: int | None = field(name="Max", default=None)
    enabled: bool = field(name="Enabled", default=True)
    #: horizontal; of a task vertical_cpu or vertical_mem.
    type: str = field(name="Type", default="horizontal")
    policy: msgspec.Raw = field(name="Policy", default=EMPTY_OBJECT)


class RegionStrategy(JobBlock, frozen=True, kw_only=True):
    """The order in which regions take a new version."""

    max_parallel: int = field(name="MaxParallel", default=0)
    on_failure: str = field(name="OnFailure", default="")


class Region(JobBlock, frozen=True, kw_only=True):
    """One region of a multiregion job."""

    LABEL: ClassVar[str] = "Name"

    name: str = field(name="Name", default="")
    count: int | None = field(name="Count", default=None)
    datacenters: tuple[str, ...] = field(name="Datacenters", default=())
    node_pool: str = field(name="NodePool", default="")
    meta: dict[str, str] = field(name="Meta", default_factory=dict)


class Multiregion(JobBlock, frozen=True, kw_only=True):
    """A job in several regions."""

    HCL: ClassVar[Mapping[str, str]] = {"Regions": "region"}

    strategy: RegionStrategy | None = field(name="Strategy", default=None)
    regions: tuple[Region, ...] = field(name="Regions", default=())


class UiLink(JobBlock, frozen=True, kw_only=True):
    """A link that is shown with the job."""

    HCL: ClassVar[Mapping[str, str]] = {"URL": "url"}

    label: str = field(name="Label", default="")
    url: str = field(name="URL", default="")


class Ui(JobBlock, frozen=True, kw_only=True):
    """The description of a job in a user interface."""

    HCL: ClassVar[Mapping[str, str]] = {"Links": "link"}

    description: str = field(name="Description", default="")
    links: tuple[UiLink, ...] = field(name="Links", default=())


class ScheduleCron(JobBlock, frozen=True, kw_only=True):
    """The start and end of a task's schedule."""

    start: str = field(name="Start", default="")
    end: str = field(name="End", default="")
    timezone: str = field(name="Timezone", default="UTC")


class Schedule(JobBlock, frozen=True, kw_only=True):
    """The time of day a task runs in."""

    cron: ScheduleCron | None = field(name="Cron", default=None)
