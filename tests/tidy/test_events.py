"""No event is forgotten: each reader handles it, or schemas/event_readers.py says why it is ignored."""

import ast
from collections.abc import Iterable, Iterator

import pytest

from schemas import catalogue
from schemas.event_readers import GROUPS, READERS, EventReader
from tests.tidy.tree import Source, report, shipped

#: Files that name several types of events and do not act on them.
NO_READERS = {
    "schemas/envelope.py": "lists them all",
    "shared/core/decide/garbage.py": "writes them, one type for each table",
    "shared/core/decide/consequences.py": "names those from which something follows",
}


def event_tags() -> dict[str, str]:
    """Return the tag of each event by the name of its class."""
    return {one.__name__: str(one.__struct_config__.tag) for one in catalogue.EVENTS}


def class_names(node: ast.AST) -> Iterator[str]:
    """Yield the names in an expression that lists classes: a name, a tuple, a union."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            for item in items:
                yield from class_names(item)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from class_names(left)
            yield from class_names(right)
        case _:
            pass


def dispatched(tree: ast.AST) -> Iterator[str]:
    """Yield the names of classes that code tells apart: patterns, isinstance, keys, comparisons, collections."""
    for node in ast.walk(tree):
        match node:
            case ast.MatchClass(cls=named):
                yield from class_names(named)
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, named]):
                yield from class_names(named)
            case ast.Dict(keys=keys):
                for key in keys:
                    yield from class_names(key) if key is not None else ()
            case ast.Compare():
                for side in (node.left, *node.comparators):
                    yield from class_names(side)
            case ast.Tuple() | ast.List() | ast.Set() | ast.BinOp():
                yield from class_names(node)
            case _:
                pass


def handled(reader: EventReader, files: Iterable[Source]) -> set[str]:
    """Return the tags of the events that a reader's code tells apart."""
    tags = event_tags()
    return {
        tags[name]
        for source in files
        if is_part(reader, source.path)
        for name in dispatched(source.tree)
        if name in tags
    }


def is_part(reader: EventReader, path: str) -> bool:
    """Tell whether a file is the reader, or in its folder."""
    return path == reader.path or (reader.path.endswith("/") and path.startswith(reader.path))


def faults(reader: EventReader, files: Iterable[Source]) -> list[str]:
    """Say which events a reader forgets, ignores by name although it handles them, or has made up."""
    ours, ignored, known = handled(reader, files), reader.ignored(), set(event_tags().values())
    return [
        *(f"{reader.path} neither handles nor ignores {tag}" for tag in known - ours - ignored),
        *(f"{reader.path} handles {tag} and is said to ignore it" for tag in ours & ignored),
        *(f"{reader.path} is said to ignore {tag}, which is no event" for tag in ignored - known),
    ]


def unregistered(files: Iterable[Source]) -> list[str]:
    """Name the files that tell two events apart and belong to no reader."""
    tags = event_tags()
    return [
        f"{source.path} tells events apart; name it in schemas/event_readers.py"
        for source in files
        if not any(is_part(one, source.path) for one in READERS)
        if source.path not in NO_READERS
        if len(tags.keys() & set(dispatched(source.tree))) > 1
    ]


@pytest.mark.parametrize("reader", READERS, ids=lambda one: one.path)
def test_every_event_is_handled_or_ignored(reader: EventReader) -> None:
    """What the code names and what is listed as ignored are all events together, and nothing twice."""
    found = faults(reader, shipped())
    assert not found, report(found)
    assert len(reader.ignored()) == sum(len(one.split()) for one in reader.ignores.values())


def test_every_reader_is_listed() -> None:
    """A file that tells events apart belongs to a reader, and each exemption still has its file."""
    found = unregistered(shipped())
    assert not found, report(found)
    assert NO_READERS.keys() <= {source.path for source in shipped()}


def test_groups_are_lists_of_events() -> None:
    """A group holds events, none of them is in two groups, and no group is named as an event is."""
    tags = [tag for group in GROUPS.values() for tag in group.split()]
    known = set(event_tags().values())
    assert len(tags) == len(set(tags))
    assert set(tags) <= known
    assert not GROUPS.keys() & known


@pytest.mark.parametrize("reader", READERS, ids=lambda one: one.path)
def test_a_planted_event_is_missed(reader: EventReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event added to the catalogue fails every reader by name until each one decides."""
    planted = type("PlantedEvent", (catalogue.Event,), {}, tag="planted.event")
    monkeypatch.setattr(catalogue, "EVENTS", (*catalogue.EVENTS, planted))
    path = f"{reader.path}planted.py" if reader.path.endswith("/") else reader.path
    forgets = f"{reader.path} neither handles nor ignores planted.event"
    assert forgets in faults(reader, shipped())
    handles = Source(path, "", ast.parse("match event:\n    case PlantedEvent():\n        pass\n"))
    assert forgets not in faults(reader, [*shipped(), handles])


def test_a_planted_reader_is_found() -> None:
    """A new file that tells events apart, in a dict or by isinstance, has to be listed."""
    text = "table = {PlanCommitted: 1}\nisinstance(event, plans.PlanRefused)\n"
    planted = Source("shared/planted.py", text, ast.parse(text))
    assert [line.partition(" ")[0] for line in unregistered([planted])] == ["shared/planted.py"]
