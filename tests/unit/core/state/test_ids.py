"""Shown ids: one by one and many at once."""

import numpy as np
import pytest

from shared.core.state.ids import ALLOC_SALT, EVAL_SALT, make_key, shown_id, shown_ids


@pytest.mark.parametrize("salt", [ALLOC_SALT, EVAL_SALT])
def test_many_at_once_are_what_each_is(salt: int) -> None:
    """The vector pass gives every key the id that it has alone, the largest and none included."""
    keys = [0, 1, make_key(1, 0), make_key(7, 12345), make_key(2**42, 2**20 - 1), 2**63 - 1]
    assert shown_ids(np.array(keys, dtype=np.int64), salt) == [shown_id(key, salt) for key in keys]
    assert shown_ids(np.empty(0, dtype=np.int64), salt) == []
