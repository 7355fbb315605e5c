"""What a node knows of services: read once, woken by changes, healed where a message was lost, kept without the bus."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec
import pytest

from schemas.projections import (
    ServiceInstance,
    ServiceNamesProjection,
    ServiceProjection,
    ServiceTags,
)
from services.agent.inputs.templates import followed_values
from services.agent.inputs.templates.followed_values import (
    LINGER_S,
    READS_MAX,
    SILENCE_S,
    DataUnusable,
)
from services.agent.inputs.templates.render_order import CHECKED
from services.agent.inputs.templates.service_directory import ALL, ServiceDirectory, ServiceSource
from shared.bus.connection.nats_client import BusClient
from shared.gotemplate.data import NamedInstance, ServiceName
from shared.protocol import subjects
from tests.fixed_services import FixedServices

_GET = f"{subjects.js_direct_get('VIEW')}."
NAMES = subjects.VIEW_SERVICE_NAMES


def value(name: str, *ports: int, seq: int = 1, total: int = 0, **other: Any) -> bytes:
    """A service with an instance at each port."""
    instances = tuple(
        ServiceInstance(
            service=name, address="10.0.0.1", port=port, job="j", group="g", alloc=f"a{port}"
        )
        for port in ports
    )
    one = ServiceProjection(
        cluster_id="c1", seq=seq, service=name, instances=instances, total=total or len(ports)
    )
    return msgspec.json.encode(msgspec.structs.replace(one, **other))


def listed(*names: str, seq: int = 1, total: int = 0) -> bytes:
    """The list of names."""
    services = tuple(ServiceTags(name=name, tags=("t",)) for name in names)
    return msgspec.json.encode(
        ServiceNamesProjection(
            cluster_id="c1", seq=seq, services=services, total=total or len(names)
        )
    )


class World:
    """A directory, its time, and the bus: last values that stand, and who listens."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.directory = ServiceDirectory(lambda: self.now_s)
        self.stands: dict[str, bytes] = {}
        self.connects()

    # ---- what the directory uses ----

    async def listen(self, subject: str, handler: Callable[..., None]) -> int:
        self.listeners[len(self.listeners) + 1] = (subject, handler)
        return len(self.listeners)

    def forget(self, number: int) -> None:
        self.forgotten.append(self.listeners[number][0])
        self.listeners[number] = ("", self.listeners[number][1])

    def call(
        self,
        subject: str,
        _data: bytes,
        done: Callable[[bytes, bytes | None], None],
        *,
        timeout_s: float,
    ) -> bool:
        assert timeout_s > 0
        self.asked.append((subject.removeprefix(_GET), done))
        return True

    # ---- what a test does ----

    def connects(self) -> None:
        """Another client, as after the first was closed for good."""
        self.is_connected = True
        self.stats = {"reconnects": 0}
        self.listeners: dict[int, tuple[str, Callable[..., None]]] = {}
        self.forgotten: list[str] = []
        self.asked: list[tuple[str, Callable[[bytes, bytes | None], None]]] = []
        self.client = cast("BusClient", _Client(self))

    def answer(self) -> list[str]:
        """Answer what was asked; returns its subjects."""
        asked, self.asked = self.asked, []
        for subject, done in asked:
            found = self.stands.get(subject)
            head = b"NATS/1.0 404 Message Not Found\r\n\r\n"
            if found is not None:
                head = b"NATS/1.0\r\nNats-Sequence: 7\r\n\r\n"
            done(head, found or b"")
        return [subject for subject, _ in asked]

    def lose(self) -> None:
        """No answer comes."""
        asked, self.asked = self.asked, []
        for _, done in asked:
            done(b"", None)

    def push(self, subject: str, data: bytes) -> None:
        for at, handler in self.listeners.values():
            if at == subject:
                handler(subject.encode(), b"", b"", data)

    async def look(self) -> list[str]:
        """One look, and the answers to what it asked, until nothing more is asked. Returns what was."""
        asked: list[str] = []
        for _ in range(5):
            await asyncio.sleep(0)
            await self.directory.look(self.client)
            asked += self.answer()
        for _ in range(5):
            await asyncio.sleep(0)
        return asked


