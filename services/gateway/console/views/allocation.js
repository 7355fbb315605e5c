// One allocation: its life, its tasks, why it is where it is, its logs, and a command beside its tasks.

import { h, plain } from "../lib/dom.js";
import { Fault, canChange, currentToken, json, query, request, send } from "../lib/api.js";
import { clock, clockNs, short } from "../lib/format.js";
import { times } from "../lib/live.js";
import { address, here } from "../lib/router.js";
import { act, alloc, eventTable, fields, job, link, node, section, state, table } from "../lib/parts.js";

const EVENT_RECORDS = 1000, LOG_BYTES = 20_000, TEXT_MAX = 400_000;

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function allocation({ path, params, at }, signal) {
  const id = path[1] ?? "";
  const found = await query("alloc", { id }, at, signal);
  const one = found.allocation;
  const shown = params.get("show") ?? "overview";
  const isLive = canChange(at) && ["running", "pending"].includes(one.client_status);
  const tabs = ["overview", "why", ...(canChange(at) ? ["logs"] : []), ...(isLive ? ["exec"] : []), "events"];
  const part = { why, logs, exec, events }[/** @type {"why"} */ (shown)];
  return [
    h("h1", {}, plain(one.name)),
    h("p", {}, state(one.client_status), ` wanted: ${plain(one.desired_status)}, on `, node(one.node), ", job ", job(one.job_id), ` version ${one.version}`,
      one.canary && ", canary"),
    h("p.rollout", {}, plain(found.why)),
    isLive && one.desired_status === "run" && h("p.actions", {},
      act("Restart", `Restart the tasks of ${one.name}?`, () => request(`/v1/client/allocation/${one.id}/restart`, {}, { method: "PUT", body: JSON.stringify({ AllTasks: true }) })), " ",
      act("Stop and place again", `Stop ${one.name}? Its job gets another allocation in its place.`, () => send(`/v1/allocation/${one.id}/stop`, {}), "danger")),
    h("nav.tabs", { "aria-label": "Parts of the allocation" }, tabs.map((name) =>
      h("a", { href: address(["alloc", id], { show: name === "overview" ? "" : name }), "aria-current": name === shown ? "page" : false }, name))),
    part ? await part(one, Object.keys(found.tasks), at, signal) : overview(found, one),
  ];
}

/** @param {any} found @param {any} one */
function overview(found, one) {
  return [
    fields([["ID", one.id], ["Created at seq", [h("a", { href: address(["log"], {}, one.create_seq) }, one.create_seq), ` ${clock(times.timeOf(one.create_seq))}`]], ["Changed at seq", one.modify_seq],
      ["Health", one.health || "not tracked"], ["Health reason", one.health_reason], ["Previous allocation", one.previous && alloc(one.previous)],
      ["Deployment", one.deployment && link("deployment", one.deployment, short(one.deployment))],
      ["Ports", Object.entries(found.ports).map(([name, port]) => `${name} ${port}`).join(", ")]]),
    Object.entries(found.tasks).map(([name, task]) => taskPart(name, task)),
    Object.keys(found.tasks).length === 0 && h("p.dim", {}, "Its node has not reported on it."),
  ];
}

/** @param {string} name @param {any} task */
const taskPart = (name, task) => section(`Task ${plain(name)}`,
  h("p", {}, state(task.failed ? "failed" : task.state), task.exit_code !== null && ` exit code ${task.exit_code}`, task.signal > 0 && `, signal ${task.signal}`,
    task.restarts > 0 && `, restarted ${task.restarts} times`),
  Object.keys(task.checks).length > 0 && h("p", {}, "Checks: ", Object.entries(task.checks).map(([check, status]) => [`${plain(check)} `, state(/** @type {any} */ (status)), " "])),
  table(`Events of ${name}`, ["Time", "Event", "Message"], task.events.map((/** @type {any} */ one) => [clockNs(one.t_ns), plain(one.kind), plain(one.message)]), "no events"));

/** @param {any} one @param {string[]} _tasks @param {number} at @param {AbortSignal} signal */
async function events(one, _tasks, at, signal) {
  const found = await json("/v1/caravan/events", { job: one.job_id, from: Math.max(one.create_seq, 1), to: Math.min(one.create_seq + EVENT_RECORDS - 1, at || Infinity) === Infinity ? 0 : at, limit: EVENT_RECORDS }, { signal });
  const lines = found.lines.filter((/** @type {any} */ line) => !line.nodes.length || line.nodes.includes(one.node));
  return section("Events", h("p.dim", {}, `of its job on its node, records ${found.from} to ${found.to}`), eventTable(lines.reverse(), clock));
}

