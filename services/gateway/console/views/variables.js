// Variables: paths by their beginning; and one path: what the log has in plain, who may read it, and its items on request.

import { h, plain } from "../lib/dom.js";
import { canChange, json, query, session } from "../lib/api.js";
import { clock, clockNs, number } from "../lib/format.js";
import { address, here } from "../lib/router.js";
import { PAGE_ROWS, eventTable, fields, job, link, pageOffset, pager, section, table } from "../lib/parts.js";
import { itemsOf } from "./variable_items.js";

const EVENT_RECORDS = 1000, JOBS_MAX = 50;
/** What every task may read, and the jobs below it. */
const JOBS = ["nomad", "jobs"];

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function variables({ path, params, at }, signal) {
  if (path[1]) return onePath(path[1], at, signal);
  const id = params.get("q") ?? "", offset = pageOffset(params);
  const found = await query("variables", { id, limit: PAGE_ROWS, offset }, at, signal);
  return [
    h("h1", {}, "Variables"),
    h("p.choices", {}, h("label", {}, "Beginning of the path ", h("input", {
      type: "search", value: id, onchange: (/** @type {any} */ event) => location.replace(address(["variables"], { q: event.target.value }, here().at)),
    })), canChange(at) && newPath()),
    h("p.dim", {}, "Items are encrypted; this list is made of what the log has in plain."),
    table("Variables", ["Path", { title: "Items", number: true }, { title: "Bytes", number: true }, "Changed", { title: "Revision", number: true },
      { title: "Created at seq", number: true }, "Locked"], found.variables.map((/** @type {any} */ one) => [
      link("variables", one.path), number(one.items), number(one.size), one.revision ? clockNs(one.modify_ns) : "", one.revision || "", one.create_seq || "",
      one.lock_seq ? ["since seq ", moment(one.lock_seq)] : ""]), "no variables"),
    pager("variables", offset, found.total),
  ];
}

/** @param {number} seq */
const moment = (seq) => h("a", { href: address(["log"], {}, seq), title: "go to this moment" }, seq);

/** The page of a path that need not exist yet. */
const newPath = () => h("form.choices", {
  onsubmit: (/** @type {any} */ event) => {
    event.preventDefault();
    const path = event.target.elements.path.value.trim().replace(/^\/+|\/+$/g, "");
    if (path) location.hash = address(["variables", path]);
  },
}, h("label", {}, "Path ", h("input", { name: "path", required: true, maxlength: "128", autocomplete: "off", spellcheck: "false" })), h("button", { type: "submit" }, "New variable"));

/** @param {string} path @param {number} at @param {AbortSignal} signal */
async function onePath(path, at, signal) {
  const [found, past, readers] = await Promise.all([
    query("variables", { id: path, limit: 1 }, at, signal), json("/v1/caravan/events", { kind: "variable.", to: at, limit: EVENT_RECORDS }, { signal }),
    readersOf(path, at, signal)]);
  // The path itself is before all that begin with it.
  const one = found.variables[0]?.path === path ? found.variables[0] : null;
  const events = past.lines.filter((/** @type {any} */ line) => isAbout(line, path)).reverse();
  return [
    h("h1", {}, plain(path)),
    one?.revision ? fields([
      ["Items", `${number(one.items)}, ${number(one.size)} bytes`], ["Revision", moment(one.revision)], ["Changed", clockNs(one.modify_ns)],
      ["Created", [clockNs(one.create_ns), ", at seq ", moment(one.create_seq)]]]) : h("p", {}, at ? "It had no items then." : "It has no items."),
    one?.lock_seq > 0 && h("p.rollout", {}, "Locked since seq ", moment(one.lock_seq), `: the lock expires ${one.lock_ttl_ms / 1000} s after its last renewal`,
      one.lock_delay_ms ? `, and nothing can lock the path for ${one.lock_delay_ms / 1000} s after that` : "", ". Only its holder can change the path."),
    section("Items", canChange(at) ? itemsOf(path, one) : h("p.dim", {}, session.archive
      ? "An archive has the items encrypted; only the keeper of its cluster has the keys."
      : "Items are shown and changed at the present only: the keeper opens the newest revision, no older one.")),
    section("Who may read it", h("ul", {}, readers.map((one) => h("li", {}, one)), h("li", {}, "every login of a client of the bus"))),
    section("Events", h("p.dim", {}, `of the records ${past.from} to ${past.to}`), eventTable(events, clock)),
  ];
}

/** Whether a line of the log is about a path: it begins with it; one of erased keys names several. @param {any} line @param {string} path */
const isAbout = (line, path) => {
  const words = String(line.text).split(/[\s:,]+/);
  return line.type === "variable.shredded" ? words.includes(path) : words[0] === path;
};

/** Which tasks may read a path by its name alone. @param {string} path @param {number} at @param {AbortSignal} signal */
async function readersOf(path, at, signal) {
  const parts = path.split("/");
  if (JOBS.some((part, nth) => parts[nth] !== part)) return ["no task: tasks may read what is named after their job, below nomad/jobs"];
  const names = parts.slice(JOBS.length);
  if (!names.length) return ["every task"];
  const found = await query("jobs", { id: names[0], limit: JOBS_MAX }, at, signal);
  const known = new Set(found.jobs.map((/** @type {any} */ one) => one.id));
  // Ids of jobs may have slashes: of the ways to read the path, those whose job exists.
  const ways = names.map((_, nth) => [names.slice(0, nth + 1).join("/"), ...names.slice(nth + 1)]).filter((way) => way.length <= 3);
  const real = ways.filter(([id]) => known.has(id));
  return (real.length ? real : ways.slice(0, 1)).map(([id, group, task]) => [
    task ? `task ${plain(task)} of group ${plain(group)} of ` : group ? `every task of group ${plain(group)} of ` : "every task of ", "job ",
    known.has(id) ? job(id) : `${plain(id)}, which does not exist`, known.has(id) && ", and of the jobs that it launches"]);
}
