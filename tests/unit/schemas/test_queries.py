"""Parameters of queries: the table has every noun, and names what is unknown or senseless."""

import msgspec
import pytest

from schemas import queries
from schemas.catalogue import ANSWERS
from schemas.projections import Query
from shared.protocol import subjects

REFUSED = {
    "a typo": ("jobs", b'{"statsu": "dead"}', "statsu"),
    "of another noun": ("jobs", b'{"version": 1}', "version"),
    "a status of other things": ("nodes", b'{"status": "blocked"}', "status"),
    "no list": ("alloc", b'{"id": "a", "limit": 5}', "limit"),
    "a table": ("cluster", b'{"id": "tables"}', "id"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_senseless_parameters_are_named(name: str) -> None:
    """An unknown parameter is refused with the list of the known ones, a status with the words there are."""
    noun, body, path = REFUSED[name]
    text, where = queries.fault(noun, msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
    assert where == path and "expected" in text, text


def test_every_noun_has_a_row_of_parameters_that_exist() -> None:
    """Nouns are those of the subjects; parameters are fields of Query, of `plan` its own."""
    assert set(queries.NOUNS) == set(subjects.QUERY_NOUNS) == set(ANSWERS)
    fields = set(Query.__struct_fields__)
    for noun, row in queries.NOUNS.items():
        assert noun == "plan" or set(row.names) <= fields
        whole = {name: msgspec.Raw(b'""') for name in row.names}
        assert queries.fault(noun, whole) == ("", "")
