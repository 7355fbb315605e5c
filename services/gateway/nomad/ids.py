"""Ids of nodes: Nomad's clients expect UUIDs, ours are free text. The UUID is a hash of the id, so it never changes."""

from shared.core.state.state import State
from shared.protocol.node_uuids import node_uuid


class NodeIds:
    """Node ids by UUID, made anew when a node came or left."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._generation = -1
        self._by_uuid: dict[str, str] = {}

    def find(self, text: str) -> str:
        """The id of a node by its UUID or its own id; empty: there is none."""
        if text in self._state.fleet.row_of:
            return text
        return self._known().get(text.lower(), "")

    def with_prefix(self, prefix: str) -> list[str]:
        """Ids of the nodes whose UUID, or own id, begins so; sorted by UUID."""
        lower, known = prefix.lower(), self._known()
        return [
            known[uuid]
            for uuid in sorted(known)
            if uuid.startswith(lower) or known[uuid].startswith(prefix)
        ]

    def _known(self) -> dict[str, str]:
        if self._generation != self._state.fleet.generation or len(self._by_uuid) != len(
            self._state.fleet.row_of
        ):
            self._by_uuid = {node_uuid(one): str(one) for one in self._state.fleet.row_of}
            self._generation = self._state.fleet.generation
        return self._by_uuid
