// What if: a fork of the log from a moment, with something different in it, beside what happens without. The gateway runs
// it as a process of its own; its address leads others to the same result.

import { h, plain } from "../lib/dom.js";
import { json, request, send } from "../lib/api.js";
import { lasting, number } from "../lib/format.js";
import { address } from "../lib/router.js";
import { live } from "../lib/live.js";
import { act, attempt, bar, job, link, node, section, state, table } from "../lib/parts.js";

/** Fields of a question that are lists: name, label, example. */
const LISTS = [["drain", "Drain nodes", "node-1 node-2=10m"], ["remove_nodes", "Remove nodes", "node-3"], ["add_nodes", "Add nodes like one", "2xnode-1"],
  ["policy", "Policy", "algorithm=spread"], ["priority", "Priority of jobs", "report=80"], ["update", "Pace of updates", "shop.max_parallel=3"],
  ["deployment", "Deployments", "shop=promote@+30s"]];
const POLL_MS = 1000, LISTED = 50;

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function whatIf({ path, params, at }, signal) {
  if (path[1]) return result(path[1], signal);
  const known = await json("/v1/caravan/what-if", {}, { signal });
  return [
    h("h1", {}, "What if"),
    h("p.dim", {}, "The log is forked after a record. The real scheduler decides in virtual time, once as it was and once with what is different; the cluster is not affected."),
    form(params, at),
    known.length > 0 && section("Earlier what-ifs", table("Earlier what-ifs", ["What if", "From seq", "Status", "What is different"],
      known.map((/** @type {any} */ one) => [link("what-if", one.id), one.question.seq, state(one.status), plain(different(one.question))]))),
  ];
}

/** What is different, in one line. @param {any} question */
const different = (question) => [...LISTS.filter(([name]) => question[name].length).map(([name, label]) => `${label}: ${question[name].join(", ")}`),
  ...(question.job ? ["a job file"] : [])].join("; ") || "nothing";

// ---- asking ----

/** @type {{key: string, box: HTMLElement} | null} */
let kept = null;

/** @param {URLSearchParams} params @param {number} at */
function form(params, at) {
  const key = `what-if ${params} ${at}`;
  if (kept?.key === key && kept.box.isConnected) return kept.box;
  const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {any} */ more) =>
    [h("label", { for: `q-${name}` }, label), h("input", { id: `q-${name}`, autocomplete: "off", ...more })];
  const text = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (box.querySelector(`#q-${name}`)).value.trim();
  const ask = (/** @type {Event} */ event) => {
    event.preventDefault();
    attempt(async () => {
      const question = { seq: Number(text("seq")), until: text("until"), job: text("job"), ...Object.fromEntries(LISTS.map(([name]) => [name, text(name).split(/\s+/).filter(Boolean)])) };
      const run = await send("/v1/caravan/what-if", question);
      location.hash = address(["what-if", run.id], {}, 0);
    });
  };
  const seq = params.get("seq") || at || live.seq;
  const box = h("form.question", { "data-keep": key, onsubmit: ask },
    field("seq", "Fork after seq", { type: "number", min: "1", required: true, value: seq }),
    field("until", "Until", { placeholder: "until nothing is pending; or +10m", value: params.get("until") ?? "" }),
    LISTS.map(([name, label, example]) => field(name, label, { placeholder: example, value: params.get(name) ?? "" })),
    h("label", { for: "q-job" }, "Job file to submit"), h("textarea", { id: "q-job", rows: "6", spellcheck: "false", placeholder: 'job "extra" { … }' }),
    h("span"), h("p.actions", {}, h("button", { type: "submit" }, "Run")));
  kept = { key, box };
  return box;
}

// ---- the result ----

/** @param {string} id @param {AbortSignal} signal */
async function result(id, signal) {
  const run = await json(`/v1/caravan/what-if/${encodeURIComponent(id)}`, {}, { signal });
  const { question, report } = run;
  const isOpen = run.status === "waiting" || run.status === "running";
  if (isOpen) setTimeout(() => location.hash.startsWith(`#/what-if/${id}`) && dispatchEvent(new HashChangeEvent("hashchange")), POLL_MS);
  const again = { seq: question.seq, until: question.until, ...Object.fromEntries(LISTS.map(([name]) => [name, question[name].join(" ")])) };
  return [
    h("h1", {}, `What if, from seq ${question.seq}`),
    h("p", {}, state(run.status), ` ${number(run.seconds)} s. `, `Different: ${plain(different(question))}. `,
      h("a", { href: address(["cluster"], {}, question.seq) }, "The cluster then")),
    run.text && h("p.fault", {}, plain(run.text)),
    h("p.actions", {}, isOpen && act("Cancel", "End this run?", () => request(`/v1/caravan/what-if/${id}`, {}, { method: "DELETE" })), " ",
      h("a.button", { href: address(["what-if"], again, 0) }, "Ask something else")),
    question.job && h("details", {}, h("summary", {}, "The job file"), h("pre", { tabindex: "0" }, plain(question.job))),
    report && told(report),
  ];
}

