// Nodes, and one node: capacity, what it offers, what runs on it, its events; drains and eligibility at the present.

import { h, plain } from "../lib/dom.js";
import { canChange, json, query, send } from "../lib/api.js";
import { clock, clockNs, mib, number, percent } from "../lib/format.js";
import { address, here } from "../lib/router.js";
import { ALLOC_COLUMNS, PAGE_ROWS, act, alloc, allocRows, bar, choice, eventTable, fields, node, pageOffset, pager, section, state, table } from "../lib/parts.js";

/** Nodes that are sorted here. */
const NODES_MAX = 1000, EVENT_RECORDS = 1000, WHOLE = 10_000;
const RESOURCES = ["cpu_mhz", "memory_mib", "disk_mib"];
const SORTS = [["", "id"], ...RESOURCES.map((name) => [name, name.split("_")[0]]), ["allocations", "allocations"]];
const DEADLINES = [["600", "10 minutes"], ["3600", "1 hour"], ["0", "no deadline"], ["-1", "at once"]];
/** Deadline of the next drain, s. */
let deadline = "600";

/** @param {any} one */
const status = (one) => [state(one.status), one.draining ? " draining" : one.eligibility === "ineligible" ? " ineligible" : ""];

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function nodes({ params, at }, signal) {
  const id = params.get("q") ?? "";
  const sort = params.get("sort") ?? "", offset = pageOffset(params);
  const found = await query("nodes", sort ? { id, limit: NODES_MAX } : { id, limit: PAGE_ROWS, offset }, at, signal);
  const go = (/** @type {any} */ changed) => location.replace(address(["nodes"], { q: id, sort, ...changed }, here().at));
  const known = sort ? found.nodes.length : found.total;
  if (sort) {
    found.nodes.sort((/** @type {any} */ a, /** @type {any} */ b) => key(b, sort) - key(a, sort) || (a.id < b.id ? -1 : 1));
    found.nodes = found.nodes.slice(offset, offset + PAGE_ROWS);
  }
  return [
    h("h1", {}, "Nodes"),
    h("p.choices", {}, h("label", {}, "Beginning of the id ", h("input", { type: "search", value: id, onchange: (/** @type {any} */ event) => go({ q: event.target.value }) })),
      choice("Sort by", sort, SORTS, (value) => go({ sort: value }))),
    table("Nodes", ["Node", "Class", "Datacenter", "Status", "CPU", "Memory", "Disk", { title: "Allocations", number: true }],
      found.nodes.map((/** @type {any} */ one) => [node(one.id), plain(one.class), plain(one.datacenter), status(one), ...shares(one), number(one.allocations)]), "no nodes"),
    pager("nodes", offset, known),
    found.total > known && h("p.dim", {}, `the first ${number(known)} of ${number(found.total)} by id are sorted; the picture of the cluster sorts all`),
  ];
}

/** What nodes are sorted by, largest first. @param {any} one @param {string} sort */
const key = (one, sort) => (sort === "allocations" ? one.allocations : (one.used[sort] ?? 0) / (one.capacity[sort] || 1));

/** CPU, memory and disk in use. @param {any} one */
const bars = ({ capacity, used }) => RESOURCES.map((name) => {
  const write = name.startsWith("cpu") ? (/** @type {number} */ n) => `${number(n)} MHz` : mib;
  return bar(used[name] ?? 0, capacity[name] ?? 0, `${write(used[name] ?? 0)} of ${write(capacity[name] ?? 0)}`);
});

/** The same as shares. @param {any} one */
const shares = ({ capacity, used }) => RESOURCES.map((name) => bar(used[name] ?? 0, capacity[name] ?? 0, percent(used[name] ?? 0, capacity[name] ?? 0)));

