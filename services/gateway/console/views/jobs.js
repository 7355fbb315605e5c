// Jobs, and one job: groups, what it waits for, allocations, deployments, versions and their differences, its events.

import { h, plain } from "../lib/dom.js";
import { Fault, canChange, json, query, request, send } from "../lib/api.js";
import { clock, clockNs, number, short } from "../lib/format.js";
import { address, here } from "../lib/router.js";
import { ALLOC_COLUMNS, PAGE_ROWS, act, allocRows, attempt, evaluation, eventTable, fields, job, link, pageOffset, pager, progress, section, state, table, tally } from "../lib/parts.js";
import { deploymentActions } from "./deployment.js";

const EVENT_RECORDS = 1000;

/** @param {string} key @param {string} value */
function choose(key, value) {
  const { path, params } = here();
  params.delete("at");
  params.delete("page");
  location.replace(address(path, { ...Object.fromEntries(params), [key]: value }));
}

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function jobs({ params, at }, signal) {
  const id = params.get("q") ?? "", status = params.get("status") ?? "", offset = pageOffset(params);
  const found = await query("jobs", { id, status, limit: PAGE_ROWS, offset }, at, signal);
  const rows = found.jobs.map((/** @type {any} */ one) => [
    job(one.id), plain(one.type), state(one.status), one.version, one.priority, groups(one.groups),
    one.pattern ? plain(one.pattern) : one.rollout_status ? state(one.rollout_status) : ""]);
  return [
    h("h1", {}, "Jobs"),
    h("p.choices", {},
      h("label", {}, "Beginning of the id ", h("input", { type: "search", value: id, onchange: (/** @type {any} */ event) => choose("q", event.target.value) })),
      h("label", {}, "Status ", h("select", { onchange: (/** @type {any} */ event) => choose("status", event.target.value) },
        ["", "running", "pending", "dead"].map((one) => h("option", { value: one, selected: one === status }, one || "all"))))),
    table("Jobs", ["Job", "Type", "Status", { title: "Version", number: true }, { title: "Priority", number: true }, "Allocations", "Deployment"], rows, "no jobs"),
    pager("jobs", offset, found.total),
  ];
}

/** @param {Record<string, any>} found */
function groups(found) {
  const sum = { running: 0, pending: 0, complete: 0, failed: 0, lost: 0, unknown: 0 };
  let wanted = 0;
  for (const one of Object.values(found)) {
    wanted += one.desired;
    for (const name of Object.keys(sum)) /** @type {any} */ (sum)[name] += one[name];
  }
  return h("span", {}, `${wanted} wanted, `, tally(sum));
}

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function jobPage({ path, params, at }, signal) {
  const id = path[1] ?? "";
  const shown = params.get("show") ?? "overview";
  const offset = shown === "overview" ? pageOffset(params) : 0;
  const found = await query("job", { id, limit: PAGE_ROWS, offset }, at, signal);
  const one = found.job;
  const tabs = ["overview", "versions", "timeline", "source"];
  return [
    h("h1", {}, plain(one.id)),
    h("p", {}, state(one.status), ` ${plain(one.type)}, version ${one.version}, priority ${one.priority}`,
      one.parent && [", child of ", job(one.parent)]),
    canChange(at) && h("p.actions", {},
      h("a.button", { href: address(["submit"], { job: id }) }, one.stopped ? "Change and start" : "Plan a change"), " ",
      !one.stopped && act("Stop", `Stop the job ${id}? Its allocations end.`, () => request(`/v1/job/${encodeURIComponent(id)}`, {}, { method: "DELETE" }), "danger")),
    h("nav.tabs", { "aria-label": "Parts of the job" }, tabs.map((name) =>
      h("a", { href: address(["job", id], { show: name === "overview" ? "" : name }), "aria-current": name === shown ? "page" : false }, name))),
    shown === "versions" ? await versions(id, at, params, signal)
      : shown === "timeline" ? await timeline(id, at, signal)
        : shown === "source" ? await source(id, at, signal) : await overview(found, offset, at, signal),
  ];
}