class _Client:
    """The part of a connection that the directory uses."""

    def __init__(self, world: World) -> None:
        self.listen, self.call, self.forget = world.listen, world.call, world.forget
        self._world = world

    @property
    def is_connected(self) -> bool:
        return self._world.is_connected

    @property
    def stats(self) -> dict[str, int]:
        return self._world.stats


def play(story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def told() -> None:
        await story(World())

    asyncio.run(told())


async def ports(world: World, name: str = "web") -> tuple[int, ...]:
    """The ports of a service that is known."""
    return tuple(one.port for one in (await world.directory.service(name)).instances)


def waiting(world: World, **seen: int) -> asyncio.Task[None]:
    """A question that waits for a change."""
    return asyncio.ensure_future(world.directory.changed(seen))


def asking(world: World, *names: str) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(world.directory.service(name)) for name in names]


async def known(world: World, *names: str) -> dict[str, int]:
    """Versions of services that stand, once they were read."""
    tasks = asking(world, *names)
    await world.look()
    return dict(zip(names, [(await one).version for one in tasks], strict=True))


def test_a_service_is_subscribed_before_it_is_read() -> None:
    """Only what was asked for is read, once for all who ask, with all that templates show."""

    async def story(world: World) -> None:
        world.stands[subjects.view_service("web")] = value("web", 80, 81)
        first, second = asking(world, "web", "web")
        assert await world.look() == ["view.service.web"]
        assert [one for one, _ in world.listeners.values()] == ["view.service.web"]
        found = await first
        assert found == await second
        one = found.instances[0]
        assert (one.id, one.name, one.address, one.port) == (
            "_nomad-group-a80-web-80",
            "web",
            "10.0.0.1",
            80,
        )
        assert (one.job_id, one.alloc_id, found.version > 0) == ("j", "a80", True)

    play(story)


def test_one_message_wakes_all_waiting_tasks_and_equal_content_none() -> None:
    """A version is another one for other instances alone; the order of the value is kept."""

    async def story(world: World) -> None:
        world.stands[subjects.view_service("web")] = value("web", 81, 80)
        seen = await known(world, "web")
        tasks = [waiting(world, **seen) for _ in range(1_000)]
        await asyncio.sleep(0)
        flipped = msgspec.json.decode(value("web", 81, 80, seq=2))
        for one in flipped["instances"]:
            one |= {"status": "critical", "health": "unhealthy", "version": 7, "meta": {"a": "b"}}
        world.push(subjects.view_service("web"), msgspec.json.encode(flipped))
        await asyncio.sleep(0)
        assert not any(one.done() for one in tasks)
        world.push(subjects.view_service("web"), value("web", 81, 80, 82, seq=3))
        await asyncio.gather(*tasks)
        assert await ports(world) == (81, 80, 82)
        assert (await world.directory.service("web")).version > seen["web"]

    play(story)


def test_a_check_that_turns_is_a_change_where_checks_were_asked_for() -> None:
    """With CHECKED before its name the status is content; the same service without it is not woken."""

    async def story(world: World) -> None:
        world.stands[subjects.view_service("web")] = value("web", 80)
        plain = await known(world, "web")
        seen = await known(world, f"{CHECKED}web")
        waits, sleeps = waiting(world, **seen), waiting(world, **plain)
        flipped = msgspec.json.decode(value("web", 80, seq=2))
        flipped["instances"][0] |= {"status": "critical", "meta": {"a": "b"}}
        await asyncio.sleep(0)
        world.push(subjects.view_service("web"), msgspec.json.encode(flipped))
        await waits
        (one,) = (await world.directory.service(f"{CHECKED}web")).instances
        assert (one.status, one.meta, sleeps.done()) == ("critical", {"a": "b"}, False)
        sleeps.cancel()
        world.stands[NAMES] = listed("other", seq=3)
        assert (await known(world, f"{CHECKED}none")).keys() == {f"{CHECKED}none"}

    play(story)


