"""Durations in virtual time: hops, appends, and the work of each role.

Measured on two shared cores with NATS on the same machine: a commit takes 0.37 ms with a flush of 0.13 ms, a hop
between two processes 0.12 ms, a decision on 5,000 nodes about 0.12 ms (`caravan bench p6`, singles), and each
further placement 3.6 microseconds (p6, one group). A scenario may set others.
"""

import msgspec

MS = 1_000_000
US = 1_000


class ServiceTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Units: ns of virtual time. A change of any value changes the run."""

    #: one message from one process to another.
    hop_ns: int = 120 * US
    #: one durable append to the log, with its answer.
    append_ns: int = 370 * US
    #: from the log to the node's projection: the view batches for 50 ms.
    projection_ns: int = 50 * MS
    #: batch interval of a node's reports.
    report_ns: int = 20 * MS
    intake_submission_ns: int = 60 * US
    broker_step_ns: int = 30 * US
    applier_command_ns: int = 60 * US
    #: one evaluation, and each placement of it.
    decide_ns: int = 120 * US
    placement_ns: int = 3_600
