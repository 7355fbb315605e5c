// How long allocations took: from the request to a place, from there to the first report that they run, and both.

import { h } from "../lib/dom.js";
import { json } from "../lib/api.js";
import { lasting, number } from "../lib/format.js";
import { bar, section, table } from "../lib/parts.js";

const PARTS = [["placed", "Request to place"], ["started", "Place to running"], ["running", "Request to running"]];
const FIGURES = [["p50_ms", "Median"], ["p90_ms", "90 %"], ["p99_ms", "99 %"], ["max_ms", "Longest"], ["mean_ms", "Mean"]];

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function delays({ at }, signal) {
  const found = await json("/v1/caravan/delays", { at }, { signal });
  return [
    h("h1", {}, "Allocation times"),
    h("p.dim", {}, `Allocations placed by the records ${found.first_seq} to ${found.seq}, by the log's time. The request is the evaluation that their job got first: `,
      "a submission, a failed allocation, a lost node. They run from the first report of their node that says so."),
    section("Quantiles", table("Quantiles", ["", { title: "Allocations", number: true }, ...FIGURES.map(([, title]) => ({ title, number: true }))],
      PARTS.map(([name, title]) => [title, number(found[name].count), ...FIGURES.map(([figure]) => (found[name].count ? lasting(found[name][figure]) : ""))]))),
    section("Distribution", table("Distribution", ["Time", ...PARTS.map(([, title]) => title)], bins(found), "no allocation was placed")),
  ];
}

/** One line a bin, from the first to the last that holds something. @param {any} found */
function bins(found) {
  const filled = found.edges_ms.concat(Infinity).map((/** @type {number} */ _, /** @type {number} */ nth) => nth)
    .filter((/** @type {number} */ nth) => PARTS.some(([name]) => found[name].bins[nth] > 0));
  if (!filled.length) return [];
  const most = Object.fromEntries(PARTS.map(([name]) => [name, Math.max(...found[name].bins)]));
  const rows = [];
  for (let nth = filled[0]; nth <= filled[filled.length - 1]; nth++) {
    const edge = found.edges_ms[nth];
    rows.push([edge ? `up to ${lasting(edge)}` : "longer", ...PARTS.map(([name]) => bar(found[name].bins[nth], most[name], number(found[name].bins[nth])))]);
  }
  return rows;
}
