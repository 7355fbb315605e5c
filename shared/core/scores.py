"""Scores: how good a node is for one more allocation of a group, as exact integers.

Decides: the value of each scorer and their mean, for vectors of nodes and for one node.
Must not know: which nodes are feasible, how many to place, where a policy comes from. cut.py is next.

Every scorer yields an int64 in units of 2**-20, in [-1, 1]. No float takes part, so the same snapshot
ranks the same on every processor. A scorer that does not apply is absent from the mean, not a zero
(anti-affinity with no collisions; reference: Nomad's ScoreNormalizationIterator). Means and quotients
are floor divisions. The free fraction is floored to 1 / 65536; the fit score then differs from the
real-valued formula by less than 1e-4.

The scalar twins (`fit_score`, `anti_affinity_score`, `node_scores`, `mean_score`) are written apart from the
vectors on purpose: they explain a decision, and the tests hold the vectors against them.

Invariant of all arguments: 0 <= capacity < 2**47. A node whose use exceeds its capacity counts as full,
and so does a node with zero capacity in a dimension.
"""

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from shared.core.pow10 import POW10, SCALE, STEPS, STEPS_LOG2

#: The order of the columns in every capacity, used and ask matrix.
RESOURCES: Final = ("cpu_mhz", "memory_mib", "disk_mib")
CPU: Final = 0
MEMORY: Final = 1

type_name = Literal["binpack", "spread"]
Algorithm = type_name

Int64s = NDArray[np.int64]