/** @param {any} found @param {number} offset of its allocations @param {number} at @param {AbortSignal} signal */
async function overview(found, offset, at, signal) {
  const id = found.job.id;
  const [deployments, services] = await Promise.all([
    query("deployments", { job_id: id, limit: 10 }, at, signal), query("services", { job_id: id, limit: 50 }, at, signal)]);
  const { rollout } = found;
  const active = deployments.deployments.find((/** @type {any} */ one) => ["running", "paused"].includes(one.status));
  return [
    h("p.rollout", {}, state(rollout.status), rollout.reason && ` ${plain(rollout.reason)}`,
      rollout.retry_ns > 0 && `, tried again ${clockNs(rollout.retry_ns)}`),
    active && section("Deployment in progress", h("p", {}, link("deployment", active.id, short(active.id)), " ", state(active.status),
      ` to version ${active.version}: ${plain(active.description)}`), deploymentActions(active, at), progress(active.groups, clock)),
    found.waiting.length > 0 && section("Waiting", h("ul.reasons", {}, found.waiting.map((/** @type {any} */ one) =>
      h("li", {}, `${plain(one.group)}: ${one.n} without a place (${plain(one.class)}, ${one.decided_seq ? `decided at seq ${one.decided_seq}` : "not decided yet"}). `, one.reasons.map((/** @type {string} */ text) => `${plain(text)}. `),
        evaluation(one.eval_id))))),
    found.ui && section("About", found.ui.description && h("p", {}, plain(found.ui.description)), found.ui.links.length > 0 && h("ul", {}, found.ui.links.map((/** @type {any} */ one) =>
      h("li", {}, h("a", { href: one.url, rel: "noopener noreferrer", target: "_blank" }, plain(one.label)))))),
    found.unbuilt.length > 0 && section("Not built, ignored", h("ul", {}, found.unbuilt.map((/** @type {string} */ text) => h("li", {}, plain(text))))),
    section("Groups", table("Groups", ["Group", { title: "Wanted", number: true }, "Allocations", ...(canChange(at) ? ["Scale"] : [])],
      Object.entries(found.groups).map(([name, one]) => [plain(name), one.desired, tally(one), ...(canChange(at) ? [active ? h("span.dim", {}, "after the deployment") : scale(found.job, name, one.desired)] : [])]))),
    found.periodic && section("Launches", fields([["Cron", found.periodic.crons.join(", ")], ["Time zone", found.periodic.time_zone],
      ["Next", clockNs(found.periodic.next_ns)], ["Problem", found.periodic.problem]])),
    found.children_total > 0 && section("Children", table("Children", ["Job", "Status"],
      found.children.map((/** @type {any} */ one) => [job(one.id), state(one.status)]))),
    section(`Allocations (${number(found.allocations_total)})`, table("Allocations", ALLOC_COLUMNS, allocRows(found.allocations), "no allocations"),
      pager("allocations", offset, found.allocations_total)),
    deployments.deployments.length > 0 && section("Deployments", table("Deployments", ["Deployment", { title: "Version", number: true }, "Status", "Description"],
      deployments.deployments.map((/** @type {any} */ one) => [link("deployment", one.id, short(one.id)), one.version, state(one.status), plain(one.description)]))),
    services.services.length > 0 && section("Services", table("Services", ["Service", "Tags", { title: "Instances", number: true }, { title: "Passing", number: true }],
      services.services.map((/** @type {any} */ one) => [link("services", one.name), plain(one.tags.join(", ")), one.instances, one.passing]))),
    section("Evaluations", table("Evaluations", ["Evaluation", "Status", "Triggered by", "Reason", { title: "Created", number: true }],
      found.evaluations.map((/** @type {any} */ one) => [evaluation(one.id), state(one.status), plain(one.triggered_by), plain(one.reason), one.create_seq]))),
  ];
}

/** @param {string} id @param {number} at @param {URLSearchParams} params @param {AbortSignal} signal */
async function versions(id, at, params, signal) {
  const found = await query("job_versions", { id, limit: 50 }, at, signal);
  const known = found.versions.map((/** @type {any} */ one) => one.version);
  const to = Number(params.get("to") ?? known[0] ?? 0), from = Number(params.get("from") ?? Math.max(to - 1, 0));
  const [newer, older] = await Promise.all([to, from].map((version) => query("job_version", { id, version: String(version) }, at, signal)));
  const changes = [...compare(older.spec, newer.spec)];
  const pick = (/** @type {string} */ key, /** @type {number} */ value) => h("select", { "aria-label": key, onchange: (/** @type {any} */ event) => choose(key, event.target.value) },
    known.map((/** @type {number} */ one) => h("option", { value: one, selected: one === value }, one)));
  return [
    section("Versions", table("Versions", [{ title: "Version", number: true }, "Stable", "Tag", { title: "Registered at seq", number: true }, ...(canChange(at) ? ["Action"] : [])],
      found.versions.map((/** @type {any} */ one) => [one.version, one.stable ? "stable" : "", plain(one.tag), h("a", { href: address(["log"], { job: id }, one.seq) }, one.seq),
        ...(canChange(at) ? [one.version === known[0] ? "present" : act(`Revert to ${one.version}`, `Run version ${one.version} of ${id} again, as a new version?`,
          () => send(`/v1/job/${encodeURIComponent(id)}/revert`, { JobID: id, JobVersion: one.version }))] : [])]))),
    section("Differences", h("p.choices", {}, "from version ", pick("from", from), " to version ", pick("to", to)),
      table("Differences", ["Field", "Was", "Is"], changes.map(([path, was, is]) => [h("code", {}, plain(path)), text(was), text(is)]), "no differences")),
  ];
}

