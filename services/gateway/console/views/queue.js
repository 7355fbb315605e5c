// What waits for a place: in which order, why, since when, and what would have it tried again.

import { h, plain } from "../lib/dom.js";
import { query } from "../lib/api.js";
import { age, clockNs, number } from "../lib/format.js";
import { evaluation, job, table } from "../lib/parts.js";
import { moment } from "../lib/live.js";

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function queue({ at }, signal) {
  const found = await query("waiting", { limit: 500 }, at, signal);
  const now = moment(at);
  const rows = found.waiting.map((/** @type {any} */ one) => [
    one.position || h("span.dim", {}, "no node fits"), job(one.job), plain(one.group), number(one.n), plain(one.class), one.priority, plain(one.pool),
    one.since_ns ? [clockNs(one.since_ns), now > 0 && h("span.dim", {}, ` (${age(one.since_ns / 1e6, now)})`)] : "",
    one.decided_seq || h("span.dim", {}, "not yet"),
    [one.reasons, one.wakes.length ? [`tried again when: ${one.wakes.join(", ")}`] : []].flat().map((text) => h("div", {}, plain(text))), evaluation(one.eval_id)]);
  return [
    h("h1", {}, "Queue"),
    h("p.dim", {}, "Position 1 is next in its node pool. A group that no node could hold has no position."),
    table("Queue", [{ title: "Position", number: true }, "Job", "Group", { title: "Missing", number: true }, "Class", { title: "Priority", number: true },
      "Pool", "Since", { title: "Decided at seq", number: true }, "Why", "Evaluation"], rows, "nothing waits"),
    found.total > rows.length && h("p.dim", {}, `the first ${number(rows.length)} of ${number(found.total)}`),
  ];
}
