"""The walls of the bus under attack; numbers are those of the attack table (31, 32, 33, 35)."""

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from shared.bus.connection.nats_client import BusClient, Login, header_block, status
from shared.bus.jetstream import streams
from shared.bus.jetstream.sender_proof import NOT_MARKED, mark_of
from shared.bus.log.stored_records import NOT_APPENDED_PREFIX, as_record, read_batch, read_one
from shared.bus.server import accounts
from shared.bus.server.nats_server import NatsServer, ServerSettings
from shared.core.runtime.chain import Chain, seal
from shared.core.runtime.messages import Listen, Message, Open, Work
from shared.errors import BusUnavailable, ConfigInvalid, LogDamaged
from shared.protocol import subjects
from tests.bounds import WAIT_S
from tests.bus.toys import Bus, Toy, append, run, until

pytestmark = pytest.mark.bus

TX = subjects.log(1, "tx")


async def state_of_all(admin: BusClient) -> dict[str, tuple[int, int]]:
    """(first, last) seq of every stream."""
    found = {}
    for name in ("LOG_1", "JOBS", *(one.name for one in streams.ENSURED)):
        info = await streams.info(admin, name)
        found[name] = (info.state.first_seq, info.state.last_seq) if info else (-1, -1)
    return found


async def settled(*clients: BusClient) -> None:
    """Wait until the server has handled everything that was sent."""
    for client in clients:
        await client.flush()


def public(bus: Bus) -> Login:
    """A client that has the URL with user and password inside, as bash has it."""
    return Login(url=bus.server.client_url)


def test_a_node_speaks_only_for_itself(bus: Bus) -> None:
    """31: n1 cannot report, heartbeat or write a projection as n2; its own report and heartbeat arrive."""

    async def story() -> None:
        await bus.bootstrap()
        errors: list[str] = []
        async with bus.client() as admin, bus.client(bus.node_login("n1"), errors) as n1:
            heard: list[bytes] = []
            await admin.listen(">", lambda subject, *_: heard.append(subject))
            await settled(admin)
            before = await state_of_all(admin)
            heard.clear()
            stolen = (
                *(subjects.report("n2"), subjects.heartbeat("n2"), subjects.usage("n2")),
                *(subjects.node("n2"), subjects.shipped_logs("n2", "a", "t")),
            )
            commands = [subjects.command(kind) for kind in subjects.COMMAND_KINDS]
            views = (subjects.view_job("j"), subjects.view_service("web"))
            for subject in (*stolen, *commands, TX, subjects.leases("w"), *views):
                n1.send(subject, b"forged")
            await settled(n1)
            n1.send(subjects.heartbeat("n1"), b"alive")
            await until(lambda: subjects.heartbeat("n1").encode() in heard)
            foreign = [name for name in heard if not name.startswith((b"hb.n1", b"$JS", b"_"))]
            assert foreign == []
            assert await state_of_all(admin) == before
            assert len(errors) == len(stolen) + len(commands) + len(views) + 2

    run(story())


@pytest.mark.parametrize("who", ["public", "node"])
def test_a_reply_subject_reaches_no_stream(bus: Bus, who: str) -> None:
    """32: an answer that is asked for on `log.1.tx`, `cmd.job` or `node.n2` is stored in no stream of CORE."""

    async def story() -> None:
        await bus.bootstrap()
        login = public(bus) if who == "public" else bus.node_login("n1")
        async with bus.client() as admin, bus.client(login) as thief:
            await admin.request_raw(subjects.node("n1"), b"projection")
            await admin.request_raw(subjects.view_service("web"), b"instances")
            await admin.request_raw(TX, b"fact")
            before = await state_of_all(admin)
            traps = [TX, subjects.command("job"), subjects.node("n2"), "$KV.LEADER.plan_applier"]
            asks = [subjects.jobs("submit"), subjects.js_direct_get("NODE", subjects.node("n1"))]
            asks += [subjects.heartbeat("n1"), subjects.js_direct_get("LOG_1")]
            asks += [subjects.js_direct_get("VIEW", subjects.view_service("web"))]
            for trap in traps:
                for ask in asks:
                    thief.send(ask, b'{"seq":1,"batch":1}', trap.encode())
            await settled(thief, admin)
            if who == "public":
                while (await state_of_all(admin))["JOBS"] != (1, len(traps)):
                    await settled(admin)
            # Behind whatever came before it, each trapped stream takes exactly one more.
            for trap in traps:
                await admin.request_raw(trap, b"barrier")
            after = await state_of_all(admin)
        for name in ("LOG_1", "CMD", "NODE", "KV_LEADER"):
            assert after[name][1] == before[name][1] + 1, name

    run(story())


