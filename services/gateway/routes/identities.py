"""Public keys of identities: as JSON Web Keys and for discovery of OpenID Connect, and the cluster's keys in a list.

Any service may verify a token that it is shown: the keys are public, and answered without a login from the replica.
"""

from services.gateway.change_index import table
from services.gateway.edge.call import Call
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.route import Endpoint
from services.gateway.nomad.source import Object
from shared.identity_tokens import ALGORITHM, public_jwk

JWKS_PATH = "/.well-known/jwks.json"
_TABLES = ("variables", "signing_keys")


async def read_keys(call: Call) -> object:
    """The public keys that verify, as RFC 7517 has them; of the newest first."""
    await call.wait_for_seq(0)
    found = []
    for key_id, row in reversed(call.role.state.signing_keys.by_id.items()):
        try:
            found.append(public_jwk(key_id, row.public))
        except ValueError:
            # The log took it from the keeper's user; it verifies nothing.
            continue
    return {"keys": found}


async def read_discovery(call: Call) -> object:
    """What OpenID Connect Discovery says of an issuer. Raises HttpFault 404: none is set."""
    issuer = call.server.settings.oidc_issuer.rstrip("/")
    if not issuer:
        text = "OIDC Discovery endpoint disabled: CARAVAN_GATEWAY_OIDC_ISSUER is not set"
        raise HttpFault(404, text)
    return {
        "issuer": call.server.settings.oidc_issuer,
        "jwks_uri": f"{issuer}{JWKS_PATH}",
        "id_token_signing_alg_values_supported": [ALGORITHM],
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
    }


async def list_keys(call: Call) -> object:
    """The keys that clients seal with, and those that sign identities; of each kind the newest is active."""
    await call.block(map(table, _TABLES), lambda: call.role.changes.newest(_TABLES))
    state = call.role.state
    found: list[Object] = []
    sealing = [(key_id, row.create_seq) for key_id, row in state.variables.keys.items()]
    signing = [(key_id, row.create_seq) for key_id, row in state.signing_keys.by_id.items()]
    for algorithm, keys in (("x25519", sealing), (ALGORITHM.lower(), signing)):
        for key_id, seq in reversed(keys):
            is_newest = key_id == keys[-1][0]
            found.append(
                {
                    "KeyID": key_id,
                    "Algorithm": algorithm,
                    "State": "active" if is_newest else "inactive",
                    "CreateIndex": seq,
                    "ModifyIndex": seq,
                    "CreateTime": call.role.times.at(seq),
                    "PublishTime": 0,
                }
            )
    return found


ENDPOINTS = (
    Endpoint(
        pattern=JWKS_PATH,
        summary="Public keys that verify identities of tasks, as JSON Web Keys.",
        read=read_keys,
        is_public=True,
    ),
    Endpoint(
        pattern="/.well-known/openid-configuration",
        summary="Discovery of OpenID Connect; 404 without CARAVAN_GATEWAY_OIDC_ISSUER.",
        read=read_discovery,
        is_public=True,
        is_stateless=True,
    ),
    Endpoint(
        pattern="/v1/operator/keyring/keys",
        summary="List the keys of the cluster, without private parts.",
        read=list_keys,
        note="Keys that seal variables (`x25519`) and keys that sign identities (`rs256`).",
    ),
)