def test_tags_are_seen_and_sorted() -> None:
    """Tags come in the order in which Nomad gives them; another one is another version."""

    async def story(world: World) -> None:
        def tagged(*tags: str, seq: int) -> bytes:
            one = ServiceInstance(service="web", tags=tags)
            return value("web", seq=seq, instances=(one,), total=1)

        world.stands[subjects.view_service("web")] = tagged("b", "a", seq=1)
        seen = await known(world, "web")
        waits = waiting(world, **seen)
        await asyncio.sleep(0)
        world.push(subjects.view_service("web"), tagged("a", "b", seq=2))
        assert (await world.directory.service("web")).version == seen["web"]
        world.push(subjects.view_service("web"), tagged("c", "a", seq=3))
        await waits
        assert (await world.directory.service("web")).instances[0].tags == ("a", "c")

    play(story)


def test_an_older_value_changes_nothing() -> None:
    """An answer that was under way while a newer value was published; a later incarnation or cluster counts."""

    async def story(world: World) -> None:
        subject = subjects.view_service("web")
        world.stands[subject] = value("web", 80, seq=5)
        seen = await known(world, "web")
        world.push(subject, value("web", 1, seq=4))
        world.push(subject, value("web", 2, seq=5))
        assert (await world.directory.service("web")).version == seen["web"]
        world.push(subject, value("web", 3, seq=2, incarnation=1))
        assert await ports(world) == (3,)
        world.push(subject, value("web", 4, seq=1, cluster_id="c2"))
        assert await ports(world) == (4,)

    play(story)


def test_what_cannot_be_read_is_ignored() -> None:
    """Not JSON, of another type, of another service, nested without end: counted, and what is known stays."""

    async def story(world: World) -> None:
        subject = subjects.view_service("web")
        world.stands[subject] = value("web", 80)
        seen = await known(world, "web")
        forged = [b"", b"\xff", b"[]", b'{"service":"web"}', value("db", 1, seq=9)]
        forged += [value("web", 1, seq=9).replace(b'"port":1', b'"port":"x"'), b"[" * 100_000]
        for data in forged:
            world.push(subject, data)
        assert (await world.directory.service("web")).version == seen["web"]
        assert world.directory.ignored == len(forged)

    play(story)


@pytest.mark.parametrize("name", ["", "x" * 300, "\ud800"])
def test_a_name_that_no_service_can_have_has_no_instance(name: str) -> None:
    """It is answered without the bus, and never changes."""

    async def story(world: World) -> None:
        found = await world.directory.service(name)
        assert (found.version, found.instances) == (1, ())
        waits = waiting(world, **({name: 1} if name else {}))
        assert await world.look() == []
        waits.cancel()

    play(story)


def test_an_unknown_service_is_empty_once_the_list_of_names_says_so() -> None:
    """A bus without values may have been started again a moment ago: then it is waited for, and asked again."""

    async def story(world: World) -> None:
        (task,) = asking(world, "web")
        assert await world.look() == ["view.service.web", NAMES]
        assert not task.done()
        world.stands[NAMES] = listed("db", "web")
        world.now_s += 1
        await world.look()
        assert not task.done()
        world.stands[NAMES] = listed("db", seq=2)
        world.now_s += 1
        await world.look()
        assert (await task).instances == ()
        assert (await task).version > 0
        waits = waiting(world, web=(await task).version)
        world.push(subjects.view_service("web"), value("web", 80, seq=3))
        await waits

    play(story)


def test_a_bus_that_lost_its_values_takes_none_away() -> None:
    """After a restart of the bus what is known stays, until the view says something else."""

    async def story(world: World) -> None:
        subject = subjects.view_service("web")
        world.stands |= {subject: value("web", 80, seq=5), NAMES: listed("web", seq=5)}
        seen = await known(world, "web")
        world.stands.clear()
        world.stats["reconnects"] += 1
        assert subject in await world.look()
        assert (await world.directory.service("web")).version == seen["web"]
        # An old list does not outdate what is known.
        world.stands[NAMES] = listed(seq=4)
        world.now_s += 1
        await world.look()
        assert await ports(world) == (80,)
        world.stands[NAMES] = listed(seq=6)
        world.now_s += 1
        await world.look()
        assert await ports(world) == ()

    play(story)


