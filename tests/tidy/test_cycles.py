"""No import cycle: not at run time, not inside a function, not under TYPE_CHECKING."""

import ast
from collections.abc import Iterable, Iterator

from tests.tidy.tree import Source, report, sources

PACKAGES = ("bench/", "schemas/", "services/", "shared/")

#: Cycles that are still there. Only ever remove from it; it goes when it is empty.
KNOWN: frozenset[frozenset[str]] = frozenset()


def module_name(path: str) -> str:
    """Return the dotted name of a file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported_names(source: Source) -> Iterator[str]:
    """Yield every dotted name that a file imports, wherever in the file the import stands."""
    parts = module_name(source.path).split(".")
    if not source.path.endswith("__init__.py"):
        parts = parts[:-1]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def import_graph(files: Iterable[Source]) -> dict[str, set[str]]:
    """Map each module to the modules it imports; a name that is not a module counts as its parent."""
    files = list(files)
    modules = {module_name(source.path) for source in files}
    graph: dict[str, set[str]] = {}
    for source in files:
        name = module_name(source.path)
        targets = graph.setdefault(name, set())
        for imported in imported_names(source):
            target = imported if imported in modules else imported.rpartition(".")[0]
            if target in modules:
                targets.add(target)
    return graph


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the strongly connected components of more than one module, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.add(frozenset(stack[at:]))
            del stack[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return found


def tree_cycles(*planted: Source) -> set[frozenset[str]]:
    """Find the cycles of the tree, with planted files in place of those of the same path."""
    paths = {source.path for source in planted}
    kept = [one for one in sources() if one.path.startswith(PACKAGES) and one.path not in paths]
    return cycles(import_graph([*kept, *planted]))


def plant(path: str, text: str) -> Source:
    """Make a source that is in no file."""
    return Source(path, text, ast.parse(text))


def test_no_module_imports_itself_through_others() -> None:
    """Modules form layers: no two of them need each other."""
    found = tree_cycles()
    assert not found - KNOWN, report([" <-> ".join(sorted(one)) for one in found - KNOWN])
    assert not KNOWN - found, "gone, take it from the list:" + report(
        [" <-> ".join(sorted(one)) for one in KNOWN - found]
    )


def test_a_planted_cycle_is_found() -> None:
    """Also one that only types need, through a package, in a function, and relative."""
    lower = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shared.core.state import planted_b\n"
    upper = "def late() -> None:\n    from .planted_a import Thing\n"
    found = tree_cycles(
        plant("shared/core/state/planted_a.py", lower),
        plant("shared/core/state/planted_b.py", upper),
    )
    pair = frozenset({"shared.core.state.planted_a", "shared.core.state.planted_b"})
    assert found - KNOWN == {pair}


def test_a_cycle_planted_in_a_real_module_is_found() -> None:
    """The runtime's largest cycle of old: records know the replica that applies them."""
    path = "shared/core/runtime/messages.py"
    text = next(source.text for source in sources() if source.path == path)
    text += "\nfrom shared.core.runtime.replica import Replica\n"
    assert any("shared.core.runtime.messages" in one for one in tree_cycles(plant(path, text)))
