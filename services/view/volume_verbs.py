"""The verbs about host volumes that are created by request."""

from collections.abc import Callable
from typing import Any

from schemas.host_volumes import RemoveVolume, RequestVolume, VolumeDeleted, VolumeDeleting
from schemas.operator import CreateVolumeRequest, DeleteVolumeRequest
from services.view.operator_verbs import PreparedVerb, VerbContext, raise_refusal
from shared.core.decide.host_volumes import decide_removal, decide_request
from shared.query.lookup import find_node


def create_volume(at: VerbContext, body: CreateVolumeRequest) -> PreparedVerb:
    """Have a volume made; one with this id that is there already stays. Raises CommandInvalid."""
    fleet = at.state.fleet
    node_id = fleet.ids[find_node(at.state, body.node_id)] if body.node_id else ""
    command = RequestVolume(request_id=at.request_id, spec=body.spec, node_id=node_id)
    wanted = raise_refusal(decide_request(at.state, command), "spec")
    if not wanted:
        return PreparedVerb(at.verdict(node_id=at.state.volumes.by_id[body.spec.id].node_id))
    return PreparedVerb(
        at.verdict(node_id=node_id), command, lambda event: bool(event.spec == body.spec)
    )


def delete_volume(at: VerbContext, body: DeleteVolumeRequest) -> PreparedVerb:
    """Have a volume deleted that nothing uses. Raises CommandInvalid."""
    command = RemoveVolume(request_id=at.request_id, volume_id=body.volume_id, force=body.force)
    if not raise_refusal(decide_removal(at.state, command), "volume_id"):
        return PreparedVerb(at.verdict())
    return PreparedVerb(
        at.verdict(),
        command,
        lambda event: bool(event.volume_id == body.volume_id),
        effect=VolumeDeleted if body.force else VolumeDeleting,
    )


#: by the name of the row in shared/protocol/operator_verbs.py.
VOLUME_VERBS: dict[str, Callable[[VerbContext, Any], PreparedVerb]] = {
    "volume.create": create_volume,
    "volume.delete": delete_volume,
}
