// Evaluations, and one evaluation: what triggered it, what came of it.

import { h, plain } from "../lib/dom.js";
import { json, query } from "../lib/api.js";
import { clockNs, short } from "../lib/format.js";
import { address, here } from "../lib/router.js";
import { alloc, evaluation, fields, job, section, state, table } from "../lib/parts.js";

const COLUMNS = ["Evaluation", "Job", "Status", "Triggered by", "Reason", { title: "Priority", number: true }, { title: "Created", number: true },
  { title: "Changed", number: true }];
/** @param {any} one */
const row = (one) => [evaluation(one.id), job(one.job_id), state(one.status), plain(one.triggered_by), plain(one.reason), one.priority,
  h("a", { href: address(["log"], {}, one.create_seq) }, one.create_seq), one.modify_seq];

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function evaluations({ params, at }, signal) {
  const status = params.get("status") ?? "";
  const found = await query("evals", { status, limit: 200 }, at, signal);
  const choose = (/** @type {any} */ event) => location.replace(address(["evaluations"], { status: event.target.value }, here().at));
  return [
    h("h1", {}, "Evaluations"),
    h("p.choices", {}, h("label", {}, "Status ", h("select", { onchange: choose },
      ["", "pending", "blocked", "complete", "failed", "cancelled"].map((one) => h("option", { value: one, selected: one === status }, one || "all"))))),
    table("Evaluations", COLUMNS, found.evaluations.map(row), "no evaluations"),
    found.total > found.evaluations.length && h("p.dim", {}, `the newest ${found.evaluations.length} of ${found.total}`),
  ];
}

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function evaluationPage({ path, at }, signal) {
  const found = await query("eval", { id: path[1] ?? "" }, at, signal);
  const one = found.evaluation;
  // What is linked beyond the follow-ups is known of the present alone.
  const ownPath = `/v1/evaluation/${one.id}`;
  const [linked, placed] = at ? [{}, []] : await Promise.all([json(ownPath, {}, { signal }), json(`${ownPath}/allocations`, {}, { signal })]);
  return [
    h("h1", {}, `Evaluation ${short(one.id)}`),
    h("p", {}, state(one.status), " of ", job(one.job_id)),
    fields([["ID", one.id], ["Triggered by", one.triggered_by], ["Reason", one.reason], ["Priority", one.priority], ["Created at seq", one.create_seq],
      ["Changed at seq", one.modify_seq], ["Waits until", one.wait_until_ns ? clockNs(one.wait_until_ns) : ""],
      ["Previous evaluation", linked.PreviousEval && evaluation(linked.PreviousEval)], ["Blocked evaluation", linked.BlockedEval && evaluation(linked.BlockedEval)],
      ["Queue", one.parked ? "parked behind an evaluation that waits for the same resources" : ""]]),
    Object.keys(one.waiting ?? {}).length > 0 && section("Waiting", h("ul.reasons", {}, Object.entries(one.waiting).map(([group, wait]) =>
      h("li", {}, `${plain(group)}: ${/** @type {any} */ (wait).n} without a place (${/** @type {any} */ (wait).class}). `, /** @type {any} */ (wait).reasons.map((/** @type {string} */ text) => `${plain(text)}. `))))),
    found.follow_ups.length > 0 && section("Follow-up evaluations", table("Follow-ups", COLUMNS, found.follow_ups.map(row))),
    placed.length > 0 && section("Placed by it", table("Placed", ["Allocation", "ID", "Node", "Status"], placed.slice(0, 100).map((/** @type {any} */ it) =>
      [alloc(it.ID, it.Name), h("code", {}, short(it.ID)), plain(it.NodeName), state(it.ClientStatus)]))),
  ];
}