def test_a_service_without_an_instance_any_more_is_told() -> None:
    """The empty value of a service that ended, and later none at all: it expires."""

    async def story(world: World) -> None:
        subject = subjects.view_service("web")
        world.stands[subject] = value("web", 80)
        seen = await known(world, "web")
        waits = waiting(world, **seen)
        await asyncio.sleep(0)
        world.push(subject, value("web", seq=2))
        await waits
        assert await ports(world) == ()
        del world.stands[subject]
        world.now_s += SILENCE_S
        assert await world.look() == [subject]

    play(story)


def test_a_lost_message_is_made_good_within_the_silence() -> None:
    """A value of which nothing is heard is read again; soon after it was read first, since a subscription spreads."""

    async def story(world: World) -> None:
        subject = subjects.view_service("web")
        world.stands[subject] = value("web", 80)
        seen = await known(world, "web")
        for seq in (2, 3):
            waits = waiting(world, **seen)
            world.stands[subject] = value("web", 80 + seq, seq=seq)
            assert await world.look() == []
            world.now_s += SILENCE_S
            assert await world.look() == [subject]
            await waits
            seen = {"web": (await world.directory.service("web")).version}

    play(story)


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_after_a_reconnect_everything_is_read_again(is_rebuilt: bool) -> None:  # noqa: FBT001
    """At once, but never more than READS_MAX at a time; another client is subscribed again."""

    async def story(world: World) -> None:
        names = [f"s{number}" for number in range(3 * READS_MAX)]
        for name in names:
            world.stands[subjects.view_service(name)] = value(name, 80)
        seen = await known(world, *names)
        waits = waiting(world, **seen)
        await asyncio.sleep(0)
        if is_rebuilt:
            world.connects()
        else:
            world.stats["reconnects"] += 1
        world.stands[subjects.view_service("s5")] = value("s5", 81, seq=2)
        await world.directory.look(world.client)
        assert len(world.asked) == READS_MAX
        asked = await world.look()
        assert sorted(asked) == sorted(map(subjects.view_service, names))
        assert len(world.listeners) == len(names)
        await waits

    play(story)


def test_what_is_known_needs_no_bus() -> None:
    """Without a connection known services are answered, others awaited; the silence has a length."""

    async def story(world: World) -> None:
        world.stands[subjects.view_service("web")] = value("web", 80)
        await known(world, "web")
        world.is_connected = False
        assert await world.look() == []
        world.now_s += 9
        assert (await ports(world), world.directory.silent_s) == ((80,), 9.0)
        (task,) = asking(world, "db")
        await world.look()
        assert not task.done()
        world.stands[subjects.view_service("db")] = value("db", 1)
        world.is_connected = True
        world.stats["reconnects"] += 1
        await world.look()
        assert (len((await task).instances), world.directory.silent_s) == (1, 0.0)

    play(story)


def test_a_read_without_an_answer_is_repeated() -> None:
    """Not at once, and without end."""

    async def story(world: World) -> None:
        world.stands[subjects.view_service("web")] = value("web", 80)
        (task,) = asking(world, "web")
        await asyncio.sleep(0)
        for _ in range(3):
            await world.directory.look(world.client)
            assert len(world.asked) == 1
            world.lose()
            await world.directory.look(world.client)
            assert world.asked == []
            world.now_s += 1
        assert world.directory.silent_s > 0
        await world.look()
        assert len((await task).instances) == 1

    play(story)