@pytest.mark.parametrize("way", ["direct get", "pull", "decoy"])
def test_what_a_stolen_role_smuggles_is_foreign(bus: Bus, way: str) -> None:
    """32: the server answers into the log for a role, with any text; no reader takes that for a record of ours."""

    async def story() -> None:
        await bus.bootstrap()
        forged = b'{"kind":"tx","forged":true}'
        async with (
            bus.client() as admin,
            bus.client("view") as view,
            bus.client("intake") as intake,
        ):
            await append(admin, b"fact", msg_id="1")
            if way == "direct get":
                await view.request_raw(subjects.view_job("j"), forged)
                ask = subjects.js_direct_get("VIEW", subjects.view_job("j"))
                view.send(ask, b"", TX.encode())
            else:
                await _stored_in_jobs(bus, forged, decoy=way == "decoy")
                body = b'{"stream_name":"JOBS","config":{"name":"c","ack_policy":"none"}}'
                await intake.ask(subjects.js_consumer_create("JOBS", "c"), body)
                intake.send(subjects.js_consumer_next("JOBS", "c"), b'{"batch":1}', TX.encode())
            while (await state_of_all(admin))["LOG_1"] != (1, 2):
                await settled(view, intake, admin)
            read = [one.data for one in await read_batch(admin, "LOG_1", 1)]
            one = await read_one(admin, "LOG_1", 2)
        assert read == [b"fact", NOT_APPENDED_PREFIX + forged]
        assert one is not None
        assert one.data == NOT_APPENDED_PREFIX + forged

    run(story())


def test_what_a_stolen_role_smuggles_into_cmd_and_node_is_refused(bus: Bus) -> None:
    """32: view's login has its own text copied as a plan, a lease and an order; each reader misses the mark."""

    async def story() -> None:
        await bus.bootstrap()
        plan = Work(name="plan", stream="CMD", subject="cmd.plan", durable="applier_plan")
        lease = Work(name="lease", stream="EVAL", subject="eval.w", durable="worker_w")
        applier, worker, agent = Toy(plan), Toy(lease), Toy(Listen("projection", "node.n1"))
        settings = bus.node_settings("n1")
        async with (
            bus.shell(applier) as writing,
            bus.shell(worker, "scheduler") as working,
            bus.shell(agent, settings) as minding,
            bus.client("view") as stolen,
            bus.client() as admin,
        ):
            applier.play(writing, Open("plan"))
            worker.play(working, Open("lease"))
            await until(lambda: writing.is_ready and working.is_ready and minding.is_ready)
            await stolen.request_raw(subjects.view_job("j"), b"forged")
            copied = subjects.js_direct_get("VIEW", subjects.view_job("j"))
            roles = {"cmd.plan": applier, "eval.w": worker, "node.n1": agent}

            def has_copied(reader: Toy, trap: str) -> bool:
                """Ask again until the copy is read: a direct get is not answered before the server serves it."""
                if b"forged" in reader.datas():
                    return True
                stolen.send(copied, b"", trap.encode())
                return False

            for trap, reader in roles.items():
                await until(partial(has_copied, reader, trap), trap)
                await admin.request_raw(trap, b"ours", headers=mark_of(trap))
                await until(lambda reader=reader: b"ours" in reader.datas(), trap)
                faults = {one.data: one.fault for one in reader.of(Message)}
                assert faults == {b"forged": NOT_MARKED, b"ours": ""}, trap

    run(story())


