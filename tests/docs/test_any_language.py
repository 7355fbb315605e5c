"""What docs/any-language.md takes from the code: rights and tokens; and what it leaves to the generated page."""

import re

import pytest

from schemas.bounds import ERROR_CODES
from shared.protocol.id_tokens import id_token, token_id
from shared.protocol.subjects import QUERY_NOUNS
from tests.docs import rights_page

PAGE = rights_page.DOCS / "any-language.md"


@pytest.mark.parametrize("name", rights_page.PAGES)
def test_the_rights_are_those_of_the_accounts(name: str) -> None:
    """The tables of rights are generated, each page has its own, and a right that is added changes them."""
    page = (rights_page.DOCS / name).read_text("utf-8")
    assert re.findall(r"<!-- rights: (\w+) -->", page) == list(rights_page.PAGES[name])
    assert rights_page.render(page) == page, "python -m tests.docs.rights_page writes it"


def test_tokens_are_as_shown() -> None:
    """The table of ids and tokens is right, both ways."""
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition("| id | token |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \|$", table, re.MULTILINE)
    assert len(rows) == len(table.splitlines()) >= 5
    for identifier, token in rows:
        assert (id_token(identifier), token_id(token)) == (token, identifier)


def test_nouns_and_codes_are_listed_by_the_generated_page_alone() -> None:
    """A list that is written by hand lacks what came later: docs/queries.md has them all, and the page refers to it."""
    page = PAGE.read_text("utf-8")
    for part in re.split(r"\n(?:\n|(?=\|))", page):
        words = set(re.findall(r"`(?:query\.)?(\w+)`", part))
        assert len(words & set(QUERY_NOUNS)) < 4, part
    for table in page.split("\n\n"):
        assert len(set(re.findall(r"`(\w+)`", table)) & ERROR_CODES.keys()) < 4, table
    assert {"(queries.md)", "(queries.md#error-codes)"} <= set(
        re.findall(r"\(queries\.md\S*\)", page)
    )