/** @param {any} one @param {string[]} _tasks @param {number} _at @param {AbortSignal} signal */
async function why(one, _tasks, _at, signal) {
  const found = await json(`/v1/caravan/why/${encodeURIComponent(one.id)}`, {}, { signal });
  const decision = found.decision;
  const names = [...new Set(found.top.flatMap((/** @type {any} */ row) => Object.keys(row.scores)))].sort();
  return [
    h("p", {}, plain(found.text)),
    fields([["Decided by", decision.worker && `${decision.worker}, plan ${decision.number}`], ["On the state of seq", decision.snapshot_seq],
      ["Nodes", `${found.nodes_considered} considered, ${found.feasible} feasible, ${found.fitting} with room`], ["Policy", short(decision.policy)]]),
    section("Best nodes with room", table("Best nodes", ["Node", { title: "Score", number: true }, ...names.map((name) => ({ title: String(name), number: true }))],
      found.top.map((/** @type {any} */ row) => [[node(row.node), row.node === found.node && " (chosen)"], row.score.toFixed(3),
        ...names.map((name) => (name in row.scores ? row.scores[/** @type {string} */ (name)].toFixed(3) : ""))]), "no node had room")),
    found.filters.length > 0 && section("Refused by filters", table("Filters", ["Filter", { title: "Nodes", number: true }],
      found.filters.map((/** @type {any} */ row) => [plain(row.name), row.refused]))),
    found.exhausted.length > 0 && section("Too little of", table("Exhausted", ["Dimension", { title: "Nodes", number: true }],
      found.exhausted.map((/** @type {any} */ row) => [plain(row.dimension), row.nodes]))),
    found.nearest.length > 0 && section("Nearest nodes without room", table("Nearest", ["Node", "Lacks"],
      found.nearest.map((/** @type {any} */ row) => [node(row.node), plain(Object.entries(row.shortfall).map(([name, n]) => `${name} ${n}`).join(", "))]))),
    evictions([found.eviction, ...found.alternatives].filter(Boolean), found.node),
    found.victims.length > 0 && section("Evicted for it", h("ul", {}, found.victims.map((/** @type {string} */ name) => h("li", {}, plain(name))))),
  ];
}

/** What the chosen eviction costs, and the cheapest others. @param {any[]} choices @param {string} chosen */
const evictions = (choices, chosen) => choices.length > 0 && section("Evictions: the choice and its alternatives", table("Evictions",
  ["Node", { title: "Victims", number: true }, { title: "Highest priority", number: true }, { title: "Priorities", number: true },
    { title: "Work lost", number: true }, "Jobs", "Worse by"],
  choices.map((one) => [[node(one.node), !one.worse_by && one.node === chosen && " (chosen)"], one.victims, one.highest_priority, one.priority_sum,
    one.work_lost, plain(one.jobs.join(", ")), plain(one.worse_by)])));

// ---- logs ----

/** @type {{key: string, box: HTMLElement} | null} */
let shownLog = null;

/** @param {any} one @param {string[]} tasks */
function logs(one, tasks) {
  if (shownLog?.key === one.id && shownLog.box.isConnected) return shownLog.box;
  const text = h("pre.log", { tabindex: "0", role: "log", "aria-label": "output of the task" });
  const said = h("p.fault", { role: "alert" });
  const task = /** @type {HTMLSelectElement} */ (h("select", { id: "log-task", onchange: () => begin() }, tasks.map((name) => h("option", { value: name }, plain(name)))));
  // What went wrong is most often said there.
  const first = one.client_status === "failed" ? "stderr" : "stdout";
  const kind = /** @type {HTMLSelectElement} */ (h("select", { id: "log-kind", onchange: () => begin() },
    ["stdout", "stderr"].map((name) => h("option", { value: name, selected: name === first }, name))));
  const empty = h("p.dim", {}, "Nothing was written yet.");
  let reading = new AbortController();
  const begin = async () => {
    reading.abort();
    reading = new AbortController();
    text.textContent = "";
    said.textContent = "";
    empty.hidden = false;
    try {
      await read(one.id, task.value, kind.value, text, reading.signal, () => (empty.hidden = true));
    } catch (err) {
      if (!(err instanceof DOMException)) said.textContent = err instanceof Fault ? err.message : String(err);
    }
  };
  const box = h("div", { "data-keep": `logs ${one.id}` }, h("p.choices", {}, h("label", {}, "Task ", task), h("label", {}, "Output ", kind)), said, empty, text);
  shownLog = { key: one.id, box };
  begin();
  addEventListener("hashchange", function leave() {
    if (here().path[1] === one.id && here().params.get("show") === "logs") return;
    removeEventListener("hashchange", leave);
    reading.abort();
  });
  return box;
}