async def _stored_in_jobs(bus: Bus, forged: bytes, *, decoy: bool) -> None:
    """Store a text in JOBS; with `decoy` under a header that the server may overlook."""
    mark = "Nats-Expected-Stream: LOG_1"
    plain = b"NATS/1.0\r\n\r\n"
    hidden = f"NATS/1.0\r\nNats-Msg-Id: x{mark}\r\n{mark}\r\n\r\n".encode()
    async with bus.client(public(bus)) as anyone:
        body = (
            await anyone.request_raw(
                subjects.jobs("submit"), forged, headers=hidden if decoy else plain
            )
        )[1]
        if decoy and b"error" in body:
            # This server does not overlook it: then there is nothing to smuggle but the plain text.
            await anyone.request_raw(subjects.jobs("submit"), forged, headers=plain)


def test_no_other_stream_takes_what_expects_the_log(bus: Bus) -> None:
    """The mark of a record cannot be stored elsewhere: every other stream refuses a message that expects the log."""

    async def story() -> None:
        await bus.bootstrap()
        names = {one.name: one.subjects[0] for one in (streams.JOBS, *streams.ENSURED)}
        headers = header_block(nats_msg_id="1", nats_expected_stream="LOG_1")
        async with bus.client() as admin:
            await admin.listen(subjects.command("job"), lambda *_: None)
            for name, subject in sorted(names.items()):
                concrete = subject.replace("*", "x").replace(">", "x")
                _, body = await admin.request_raw(concrete, b"forged", headers=headers)
                assert b"expected stream does not match" in body, (name, body)

    run(story())


@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        (header_block(nats_msg_id="1-a", nats_expected_stream="LOG_1"), True),
        (header_block(nats_msg_id="1-a", nats_expected_stream="LOG_1") + b"Nats-Seq", True),
        (header_block(nats_msg_id="1-a", nats_expected_stream="LOG_2"), False),
        (header_block(nats_msg_id="1-a", nats_expected_stream="LOG_11"), False),
        (header_block(nats_expected_stream="LOG_1"), False),
        (header_block(nats_msg_id="xNats-Expected-Stream:", nats_expected_stream="LOG_1"), False),
        (header_block(x="1", nats_msg_id="1-a", nats_expected_stream="LOG_1"), False),
        (b"", False),
    ],
)
def test_the_mark_of_a_record(headers: bytes, is_ours: bool) -> None:  # noqa: FBT001
    """A record is ours by the header that its one writer puts second, and by nothing that resembles it."""
    record = as_record("LOG_1", 1, subject=TX, headers=headers, data=b"fact")
    assert (record.data == b"fact") is is_ours


def test_a_body_parted_at_another_place_is_damage() -> None:
    """The length of the headers was damaged: by its message id it is a record, so it is not skipped as foreign."""
    data, digest = seal(Chain().draft("lease", 1))
    headers = header_block(nats_msg_id=f"1-{digest}", nats_expected_stream="LOG_1")
    whole = as_record("LOG_1", 1, subject=TX, headers=headers, data=data)
    assert whole.data == data
    parted = as_record("LOG_1", 1, subject=TX, headers=headers + data[:16], data=data[16:])
    with pytest.raises(LogDamaged, match="its headers are those of a record"):
        Chain().accept(1, TX, parted.data)
    other = as_record("LOG_1", 2, subject=TX, headers=headers, data=data[16:])
    assert Chain().decode(2, TX, other.data) is None


