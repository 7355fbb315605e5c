"""Plain tables as Parquet: columns of a report, for whoever reads them with other tools.

Decides nothing. Beside it: `database.py`, which writes the facts of a log.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import numpy as np


def write_table(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Write columns of equal length; one of texts stays texts, one of whole numbers whole. Raises OSError."""
    arrays = {name: _array(values) for name, values in columns.items()}
    connection = duckdb.connect(":memory:", config={"threads": 1})
    try:
        connection.register("_table", arrays)
        connection.sql("SELECT * FROM _table").write_parquet(str(path))
    except duckdb.Error as err:
        raise OSError(0, str(err).splitlines()[0], str(path)) from err
    finally:
        connection.close()


def _array(values: Sequence[object]) -> np.ndarray:
    if any(isinstance(one, str) for one in values):
        return np.array(list(values), dtype=object)
    whole = all(isinstance(one, int) for one in values)
    return np.array(list(values), dtype=np.int64 if whole else np.float64)