/** @param {any} report */
function told(report) {
  const { before, after, differences, faithful } = report;
  return [
    h("p", {}, !faithful.checked ? "No recorded decision follows the fork." : faithful.checked === faithful.equal ? `${number(faithful.checked)} recorded decisions were made again, all with the recorded result.`
      : h("span.fault", {}, `${faithful.checked - faithful.equal} of ${faithful.checked} recorded decisions came out otherwise: do not rely on what follows.`)),
    section("Side by side", table("Side by side", ["Figure", "Without the change", "With the change"], figures(before, after ?? before))),
    differences && section("Decisions", h("p", {}, `${number(differences.compared)} allocations are in both: ${number(differences.elsewhere)} on another node, `
      + `${number(differences.sooner)} sooner, ${number(differences.later)} later. ${number(differences.only_before)} only without the change, ${number(differences.only_after)} only with it.`),
    table("Jobs", ["Job", ...["Elsewhere", "Sooner", "Later", "Only without", "Only with", "Waited without", "Waited with"].map((title) => ({ title, number: true }))],
      differences.jobs.slice(0, LISTED).map((/** @type {any} */ one) => [job(one.job), one.elsewhere, one.sooner, one.later, one.only_before, one.only_after,
        lasting(one.waited_s_before * 1000), lasting(one.waited_s_after * 1000)]), "no job is affected"),
    differences.jobs_total > LISTED && h("p.dim", {}, `the ${LISTED} most affected of ${number(differences.jobs_total)}`)),
    report.deployments.length > 0 && section("Deployments", table("Deployments", ["Job", { title: "Version", number: true }, "Without the change", "With the change"],
      report.deployments.slice(0, LISTED).map((/** @type {any} */ one) => [job(one.job), one.version, outcome(one.before), outcome(one.after)]))),
    report.moves.length > 0 && section("Moves", table("Moves", ["Allocation", "From", "To", { title: "After", number: true }],
      report.moves.slice(0, LISTED).map((/** @type {any} */ one) => [plain(one.allocation), node(one.from_node), one.to ? node(one.to) : "nowhere", lasting(one.after_s * 1000)]))),
    Object.keys(report.still_waiting).length > 0 && section("Still waiting at the end", table("Still waiting", ["Job", "Allocations"],
      Object.entries(report.still_waiting).slice(0, LISTED).map(([name, classes]) => [job(name),
        plain(Object.entries(/** @type {any} */ (classes)).map(([kind, n]) => `${n} ${kind}`).join(", "))]))),
    section("Assumptions", h("ul", {}, report.assumptions.texts.map((/** @type {string} */ text) => h("li", {}, plain(text))))),
  ];
}

/** @param {any} one */
const outcome = (one) => (one ? [state(one.status), ` after ${lasting(one.seconds * 1000)}, at least ${one.lowest_healthy} healthy`] : h("span.dim", {}, "none"));

/** Lines of both forks. @param {any} one @param {any} other */
function figures(one, other) {
  const line = (/** @type {string} */ title, /** @type {(it: any) => any} */ read) => [title, read(one), read(other)];
  const classes = [...new Set([...Object.keys(one.waiting), ...Object.keys(other.waiting)])].sort();
  return [
    line("Allocations placed", (it) => number(it.placements)),
    line("Request to place, median", (it) => lasting(it.delays.p50_ms)), line("Request to place, 99 %", (it) => lasting(it.delays.p99_ms)),
    line("Without a place at the end", (it) => number(it.unplaced)),
    line("Complete, failed, lost, evicted", (it) => [it.complete, it.failed, it.lost, it.evicted].map(number).join(", ")),
    ...classes.map((name) => line(`Waited: ${name}`, (it) => (it.waiting[name] ? `${lasting(it.waiting[name].allocation_s * 1000)} of allocations, at most ${number(it.waiting[name].allocations_max)} at once` : "none"))),
    ...Object.keys(one.use).map((name) => line(`Use of ${name}, mean`, (it) => bar(it.use[name].mean_pct, 100, `${it.use[name].mean_pct.toFixed(1)} %`))),
    ...Object.keys(one.use).map((name) => line(`Use of ${name}, peak`, (it) => bar(it.use[name].peak_pct, 100, `${it.use[name].peak_pct.toFixed(1)} %`))),
    line("Log time at the end", (it) => (new Date(it.t_ns / 1e6).toISOString().slice(0, 19))),
  ];
}