def test_a_node_reads_only_its_own_projection(bus: Bus) -> None:
    """33: n1 gets its own projection, live and by direct get, and no other, by no way of asking."""

    async def story() -> None:
        await bus.bootstrap()
        errors: list[str] = []
        async with bus.client() as admin, bus.client(bus.node_login("n1"), errors) as n1:
            heard: list[tuple[bytes, bytes]] = []

            def on_message(subject: bytes, _reply: bytes, _headers: bytes, data: bytes) -> None:
                heard.append((subject, data))

            for subject in (
                subjects.node("n1"),
                subjects.node("n2"),
                subjects.NODES,
                ">",
                "_INBOX.>",
            ):
                await n1.listen(subject, on_message)
            await settled(n1)
            await admin.request_raw(subjects.node("n2"), b"secret")
            await admin.request_raw(subjects.node("n1"), b"mine")
            await until(lambda: heard)
            own = subjects.js_direct_get("NODE", subjects.node("n1"))
            smuggled = msgspec.json.encode({"last_by_subj": subjects.node("n2")})
            assert (await n1.request_raw(own, b""))[1] == b"mine"
            assert (await n1.request_raw(own, smuggled))[1] in (b"mine", b"")
            for ask in (
                subjects.js_direct_get("NODE", subjects.node("n2")),
                subjects.js_direct_get("NODE"),
                subjects.js_direct_get("LOG_1"),
                subjects.js_message_get("NODE"),
                subjects.js_consumer_create("NODE", "x"),
                subjects.js_stream_info("NODE"),
            ):
                with pytest.raises(BusUnavailable):
                    await n1.request_raw(ask, smuggled, timeout_s=0.3)
            await settled(n1, admin)
        assert {data for _, data in heard} == {b"mine"}
        assert len(errors) == 4 + 6

    run(story())


@pytest.mark.parametrize("who", ["node", "fleet"])
def test_a_node_reads_services_and_revisions_and_nothing_else_of_the_view(
    bus: Bus, who: str
) -> None:
    """33: services, their names and revisions of variables; no job, node or verdict, by no way of asking."""

    async def story() -> None:
        await bus.bootstrap()
        errors: list[str] = []
        login = bus.node_login("n1") if who == "node" else bus.login("fleet")
        open_ = {subjects.view_service("web"): b"web", subjects.VIEW_SERVICE_NAMES: b"names"}
        open_[subjects.view_variable("nomad/jobs/web")] = b"revision"
        closed = [subjects.view_job("j"), subjects.view_node("n2"), subjects.view_submission("s")]
        async with bus.client() as admin, bus.client(login, errors) as node:
            heard: list[bytes] = []
            traps = [*closed, subjects.VIEWS, "view.*", "view.*.web", "view.job.*", "_INBOX.>"]
            for subject in (*traps, *open_):
                await node.listen(subject, lambda _s, _r, _h, data: heard.append(data))
            await settled(node)
            for subject in closed:
                await admin.request_raw(subject, b"secret")
            for subject, value in open_.items():
                await admin.request_raw(subject, value)
            await until(lambda: len(heard) == len(open_))
            bodies = [b"", *map(msgspec.json.encode, smuggled_asks(closed[0]))]
            for subject, value in open_.items():
                ask = subjects.js_direct_get("VIEW", subject)
                found = [(await node.request_raw(ask, body))[1] for body in bodies]
                assert found[0] == value
                assert set(found) <= {value, b""}, subject
            asks = [subjects.js_direct_get("VIEW", subject) for subject in closed]
            asks += [subjects.js_direct_get("VIEW"), subjects.js_direct_get("VIEW", subjects.VIEWS)]
            asks += [subjects.js_message_get("VIEW"), subjects.js_consumer_create("VIEW", "x")]
            for ask in (*asks, subjects.js_stream_info("VIEW"), subjects.query("service")):
                node.send(ask, bodies[1], b"_INBOX.other.1")
            await settled(node, admin)
        assert sorted(heard) == [b"names", b"revision", b"web"]
        assert len(errors) == len(traps) + len(asks) + 2

    run(story())


def smuggled_asks(subject: str) -> list[dict[str, object]]:
    """Bodies of a direct get that name another subject than the one that is asked."""
    return [
        {"last_by_subj": subject},
        {"multi_last": [subject]},
        {"seq": 1},
        {"seq": 1, "next_by_subj": subject},
        {"batch": 9, "seq": 1, "next_by_subj": subject},
    ]