/** A pool in use, and its instances. @param {any} pool amounts are in 1/10,000 */
const poolBar = (pool) => [
  bar(pool.used, pool.capacity, `${pool.used / WHOLE} of ${pool.capacity / WHOLE}`),
  pool.excess > 0 && `, ${pool.excess / WHOLE} more than there is now`,
  pool.instances.length > 0 && h("details", {}, h("summary", {}, `${pool.instances.length} instances`),
    h("ul", {}, pool.instances.map((/** @type {any} */ one) =>
      h("li", {}, plain(`${[one.vendor, one.model, one.id].filter(Boolean).join(" ")}: ${one.used / WHOLE} in use${one.present ? "" : ", gone"}`)))))];

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function nodePage({ path, params, at }, signal) {
  const id = path[1] ?? "", offset = pageOffset(params);
  const [found, past] = await Promise.all([
    query("node", { id, limit: PAGE_ROWS, offset }, at, signal), json("/v1/caravan/events", { node: id, to: at, limit: EVENT_RECORDS }, { signal })]);
  const one = found.nodes[0];
  return [
    h("h1", {}, plain(one.name || one.id)),
    h("p", {}, status(one), ` in ${plain(one.datacenter)}, pool ${plain(one.pool)}`, one.class && `, class ${plain(one.class)}`),
    canChange(at) && actions(one),
    one.draining && h("p.rollout", {}, "Draining", found.drain?.left ? `: ${found.drain.left} allocations left` : "",
      found.drain?.deadline_ns ? `, until ${clockNs(found.drain.deadline_ns)}` : "",
      (found.drain?.waits ?? []).map((/** @type {any} */ wait) => ` ${plain(wait.job_id)}.${plain(wait.group)}: ${plain(wait.why)}.`)),
    section("Capacity", table("Capacity", ["Resource", "In use"], [
      ...bars(one).map((shown, nth) => [["CPU", "memory", "disk"][nth], shown]),
      ...Object.entries(one.pools ?? {}).map(([name, pool]) => [plain(name), poolBar(pool)]),
      ["free ports", number(one.ports_free)]])),
    section(`Allocations (${number(found.allocations_total)})`, table("Allocations", ALLOC_COLUMNS, allocRows(found.allocations), "no allocations"), pager("allocations", offset, found.allocations_total)),
    found.ports.length > 0 && section("Ports", table("Ports", [{ title: "Port", number: true }, "Allocation", "Kind"],
      found.ports.map((/** @type {any} */ one) => [one.port, alloc(one.allocation), one.static ? "static" : "dynamic"]))),
    section("Attributes", h("details", {}, h("summary", {}, `${Object.keys(found.attributes).length} attributes, ${Object.keys(found.meta).length} of meta`),
      fields(Object.entries({ ...found.attributes, ...Object.fromEntries(Object.entries(found.meta).map(([key, value]) => [`meta.${key}`, value])) }).sort()))),
    section("Events", h("p.dim", {}, `of the records ${past.from} to ${past.to}`), eventTable(past.lines.slice().reverse(), clock)),
  ];
}

/** A node by the UUID under which Nomad's clients know it. @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function client({ path, at }, signal) {
  const found = await json(`/v1/node/${encodeURIComponent(path[1] ?? "")}`, {}, { signal });
  location.replace(address(["node", found.Meta["caravan.node_id"]], {}, at));
  return [h("h1", {}, "Node")];
}

/** Drain and eligibility. @param {any} one */
function actions(one) {
  const path = `/v1/node/${encodeURIComponent(one.id)}`;
  const drain = () => send(`${path}/drain`, { DrainSpec: { Deadline: Number(deadline) * 1e9, IgnoreSystemJobs: false } });
  const eligible = one.eligibility !== "ineligible";
  return h("p.actions.choices", {},
    one.draining
      ? act("End the drain", `End the drain of ${one.id} and make it eligible again?`, () => send(`${path}/drain`, { DrainSpec: null, MarkEligible: true }))
      : [act("Drain", `Drain ${one.id}? Its allocations move to other nodes.`, drain, "danger"),
        choice("Deadline", deadline, DEADLINES, (value) => (deadline = value))],
    !one.draining && act(eligible ? "Make ineligible" : "Make eligible",
      eligible ? `Place nothing new on ${one.id}?` : `Let allocations be placed on ${one.id} again?`,
      () => send(`${path}/eligibility`, { Eligibility: eligible ? "ineligible" : "eligible" })),
    h("a.button", { href: address(["what-if"], { drain: one.id }) }, "What if it was drained"));
}
