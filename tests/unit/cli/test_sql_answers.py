"""Answers of `caravan sql` hold every value: times with a zone, numbers that are none, equal names, nulls."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from services.cli.main import main
from shared.archive.export import write_export
from tests.golden.replay_log import read_log

ROOT = Path(__file__).parents[3]
RECORDS = read_log(ROOT / "tests" / "golden" / "logs" / "v1-0.1.0-seed-2.jsonl.gz")[:40]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("export") / "out"
    write_export(folder, RECORDS)
    return str(folder)


def row_of(export: str, capsys: pytest.CaptureFixture[str], question: str) -> dict[str, Any]:
    """The one row of an answer in JSON, which a strict reader takes."""
    assert main(["sql", question, "--dir", export, "--json"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    (row,) = told["rows"]
    assert list(row) == told["columns"] and len(told["types"]) == len(row)
    return row  # type: ignore[no-any-return]


def csv_of(export: str, capsys: pytest.CaptureFixture[str], question: str) -> str:
    """The lines behind the header."""
    assert main(["sql", question, "--dir", export, "--csv"]) == 0
    return capsys.readouterr().out.partition("\n")[2]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("now() > TIMESTAMPTZ '2026-01-01 00:00:00+00'", True),
        ("to_timestamp(0)", "1970-01-01 00:00:00+00"),
        ("TIMESTAMPTZ '2026-01-01 00:00:00.123456+02'", "2025-12-31 22:00:00.123456+00"),
        ("TIMESTAMP '2026-07-01 00:00:00' AT TIME ZONE 'Europe/Berlin'", "2026-06-30 22:00:00+00"),
        (
            "TIMESTAMPTZ '2026-07-01 00:00:00+00' AT TIME ZONE 'Europe/Berlin'",
            "2026-07-01 02:00:00.000000",
        ),
        ("[to_timestamp(0), NULL]", ["1970-01-01 00:00:00+00", None]),
        ("{'at': to_timestamp(0)}", {"at": "1970-01-01 00:00:00+00"}),
        ("TIMESTAMPTZ '10000-01-01 00:00:00+00'", "10000-01-01 00:00:00+00"),
        ("TIMESTAMP '10000-01-01 00:00:00'", "10000-01-01 00:00:00"),
        ("TIMESTAMP_NS '2026-01-01 00:00:00.123456789'", "2026-01-01 00:00:00.123456789"),
        ("TIMESTAMP 'infinity'", "infinity"),
        ("DATE '-infinity'", "-infinity"),
        ("TIMESTAMP '2026-01-01 00:00:00.123456'", "2026-01-01 00:00:00.123456"),
        ("TIME '01:02:03.000001'", "01:02:03.000001"),
    ],
)
def test_every_time_is_answered(
    export: str, capsys: pytest.CaptureFixture[str], value: str, shown: object
) -> None:
    """With a zone, beyond the years of Python, to the last digit; no module is missing."""
    assert row_of(export, capsys, f"SELECT {value} AS x -- a comment ends it") == {"x": shown}
    if isinstance(shown, str):
        assert csv_of(export, capsys, f"SELECT {value} AS x;") == f"{shown}\n"
    assert main(["sql", f"SELECT {value} AS x", "--dir", export]) == 0


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_json_stays_json(export: str, capsys: pytest.CaptureFixture[str], number: str) -> None:
    """What is no number of JSON is null, in columns, lists, structs, maps and JSON itself."""
    one = f"'{number}'::DOUBLE"
    question = f"""SELECT {one} AS a, {one}::FLOAT AS b, [{one}, 1] AS c, {{'x': {one}}} AS d,
        json_object('x', {one}, 'y', [1, {one}]) AS e, to_json({one}) AS f, MAP {{1: {one}}} AS g"""
    assert row_of(export, capsys, question) == {
        "a": None,
        "b": None,
        "c": [None, 1.0],
        "d": {"x": None},
        "e": {"x": None, "y": [1, None]},
        "f": None,
        "g": {"1": None},
    }


def test_columns_of_one_name_stay_apart(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a name of its own in every form, and none loses its value."""
    question = "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a, 5 AS b"
    assert row_of(export, capsys, question) == {"a": 1, "a_2": 2, "a_1": 3, "a_3": 4, "b": 5}
    joined = "SELECT x.seq, y.seq FROM records x JOIN events y USING (seq) LIMIT 1"
    assert list(row_of(export, capsys, joined)) == ["seq", "seq_1"]
    assert main(["sql", question, "--dir", export, "--csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert list(row.values()) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("NULL", ""),
        ("''", '""'),
        ("[]", "[]"),
        ("[NULL, 'a']", '"[null,""a""]"'),
        ("['']", '"[""""]"'),
        ("{'a': NULL}", '"{""a"":null}"'),
        ("'a,b'", '"a,b"'),
        ("'say \"x\"'", '"say ""x"""'),
        ("'a' || chr(10) || 'b'", '"a\nb"'),
        ("'NULL'", "NULL"),
        ("0.1::DOUBLE + 0.2::DOUBLE", "0.30000000000000004"),
        ("1234567890.123456::DOUBLE", "1234567890.123456"),
        ("'nan'::DOUBLE", "nan"),
        ("1.10::DECIMAL(38, 20)", "1.10000000000000000000"),
        ("170141183460469231731687303715884105727", "170141183460469231731687303715884105727"),
        ("true", "true"),
    ],
)
def test_comma_separated_values_are_exact(
    export: str, capsys: pytest.CaptureFixture[str], value: str, field: str
) -> None:
    """All digits; a null is nothing, an empty text is quoted, a list or a struct is JSON."""
    assert csv_of(export, capsys, f"SELECT 1, {value}, 2") == f"1,{field},2\n"