@pytest.mark.parametrize("who", ["public", "node", *accounts.ROLES])
def test_nobody_drops_what_happened(bus: Bus, who: str) -> None:
    """35: no user but admin deletes, purges, empties or changes a stream; the applier neither."""

    async def story() -> None:
        await bus.bootstrap()
        logins = {"public": public(bus), "node": bus.node_login("n1")}
        async with bus.client() as admin, bus.client(logins.get(who) or bus.login(who)) as thief:
            for number in range(3):
                await admin.request_raw(TX, b"%d" % number)
                await admin.request_raw(subjects.jobs("submit"), b"{}")
            before = await state_of_all(admin)
            config = msgspec.json.encode(streams.log_config(1, 1))
            names = ("LOG_1", "JOBS", "CMD", "KV_LEADER")
            for name in names:
                for verb in ("DELETE", "UPDATE", "RESTORE", "SNAPSHOT", "MSG.DELETE", "PURGE"):
                    allowed = (name, verb) in {("KV_LEADER", "MSG.DELETE"), ("JOBS", "PURGE")}
                    if not allowed or who in ("public", "node"):
                        body = config if verb == "UPDATE" else b'{"seq":2}'
                        thief.send(f"$JS.API.STREAM.{verb}.{name}", body)
            if who != "plan_applier":
                thief.send(TX, b"forged")
            await settled(thief, admin)
            assert await state_of_all(admin) == before

    run(story())


def test_the_public_may_ask_read_and_submit(bus: Bus) -> None:
    """A client of PUBLIC submits, asks, reads the log and follows projections."""

    async def story() -> None:
        await bus.bootstrap()
        async with bus.client(public(bus)) as anyone, bus.client("view") as view:
            _, ack = await anyone.request_raw(subjects.jobs("submit"), b"{}")
            assert msgspec.json.decode(ack) == {"stream": "JOBS", "seq": 1}
            async with bus.client("plan_applier") as applier:
                await append(applier, b"fact", msg_id="1")
            assert [one.data for one in await read_batch(anyone, "LOG_1", 1)] == [b"fact"]
            job = subjects.view_job("a/b c")
            heard: list[bytes] = []
            await anyone.listen(subjects.VIEWS, lambda _s, _r, _h, data: heard.append(data))
            await settled(anyone)
            await view.request_raw(job, b"seen")
            await until(lambda: heard == [b"seen"])
            headers, body = await anyone.request_raw(subjects.js_direct_get("VIEW", job), b"")
            assert (status(headers), body) == (0, b"seen")

    run(story())


def test_no_client_enters_without_a_password(bus: Bus) -> None:
    """A process of the machine that has no login is refused, on loopback as anywhere."""

    async def story() -> None:
        with pytest.raises(BusUnavailable, match="Authorization Violation"):
            async with bus.client(Login(url=bus.server.url)):
                pass

    run(story())


def test_a_client_hears_its_own_answers_only(bus: Bus) -> None:
    """Two users of PUBLIC: no way of listening shows one what the other was answered; requests of both are answered."""

    async def story() -> None:
        await bus.bootstrap()
        grown = bus.credentials.with_client("ci")
        await asyncio.to_thread(bus.server.reload, grown)
        errors: list[str] = []
        ci_login = Login(url=bus.server.url, user="ci", password=grown.clients["ci"])
        async with _once_there(bus, ci_login) as ci, bus.client(public(bus), errors) as other:
            heard: list[bytes] = []
            traps = ("_INBOX.>", "_INBOX.ci.>", "_INBOX.*.*", "_R_.>", ">", "*.>")
            for subject in traps:
                await other.listen(subject, lambda _s, _r, _h, data: heard.append(data))
            await settled(other)
            async with bus.client("view") as view:
                await view.listen("query.*", lambda _s, r, _h, _d: view.send(r.decode(), b"secret"))
                await settled(view)
                for asker in (ci, other):
                    assert (await asker.request_raw(subjects.query("jobs"), b"{}"))[1] == b"secret"
            await settled(ci, other)
        assert heard == []
        assert len(errors) == len(traps)

    run(story())