/** @param {any} value */
const text = (value) => (value === undefined ? h("span.dim", {}, "absent") : h("code", {}, plain(JSON.stringify(value))));

/** Fields that differ, depth first. @param {any} was @param {any} is @param {string} [path] @returns {Generator<[string, any, any]>} */
function* compare(was, is, path = "") {
  if (was && is && typeof was === "object" && typeof is === "object" && Array.isArray(was) === Array.isArray(is)) {
    for (const key of [...new Set([...Object.keys(was), ...Object.keys(is)])].sort()) yield* compare(was[key], is[key], path ? `${path}.${key}` : key);
  } else if (JSON.stringify(was) !== JSON.stringify(is)) yield [path, was, is];
}

/** @param {string} id @param {number} at @param {AbortSignal} signal */
async function timeline(id, at, signal) {
  const found = await json("/v1/caravan/events", { job: id, to: at, limit: EVENT_RECORDS }, { signal });
  return section("Timeline", h("p.dim", {}, `its events in the records ${found.from} to ${found.to}`), eventTable(found.lines.slice().reverse(), clock));
}

/** @param {string} id @param {number} at @param {AbortSignal} signal */
async function source(id, at, signal) {
  const found = await query("job_version", { id, version: "-1" }, at, signal);
  const file = await submitted(id, found.version, signal);
  const given = Object.entries(file?.VariableFlags ?? {}).map(([name, value]) => [plain(name), h("code", {}, plain(value))]);
  return [
    file && section(`Version ${found.version}, as it was written`, h("p.dim", {}, plain(file.Format)), h("pre", { tabindex: "0" }, plain(file.Source)),
      given.length > 0 && table("Variables", ["Variable", "Value"], given),
      file.Variables && [h("h3", {}, "Files of variables"), h("pre", { tabindex: "0" }, plain(file.Variables))]),
    section(`Version ${found.version}, as it was registered`, !file && h("p.dim", {}, "The file that it was made of was not submitted with it, or the log has dropped it."),
      h("pre", { tabindex: "0" }, plain(JSON.stringify(found.spec, null, 2)))),
  ];
}

/** The file that a version was made of; null: there is none. @param {string} id @param {number} version @param {AbortSignal} signal */
export async function submitted(id, version, signal) {
  try {
    return await json(`/v1/job/${encodeURIComponent(id)}/submission`, { version: String(version) }, { signal });
  } catch (err) {
    if (err instanceof Fault && err.status === 404) return null;
    throw err;
  }
}

/** A field and a button that change the count of a group. @param {any} one @param {string} group @param {number} desired */
function scale(one, group, desired) {
  if (one.stopped || !["service", "batch"].includes(one.type)) return h("span.dim", {}, "not possible");
  const count = /** @type {HTMLInputElement} */ (h("input.count", { type: "number", min: "0", "aria-label": `count of ${group}`, value: desired }));
  const change = (/** @type {Event} */ event) => {
    event.preventDefault();
    const field = /** @type {HTMLInputElement} */ (/** @type {HTMLElement} */ (event.currentTarget).querySelector("input"));
    const wanted = Number(field.value);
    if (confirm(`Run ${wanted} allocations of ${one.id}.${group} in place of ${desired}?`)) {
      attempt(() => send(`/v1/job/${encodeURIComponent(one.id)}/scale`, { Count: wanted, Target: { Group: group } }));
    }
  };
  return h("form.choices", { onsubmit: change }, count, h("button", { type: "submit" }, "Scale"));
}
