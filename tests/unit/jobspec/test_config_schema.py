"""JSON Schemas of driver plugins: what is understood, and what they make of the options of a job file."""

import json
from typing import Any

import pytest

from shared.jobspec.drivers.config_schema import (
    SCHEMA_BYTES_MAX,
    SchemaRefused,
    fit_config,
    read_schema,
)

CONFIG = {
    "type": "object",
    "properties": {
        "image": {"type": "string", "minLength": 3, "pattern": "^[a-z]+$"},
        "size": {"type": "integer", "minimum": 1, "maximum": 8},
        "ratio": {"type": "number", "maximum": 1},
        "fast": {"type": "boolean"},
        "mode": {"enum": ["safe", "quick"]},
        "args": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "boot": {
            "type": "object",
            "properties": {"disk": {"type": "string"}},
            "required": ["disk"],
        },
        "disk": {"type": "array", "items": {"type": "object", "additionalProperties": False}},
        "free": True,
    },
    "required": ["image"],
    "additionalProperties": False,
}


def fit(config: dict[str, Any], schema: dict[str, Any] | None = None) -> tuple[Any, list[str]]:
    """Fit options; faults as `path: text`."""
    found, faults = fit_config(read_schema(json.dumps(schema or CONFIG)), config)
    return found, [f"{one.path}: {one.message}" for one in faults]


def test_values_get_the_types_of_the_schema() -> None:
    """Texts that are numbers or flags become them; a block, which HCL writes as a list of maps, becomes an object."""
    given = {
        "image": "web",
        "size": "4",
        "ratio": "0.5",
        "fast": "true",
        "args": [1, "b"],
        "boot": [{"disk": "a"}],
        "disk": {},
        "free": {"any": [1]},
        "mode": None,
    }
    assert fit(given) == (
        {
            "args": ["1", "b"],
            "boot": {"disk": "a"},
            "disk": [{}],
            "fast": True,
            "free": {"any": [1]},
            "image": "web",
            "ratio": 0.5,
            "size": 4,
        },
        [],
    )


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, "image: is required"),
        ({"image": "web", "imge": 1}, "imge: unknown option 'imge' (did you mean image?)"),
        ({"image": "ab"}, "image: must have at least 3 characters, has 2"),
        ({"image": "WEB"}, "image: must match ^[a-z]+$, was 'WEB'"),
        ({"image": "web", "size": 9}, "size: must be at most 8, was 9"),
        ({"image": "web", "size": 0}, "size: must be at least 1, was 0"),
        ({"image": "web", "size": "many"}, "size: must be a whole number, was 'many'"),
        ({"image": "web", "ratio": "x"}, "ratio: must be a number, was 'x'"),
        ({"image": "web", "ratio": "nan"}, "ratio: must be a number, was nan"),
        ({"image": "web", "fast": "maybe"}, "fast: must be true or false, was 'maybe'"),
        (
            {"image": "web", "mode": "quik"},
            "mode: must be one of safe, quick, was 'quik' (did you mean quick?)",
        ),
        ({"image": "web", "args": ["a", "b", "c"]}, "args: must have at most 2 entries, has 3"),
        ({"image": "web", "args": "a"}, "args: must be a list, was 'a'"),
        ({"image": "web", "boot": [{}, {}]}, "boot: must be one block or map"),
        ({"image": "web", "boot": [{}]}, "boot.disk: is required"),
        ({"image": "web", "disk": [{"x": 1}]}, "disk[0].x: unknown option 'x'"),
    ],
)
def test_a_fault_names_its_place(given: dict[str, Any], fault: str) -> None:
    """Each rule of the schema has a fault with the option's path."""
    assert fit(given)[1] == [fault]


def test_a_reference_is_left_to_the_node() -> None:
    """A value with `${…}` fits every type; only the node knows what it is."""
    given = {
        "image": "${meta.image}",
        "size": "${meta.size}",
        "fast": "${meta.fast}",
        "mode": "${x}",
    }
    assert fit(given) == (given, [])


def test_faults_of_one_config_are_bounded() -> None:
    """Thousands of strange options cost few searches for a name and few faults."""
    found = fit({"image": "web", **{f"o{n}": 1 for n in range(5000)}})[1]
    assert len(found) == 50


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("[", "the schema is no JSON"),
        ("[]", "the schema: must be an object"),
        ('{"type": "array"}', "the schema of options must be of type object"),
        ('{"oneOf": []}', "oneOf: this keyword is not understood"),
        ('{"properties": {"a": {"type": "text"}}}', "properties.a.type: must be one of string"),
        ('{"properties": {"a": {"pattern": "("}}}', "properties.a.pattern: "),
        ('{"properties": {"a": {"pattern": {"b": 1}}}}', "properties.a.pattern: must be a text"),
        ('{"properties": {"a": {"enum": [[]]}}}', "properties.a.enum: must be a list of"),
        ('{"properties": {"a": {"minimum": "1"}}}', "properties.a.minimum: must be a number"),
        (
            '{"properties": {"a": {"minimum": 1' + "0" * 400 + "}}}",
            "properties.a.minimum: the number has too many digits",
        ),
        (
            '{"properties": {"a": {"maxItems": -1}}}',
            "properties.a.maxItems: must be a whole number",
        ),
        ('{"required": "a"}', "required: must be a list of names"),
        ('{"title": "' + "x" * SCHEMA_BYTES_MAX + '"}', "the schema is longer than"),
        ('{"items":' * 12 + "{}" + "}" * 12, "it is too deep or has too many parts"),
        ("[" * 10_000, "the schema is no JSON"),
    ],
)
def test_what_is_not_understood_is_refused(schema: str, reason: str) -> None:
    """A schema is refused whole, with the place of what it has too much: a rule that is ignored would be a lie."""
    with pytest.raises(SchemaRefused) as err:
        read_schema(schema)
    assert reason in str(err.value)


def test_bounds_are_said_as_the_schema_has_them() -> None:
    """A limit of many digits is not rounded in the text about it."""
    schema = read_schema('{"properties": {"a": {"type": "integer", "maximum": 1234567}}}')
    (fault,) = fit_config(schema, {"a": 1234568})[1]
    assert fault.message == "must be at most 1234567, was 1234568"


def test_a_whole_number_is_one_of_the_choices_however_it_is_written() -> None:
    """JSON has one kind of numbers: 2 is 2.0; true is no 1."""
    schema = read_schema('{"properties": {"a": {"type": "number", "enum": [1.5, 2.0]}}}')
    assert fit_config(schema, {"a": 2.0})[1] == () == fit_config(schema, {"a": "1.5"})[1]
    flags = read_schema('{"properties": {"a": {"enum": [1]}}}')
    assert fit_config(flags, {"a": True})[1]
