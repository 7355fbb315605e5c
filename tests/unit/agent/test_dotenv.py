"""Variables of templates with `env`: the dialect that Nomad reads."""

import pytest

from services.agent.inputs.templates.dotenv import DotenvInvalid, read_dotenv


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("A=b", {"A": "b"}),
        ("  A = b c  ", {"A": "b c"}),
        ("A=b\r", {"A": "b"}),
        ("export A=b", {"A": "b"}),
        ("export=b", {"export": "b"}),
        ("A.b/c_1=x", {"A.b/c_1": "x"}),
        ("A=", {"A": ""}),
        ("# A=b", {}),
        ("", {}),
        ("A=b # c", {"A": "b"}),
        ("A=b#c", {"A": "b"}),
        ("A='b # c'", {"A": "b # c"}),
        ('A=" b " # c', {"A": " b "}),
        ("A=\u00e9 # c", {"A": "\u00e9"}),
        ("A=b=c", {"A": "b=c"}),
        ("A=one'two'\"three\"", {"A": "onetwothree"}),
        ("A='\\n'", {"A": "\\n"}),
        ('A="a\\n\\t\\"\\\\\\/\\u00e9"', {"A": 'a\n\t"\\/\u00e9'}),
        ('A="\\ud83d\\ude00"', {"A": "\U0001f600"}),
        ("A=1\nA=2", {"A": "2"}),
        ("A=${B} $(x) `y`", {"A": "${B} $(x) `y`"}),
    ],
)
def test_a_line_is_read_as_nomad_does(line: str, found: dict[str, str]) -> None:
    """Quotes, comments, `export` and escapes of JSON; nothing is expanded."""
    assert read_dotenv(line) == found


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("A", "= is missing"),
        ("=b", "the name of a variable"),
        ("1A=b", "the name of a variable"),
        ("A-B=b", "the name of a variable"),
        ('A="b', "not closed"),
        ("A='b", "not closed"),
        ('A="\\x"', "unknown escape"),
        ('A="\\u12"', "unknown escape"),
        ('A="\\ud83d"', "half of"),
        ('A="\\u0000"', "cannot hold"),
        ("A=b\x01", "control character"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, part: str) -> None:
    """The fault has the number of the line, and nothing of its value."""
    with pytest.raises(DotenvInvalid) as err:
        read_dotenv(f"OK=1\n{line}")
    assert str(err.value).startswith("line 2 of the rendered text: ") and part in str(err.value)