@asynccontextmanager
async def _once_there(bus: Bus, login: Login) -> AsyncIterator[BusClient]:
    """Connect as a user that the server takes over at this moment."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                async with bus.client(login) as client:
                    await client.flush()
                    break
            except BusUnavailable:
                await asyncio.sleep(0.02)
    async with bus.client(login) as client:
        yield client


def test_a_node_asks_under_its_own_name(bus: Bus) -> None:
    """n1's question reaches view; one without a node, or as n2, does not, and view's answer goes to n1 alone."""

    async def story() -> None:
        await bus.bootstrap()
        async with (
            bus.client("view") as view,
            bus.client(bus.node_login("n1")) as n1,
            bus.client(bus.node_login("n2")) as n2,
        ):
            asked, overheard = [], []

            def answer(subject: bytes, reply: bytes, _headers: bytes, _data: bytes) -> None:
                asked.append(subject.decode())
                view.send(reply.decode(), b"spec")

            await view.listen(subjects.NODE_QUERIES, answer)
            await view.listen(subjects.QUERIES, answer)
            for trap in ("_INBOX.>", "_INBOX.node-n1.>", "_R_.>"):
                await n2.listen(trap, lambda _s, _r, _h, data: overheard.append(data))
            await settled(view, n2)
            assert (await n1.request_raw(subjects.node_query("n1"), b"{}"))[1] == b"spec"
            for other in (subjects.node_query("n2"), subjects.query("job_version"), "query.job"):
                with pytest.raises(BusUnavailable):
                    await n1.request_raw(other, b"{}", timeout_s=0.3)
            await settled(n2)
        assert asked == [subjects.node_query("n1")]
        assert overheard == []

    run(story())


def test_clients_cannot_use_up_the_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit of PUBLIC a client is refused; roles and agents connect as before."""
    monkeypatch.setattr(accounts, "PUBLIC_CONNECTIONS_MAX", 3)
    credentials = accounts.new_credentials(("n1",))
    server = NatsServer(ServerSettings(data_dir=tmp_path / "bus"), credentials)
    server.start()
    bus = Bus(server, credentials)

    async def story() -> None:
        async with AsyncExitStack() as held:
            for _ in range(3):
                await held.enter_async_context(bus.client(public(bus)))
            with pytest.raises(BusUnavailable, match=r"(?i)maximum account active connections"):
                async with bus.client(public(bus)):
                    pass
            for login in (bus.login("view"), bus.node_login("n1")):
                async with bus.client(login) as other:
                    await other.flush()

    try:
        run(story())
    finally:
        server.stop()


def test_a_wrong_password_is_told(bus: Bus) -> None:
    """A wrong password is refused at once, not retried until a timeout."""

    async def story() -> None:
        login = Login(url=bus.server.url, user="view", password="guessed")
        with pytest.raises(BusUnavailable, match="Authorization Violation"):
            async with bus.client(login):
                pass

    run(story())


def test_a_node_joins_a_running_bus(bus: Bus) -> None:
    """A new node's user works after a reload; clients that are connected stay."""

    async def story() -> None:
        await bus.bootstrap()
        async with bus.client("view") as view:
            grown = bus.credentials.with_node("rack/7")
            await asyncio.to_thread(bus.server.reload, grown)
            bus.credentials = grown
            async with _once_there(bus, bus.node_login("rack/7")) as node:
                await node.flush()
            assert view.is_connected
            assert view.stats["reconnects"] == 0

    run(story())


def test_credentials_are_kept_from_others(tmp_path: Path) -> None:
    """The credentials file is readable by its owner only, comes back as written, and a broken one is named."""
    path = tmp_path / "credentials.json"
    made = accounts.new_credentials(("n1",))
    accounts.write_credentials(path, made)
    accounts.write_credentials(path, made)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert accounts.read_credentials(path) == made
    assert len(set(made.users.values())) == len(made.users)
    path.write_text("{")
    with pytest.raises(ConfigInvalid, match=r"credentials\.json"):
        accounts.read_credentials(path)