/** Follow a log as plain text, from near its end. @param {string} id @param {string} task @param {string} kind @param {HTMLElement} text @param {AbortSignal} signal @param {() => void} heard */
async function read(id, task, kind, text, signal, heard) {
  const found = await request(`/v1/client/fs/logs/${id}`, { task, type: kind, plain: "true", follow: "true", origin: "end", offset: LOG_BYTES }, { signal });
  const reader = /** @type {ReadableStream} */ (found.body).pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    const isAtEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
    text.append(plain(withoutColours(value)));
    if ((text.textContent ?? "").length > TEXT_MAX) text.textContent = (text.textContent ?? "").slice(-TEXT_MAX / 2);
    if (isAtEnd) text.scrollTop = text.scrollHeight;
  }
}

/** Without the sequences that colour a terminal. @param {string} text */
const withoutColours = (text) => text.replace(/\u001b\[[0-9;?]*[ -/]*[@-~]/g, "").replace(/\r\n/g, "\n").replace(/\r/g, "\n");

// ---- exec ----

/** @type {{key: string, box: HTMLElement} | null} */
let shownExec = null;

/** @param {any} one @param {string[]} tasks */
function exec(one, tasks) {
  if (shownExec?.key === one.id && shownExec.box.isConnected) return shownExec.box;
  const text = h("pre.log", { tabindex: "0", role: "log", "aria-label": "output of the command" });
  const task = /** @type {HTMLSelectElement} */ (h("select", { id: "exec-task" }, tasks.map((name) => h("option", { value: name }, plain(name)))));
  const command = /** @type {HTMLInputElement} */ (h("input", { id: "exec-command", value: "/bin/sh", size: "30" }));
  const typed = /** @type {HTMLInputElement} */ (h("input", { id: "exec-input", disabled: true, size: "60", autocomplete: "off" }));
  /** @type {WebSocket | null} */
  let socket = null;
  const say = (/** @type {string} */ words) => {
    text.append(plain(withoutColours(words)));
    text.scrollTop = text.scrollHeight;
  };
  const run = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!confirm(`Run ${command.value} beside the task ${task.value} of ${one.name}?`)) return;
    socket?.close();
    text.textContent = "";
    const search = new URLSearchParams({ task: task.value, tty: "false", ws_handshake: "true", command: JSON.stringify(command.value.split(/\s+/).filter(Boolean)) });
    const made = new WebSocket(`${location.origin.replace(/^http/, "ws")}/v1/client/allocation/${one.id}/exec?${search}`);
    socket = made;
    made.onopen = () => {
      made.send(JSON.stringify({ version: 1, auth_token: currentToken() }));
      typed.disabled = false;
      typed.focus();
    };
    const beat = setInterval(() => made.readyState === WebSocket.OPEN && made.send("{}"), 10_000);
    made.onmessage = (heard) => {
      const frame = JSON.parse(heard.data);
      for (const name of ["stdout", "stderr"]) if (frame[name]?.data) say(new TextDecoder().decode(Uint8Array.from(atob(frame[name].data), (one) => one.charCodeAt(0))));
      if (frame.exited) say(`\nexit code ${frame.result.exit_code}\n`);
    };
    made.onclose = (closed) => {
      clearInterval(beat);
      if (closed.reason) say(`\n${closed.reason}\n`);
      typed.disabled = true;
    };
  };
  const type = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (socket?.readyState !== WebSocket.OPEN) return;
    say(`> ${typed.value}\n`);
    socket.send(JSON.stringify({ stdin: { data: btoa(String.fromCharCode(...new TextEncoder().encode(`${typed.value}\n`))) } }));
    typed.value = "";
  };
  const box = h("div", { "data-keep": `exec ${one.id}` },
    h("form.choices", { onsubmit: run }, h("label", {}, "Task ", task), h("label", {}, "Command ", command), h("button", { type: "submit" }, "Run")),
    text, h("form.choices", { onsubmit: type }, h("label", {}, "Input line ", typed), h("button", { type: "submit" }, "Send")));
  shownExec = { key: one.id, box };
  addEventListener("hashchange", function leave() {
    if (here().path[1] === one.id && here().params.get("show") === "exec") return;
    removeEventListener("hashchange", leave);
    socket?.close();
  });
  return box;
}