def test_what_is_not_asked_for_any_more_is_forgotten() -> None:
    """Some time after the last question, and not while one waits; then it is read anew, under another version."""

    async def story(world: World) -> None:
        for name in ("web", "db"):
            world.stands[subjects.view_service(name)] = value(name, 80)
        seen = await known(world, "web", "db")
        waits = waiting(world, web=seen["web"])
        await asyncio.sleep(0)
        world.now_s += LINGER_S
        await world.look()
        assert world.forgotten == ["view.service.db"]
        waits.cancel()
        await asyncio.sleep(0)
        world.now_s += LINGER_S
        await world.look()
        assert world.forgotten == ["view.service.db", "view.service.web"]
        again = waiting(world, web=seen["web"])
        await world.look()
        await again

    play(story)


def test_the_number_of_followed_services_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services without a waiting question make room; beyond the bound a question is refused with the reason."""
    monkeypatch.setattr(followed_values, "FOLLOWED_MAX", 2)

    async def story(world: World) -> None:
        for name in ("a", "b", "c"):
            world.stands[subjects.view_service(name)] = value(name, 80)
        seen = await known(world, "a", "b")
        waits = waiting(world, a=seen["a"])
        await asyncio.sleep(0)
        assert "c" in await known(world, "c")
        more = waiting(world, c=1)
        await more
        more = waiting(world, c=(await world.directory.service("c")).version)
        await asyncio.sleep(0)
        with pytest.raises(DataUnusable, match="more than 2 services"):
            await world.directory.service("b")
        waits.cancel()
        more.cancel()

    play(story)


def test_a_part_of_a_service_is_not_given() -> None:
    """More instances than a value holds are a fault that says so, until they are fewer."""

    async def story(world: World) -> None:
        subject = subjects.view_service("web")
        world.stands[subject] = value("web", 80, total=1_001)
        (task,) = asking(world, "web")
        await world.look()
        with pytest.raises(DataUnusable, match=r"1001 instances.* ends at 1") as caught:
            await task
        waits = waiting(world, web=caught.value.version)
        await asyncio.sleep(0)
        assert not waits.done()
        world.push(subject, value("web", 80, seq=2))
        await waits
        assert await ports(world) == (80,)

    play(story)


def test_names_are_followed_like_a_service() -> None:
    """The list of all names with their tags; an empty list is known, a cut one is a fault."""

    async def story(world: World) -> None:
        task = asyncio.ensure_future(world.directory.services())
        assert await world.look() == [NAMES]
        assert not task.done()
        world.stands[NAMES] = listed()
        world.now_s += 1
        await world.look()
        assert (await task).names == ()
        waits = waiting(world, **{ALL: (await task).version})
        await asyncio.sleep(0)
        world.push(NAMES, listed("db", "web", seq=2))
        await waits
        found = await world.directory.services()
        assert [(one.name, one.tags) for one in found.names] == [("db", ("t",)), ("web", ("t",))]
        world.push(NAMES, listed("db", seq=3, total=10_001))
        with pytest.raises(DataUnusable, match="10001 services"):
            await world.directory.services()

    play(story)


def test_a_cancelled_question_leaves_nothing_behind() -> None:
    """It holds no service: all are forgotten in time."""

    async def story(world: World) -> None:
        tasks = [waiting(world, web=1, db=1) for _ in range(3)]
        await world.look()
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        world.now_s += LINGER_S
        await world.look()
        assert sorted(world.forgotten) == ["view.service.db", "view.service.web"]

    play(story)


def test_services_in_memory_behave_alike() -> None:
    """The source for tests of templates waits for what is not set, and wakes by another version alone."""

    async def story() -> None:
        one: ServiceSource = (fixed := FixedServices(web=()))
        seen = {"web": (await one.service("web")).version, ALL: 1}
        unset, names = (
            asyncio.ensure_future(one.service("db")),
            asyncio.ensure_future(one.services()),
        )
        fixed.set("web")
        waits = asyncio.ensure_future(one.changed(seen))
        await asyncio.sleep(0)
        assert not (waits.done() or unset.done() or names.done())
        fixed.set("db")
        fixed.set_names(ServiceName("db"))
        fixed.set("web", NamedInstance(port=80))
        await waits
        assert [each.name for each in (await names).names] == ["db"]
        assert [each.port for each in (await one.service("web")).instances] == [80]
        assert (await unset).instances == ()

    asyncio.run(story())
