"""The help of commands about evaluations."""

import msgspec

from schemas.evaluation_answers import QueueLine
from services.cli.eval.commands import COMMANDS


def test_the_help_names_each_field_of_a_waiting_group() -> None:
    """Each field of `eval list --waiting --json` has its name there, apart from a number that is repeated as text."""
    (spec,) = [one for one in COMMANDS if one.words == ("eval", "list")]
    names = [one.encode_name for one in msgspec.structs.fields(QueueLine)]
    assert [name for name in names if f"`{name}`" not in spec.details] == ["since_ns_text"]
