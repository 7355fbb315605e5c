// What differs between two moments, and what happened in between: chosen by seqs, or as a minute of the log's time.

import { h, plain } from "../lib/dom.js";
import { json } from "../lib/api.js";
import { clock, localTime, number } from "../lib/format.js";
import { times } from "../lib/live.js";
import { attempt, eventTable, section, table } from "../lib/parts.js";

const SIGNS = { added: "+", removed: "−", changed: "~" };
const SPANS = [["10", "10 seconds"], ["60", "1 minute"], ["600", "10 minutes"], ["3600", "1 hour"]];
const RECORDS = 1000, LINES = 200;

/** @param {string} name */
const value = (name) => /** @type {HTMLInputElement} */ (document.getElementById(name)).value;
/** @param {number} from @param {number} to */
const go = (from, to) => location.replace(`#/changes?from=${from}&to=${to}`);

/** @param {string} name `job added` @param {number} n */
const counted = (name, n) => `${number(n)} ${n === 1 ? name : name.replace(" ", "s ")}`;

/** Go to the records of a span of time. */
async function goToTime() {
  const begin = new Date(value("when")).getTime(), end = begin + Number(value("span")) * 1000;
  if (!begin) throw new SyntaxError("a time is required");
  // What was written before it is the state at its beginning.
  const [from, to] = await Promise.all([begin - 1, end - 1].map((t_ms) => json("/v1/caravan/seq", { t_ms })));
  if (!to.seq) throw new SyntaxError("the log has no record that old");
  go(Math.max(from.seq, 1), to.seq);
}

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function changes({ params, at }, signal) {
  const { seq, first_seq } = await json("/v1/caravan/time", {}, { signal });
  const to = Number(params.get("to")) || at || seq, from = Number(params.get("from")) || Math.max(first_seq, to - 100);
  const [found, past] = await Promise.all([
    json("/v1/caravan/diff", { from, to }, { signal }),
    to > from ? json("/v1/caravan/events", { from: Math.max(from + 1, to - RECORDS + 1), to, limit: RECORDS }, { signal }) : { from: to, lines: [] }]);
  const bySeq = (/** @type {any} */ event) => {
    event.preventDefault();
    go(Number(value("from")), Number(value("to")));
  };
  const byTime = (/** @type {any} */ event) => {
    event.preventDefault();
    attempt(goToTime);
  };
  const shown = past.lines.slice(-LINES).reverse();
  return [
    h("h1", {}, "Changes"),
    h("form.choices", { onsubmit: byTime },
      h("label", { for: "when" }, "Time"), h("input", { id: "when", type: "datetime-local", step: "1", "data-key": `when ${to}`, value: localTime(times.timeOf(to) - 60_000) }),
      h("label", { for: "span" }, "for"), h("select", { id: "span" }, SPANS.map(([name, text]) => h("option", { value: name, selected: name === "60" }, text))),
      h("button", { type: "submit" }, "Show")),
    h("form.choices", { onsubmit: bySeq },
      h("label", { for: "from" }, "From seq "), h("input.seq", { id: "from", "data-key": `from ${from}`, type: "number", min: first_seq, max: seq, value: from }),
      h("label", { for: "to" }, " to seq "), h("input.seq", { id: "to", "data-key": `to ${to}`, type: "number", min: first_seq, max: seq, value: to }),
      h("button", { type: "submit" }, "Compare")),
    h("p", {}, `Seq ${from} (${clock(times.timeOf(from))}) to ${to} (${clock(times.timeOf(to))}): `,
      Object.entries(found.counts).map(([name, n]) => counted(name, /** @type {any} */ (n))).join(", ") || "no differences"),
    table("Changes", ["", "Kind", "ID", "Was", "Is"], found.changes.map((/** @type {any} */ one) => [
      h("span", { title: one.what }, /** @type {any} */ (SIGNS)[one.what]), plain(one.kind), plain(one.id), plain(one.old), plain(one.new)]), "no differences"),
    section("Events in between", eventTable(shown, clock),
      (past.from > from + 1 || past.lines.length > shown.length) && h("p.dim", {}, `the newest ${number(shown.length)}`)),
  ];
}
