"""Types that the stages of placing share: the snapshot, the assignment, the parts of a placement, the proposal."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.base import EvalKey, JobId
from schemas.evaluations import NewEvaluation
from schemas.plans import Evictions, GroupPlacement, GroupSize, InPlace, Origin, Stops, SubmitPlan
from shared.core.columns import Rows
from shared.core.resources.asks import Holding
from shared.core.resources.held import HeldResources
from shared.core.scheduling.feasibility.filters import PlacementCache
from shared.core.scheduling.selection.candidates import Placement
from shared.core.scheduling.usage.dirty_rows import DirtyRows
from shared.core.state.state import State

NO_ROWS: Rows = np.empty(0, dtype=np.int32)


class Snapshot(msgspec.Struct, frozen=True, eq=False):
    """Input of a decision. `held` includes the unconfirmed plans of the worker itself."""

    state: State
    held: HeldResources
    caches: PlacementCache
    #: allocation rows that the worker's unconfirmed plans evict; `held` excludes them.
    evicted: Rows = NO_ROWS
    #: rows where the three columns of `held` changed since it was made; None: not tracked.
    dirty_rows: DirtyRows | None = None


class Assignment(msgspec.Struct, frozen=True):
    """The evaluation to decide."""

    key: EvalKey
    job_id: JobId
    triggered_by: str = ""


class LaneDraw(msgspec.Struct, frozen=True):
    """The lane of nodes to fill first, and the seed of policies that sample nodes."""

    seed: int = 0
    lane: int = 0
    lanes: int = 1


class PlacedPart(msgspec.Struct, frozen=True, eq=False):
    """A placed part of a request. `positions`: which of its allocations; None: the first ones."""

    placement: Placement
    positions: NDArray[np.intp] | None = None
    #: index of the group's alternative that was used, and what each allocation holds of it.
    variant: int = 0
    holdings: tuple[Holding, ...] = ()


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A plan without worker and number."""

    placements: tuple[GroupPlacement, ...] = ()
    stops: tuple[Stops, ...] = ()
    updates: tuple[InPlace, ...] = ()
    evictions: tuple[Evictions, ...] = ()
    all_at_once: bool = False
    end: str = "complete"
    end_reason: str = ""
    follow_ups: tuple[NewEvaluation, ...] = ()
    sizes: tuple[GroupSize, ...] = ()
    decision: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def to_command(self, key: EvalKey, job_id: JobId, origin: Origin) -> SubmitPlan:
        """Make the command to the plan applier."""
        return SubmitPlan(key=key, job_id=job_id, origin=origin, **msgspec.structs.asdict(self))
