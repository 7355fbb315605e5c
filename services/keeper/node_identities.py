"""Questions of nodes for identities of tasks (`ask.<node>.identity`): signed as the version of the job asks."""

from collections.abc import Callable

import msgspec

from schemas.base import Wire
from schemas.envelope import ENCODER
from schemas.identities import IdentityAnswers, IdentityAsk, SignedIdentity
from schemas.jobs import ErrorDetail
from services.keeper.identity_claims import VAULT_BLOCK, TaskIdentities, claims_of
from services.keeper.node_questions import (
    NodeQuestion,
    NodeQuestions,
    check_count,
    check_public,
    read_ask,
    row_of_asker,
)
from services.keeper.signing_keys import SigningKeys
from services.keeper.variable_requests import ask_vault
from shared.core.runtime.keeper_messages import IdentitySigned, SignIdentity
from shared.core.runtime.messages import Message
from shared.core.runtime.replica import Replica
from shared.core.runtime.step import Step
from shared.jobspec.nomad.services import WorkloadIdentity


class NodeIdentities(NodeQuestions[SignedIdentity]):
    """Questions for identities that are with the vault. `issuer`: claim `iss`; empty: tokens have none."""

    def __init__(
        self,
        replica: Replica,
        keys: SigningKeys,
        new_token: Callable[[], int],
        *,
        issuer: str,
        vault: WorkloadIdentity = VAULT_BLOCK,
    ) -> None:
        super().__init__(new_token)
        self._replica = replica
        self._keys = keys
        self._issuer = issuer
        self._identities = TaskIdentities(vault)

    def signed(self, item: IdentitySigned, step: Step) -> None:
        """Take one token, sealed, if it is of a question."""
        self._take(
            item.token,
            step,
            whole=lambda part: msgspec.structs.replace(part, sealed=item.sealed),
        )

    def _begin(self, message: Message, question: NodeQuestion[SignedIdentity], step: Step) -> None:
        ask, state = read_ask(message, IdentityAsk), self._replica.state
        check_public(ask.public)
        check_count(len(ask.names), "identities")
        row = row_of_asker(state, message, ask.alloc_id)
        blocks = self._identities.of_task(state, row, ask.task)
        key_id = self._keys.in_force()
        for name in dict.fromkeys(ask.names):
            block = blocks.get(name)
            if block is None:
                text = f"task {ask.task!r} has no identity {name!r} in the version that it runs"
                question.parts[name] = _refused(name, "forbidden", text)
                continue
            claims = claims_of(
                state,
                row,
                task=ask.task,
                name=name,
                signed=block,
                now_ns=step.now_ns,
                issuer=self._issuer,
            )
            part = SignedIdentity(name=name, issued_s=claims["iat"], expires_s=claims.get("exp", 0))
            effect = SignIdentity(
                token=self._to_vault(question, name, part),
                key_id=key_id,
                alloc_id=ask.alloc_id,
                task=ask.task,
                name=name,
                claims=ENCODER.encode(claims),
                public=ask.public,
            )
            ask_vault(effect, step)

    def _failed(self, part: SignedIdentity, error: ErrorDetail) -> SignedIdentity:
        return SignedIdentity(name=part.name, error=error)

    def _answer(self, parts: tuple[SignedIdentity, ...], error: ErrorDetail | None) -> Wire:
        return IdentityAnswers(identities=parts, error=error)


def _refused(name: str, code: str, reason: str) -> SignedIdentity:
    return SignedIdentity(name=name, error=ErrorDetail(code=code, message=reason))
