"""What a node has to say of its volumes, until the log has seen it. Read `reports.py` first."""

from schemas.host_volumes import VolumeStatus


class VolumeReports:
    """The newest word about each volume, and the number of the report that first carried it."""

    def __init__(self) -> None:
        #: by id, in order of change; 0: no number has carried it yet.
        self._said: dict[str, tuple[VolumeStatus, int]] = {}

    @property
    def has_fresh(self) -> bool:
        """Say whether there is a word that no report has carried yet."""
        return any(not number for _, number in self._said.values())

    @property
    def has_carried(self) -> bool:
        """Say whether the log has not seen a word that a report carried."""
        return any(number for _, number in self._said.values())

    def put(self, status: VolumeStatus) -> None:
        """Say something new of a volume."""
        self._said[status.id] = (status, 0)

    def drop(self, volume_id: str) -> None:
        """Say nothing more of a volume."""
        self._said.pop(volume_id, None)

    def is_seen(self, volume_id: str) -> bool:
        """Say whether the log has seen the newest word about a volume."""
        return volume_id not in self._said

    def carry(self, number: int, *, is_new: bool) -> tuple[VolumeStatus, ...]:
        """What the report of a number says, by id; a new one carries what no number has carried yet."""
        if is_new:
            said = self._said
            self._said = {key: (one, at or number) for key, (one, at) in said.items()}
        return tuple(one for _, (one, at) in sorted(self._said.items()) if at)

    def see(self, number: int) -> None:
        """Take the acknowledgement of all numbers up to `number`."""
        self._said = {
            key: (one, at) for key, (one, at) in self._said.items() if not 0 < at <= number
        }
