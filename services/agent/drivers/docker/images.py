"""Images of the engine: present, pulled, or refused with a reason.

Decides when an image is pulled, how often it is tried, and that many tasks of one image pull it once. After a failure
the next attempt of any task waits, longer each time, so that a registry that is away is not flooded.
"""

import asyncio
from collections.abc import Callable

import docker
import docker.auth
import docker.errors
import docker.utils
import msgspec

from services.agent.backoff import Backoff
from services.agent.drivers.docker.engine import DockerEngine, EngineRefused, EngineUnavailable
from services.agent.drivers.docker.settings import PREFIX, DockerSettings
from services.agent.drivers.driver import StartRefused

#: Pauses and number of attempts of one pull.
RETRY_FIRST_S, RETRY_MAX_S, TRIES = 1.0, 30.0, 3
#: A pull is given up permanently.
PULL_S = 3600.0
#: Errors that a retry does not fix.
_FINAL = ("not found", "does not exist", "access denied", "unauthorized", "invalid reference")


class _Failure(msgspec.Struct):
    reason: str
    count: int
    #: on the loop's clock.
    next_s: float


class ImageStore:
    """The images of one engine."""

    def __init__(self, engine: DockerEngine, settings: DockerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, _Failure] = {}

    async def ensure(
        self,
        image: str,
        *,
        force: bool,
        timeout_s: float,
        soft_auth: bool,
        tell: Callable[[str], None],
    ) -> None:
        """Make sure that an image is there. Raises StartRefused with the reason, or EngineUnavailable."""
        if not force and await self._is_there(image):
            return
        if not self._settings.allow_pull:
            if force and await self._is_there(image):
                return
            text = f"image {image!r} is not present and pulling is disabled on this node ({PREFIX}ALLOW_PULL)"
            raise StartRefused(text, recoverable=False)
        self._check_pause(image)
        pull = self._pulls.get(image)
        if pull is None:
            tell(f"Downloading image {image}")
            work = self._pull(image, soft_auth=soft_auth)
            pull = asyncio.get_running_loop().create_task(work, name=f"pull {image}")
            self._pulls[image] = pull
            pull.add_done_callback(lambda _: self._pulls.pop(image, None))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(pull)
        except TimeoutError as err:
            text = f"image {image!r} pull did not finish within {timeout_s:g} s"
            raise StartRefused(text, recoverable=True) from err

    async def _is_there(self, image: str) -> bool:
        try:
            await self._engine.call(docker.APIClient.inspect_image, image)
        except EngineRefused as err:
            if err.status == 404:
                return False
            raise StartRefused(f"image {image!r}: {err}", recoverable=False) from err
        return True

    def _check_pause(self, image: str) -> None:
        failed = self._failures.get(image)
        wait_s = failed.next_s - asyncio.get_running_loop().time() if failed else 0
        if failed is not None and wait_s > 0 and image not in self._pulls:
            text = f"image {image!r} pull failed: {failed.reason}"
            raise StartRefused(f"{text} (next attempt in {wait_s:.0f} s)", recoverable=True)

    async def _pull(self, image: str, *, soft_auth: bool) -> None:
        pause = Backoff(RETRY_FIRST_S, RETRY_MAX_S)
        for number in range(1, TRIES + 1):
            try:
                await self._engine.slow_call(
                    PULL_S, _pull_once, image, auth_file=self._settings.auth_file, soft=soft_auth
                )
            except (EngineRefused, EngineUnavailable) as err:
                reason = str(err)
            else:
                self._failures.pop(image, None)
                return
            final = any(word in reason.lower() for word in _FINAL)
            if final or number == TRIES:
                raise self._failed(image, reason, final=final)
            await asyncio.sleep(pause.take())

    def _failed(self, image: str, reason: str, *, final: bool) -> StartRefused:
        now_s = asyncio.get_running_loop().time()
        before = self._failures.get(image)
        count = before.count + 1 if before is not None else 1
        pause_s = min(RETRY_FIRST_S * 2**count, 300.0)
        self._failures[image] = _Failure(reason, count, now_s + pause_s)
        if len(self._failures) > 1000:
            self._failures.pop(next(iter(self._failures)))
        return StartRefused(f"image {image!r} pull failed: {reason}", recoverable=not final)


def _pull_once(api: docker.APIClient, image: str, *, auth_file: str, soft: bool) -> None:
    """Pull; credentials are those of the operator's file alone."""
    name, tag = docker.utils.parse_repository_tag(image)
    registry = docker.auth.resolve_repository_name(name)[0]
    found = docker.auth.load_config(auth_file) if auth_file else None
    given = (found.resolve_authconfig(registry) if found is not None else None) or {}
    try:
        _pull_as(api, name, tag or "latest", given)
    except docker.errors.DockerException:
        if not (soft and given):
            raise
        _pull_as(api, name, tag or "latest", {})


def _pull_as(api: docker.APIClient, name: str, tag: str, credentials: dict[str, str]) -> None:
    # An empty dict: no credentials, and not those in the agent's home either.
    lines = api.pull(name, tag=tag, stream=True, decode=True, auth_config=credentials)
    for line in lines:
        if "error" in line:
            raise docker.errors.APIError(str(line["error"]))
