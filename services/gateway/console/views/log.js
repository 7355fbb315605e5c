// The log in words: up to a moment, by kind, job and node; older ones by page.

import { h } from "../lib/dom.js";
import { json } from "../lib/api.js";
import { clock } from "../lib/format.js";
import { address, here } from "../lib/router.js";
import { eventTable, table } from "../lib/parts.js";

const RECORDS = 200;

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function log({ params, at }, signal) {
  if (params.get("show") === "state") return state(at, signal);
  const filter = { kind: params.get("kind") ?? "", job: params.get("job") ?? "", node: params.get("node") ?? "" };
  const found = await json("/v1/caravan/events", { ...filter, to: at, limit: RECORDS }, { signal });
  const field = (/** @type {"kind" | "job" | "node"} */ name, /** @type {string} */ label) => h("label", {}, `${label} `, h("input", {
    type: "search", value: filter[name], onchange: (/** @type {any} */ event) => location.replace(address(["log"], { ...filter, [name]: event.target.value }, here().at)),
  }));
  return [
    h("h1", {}, "Log"),
    h("p.choices", {}, field("kind", "Beginning of the event"), field("job", "Job"), field("node", "Node")),
    h("p.dim", {}, `records ${found.from} to ${found.to} `,
      found.from > 1 && h("a", { href: address(["log"], filter, found.from - 1) }, "older"), " ",
      h("a", { href: address(["log"], { show: "state" }) }, "hashes of the state")),
    eventTable(found.lines.slice().reverse(), clock),
  ];
}

/** Hashes of the tables behind a record, to compare with `caravan replay`. @param {number} at @param {AbortSignal} signal */
async function state(at, signal) {
  const found = await json("/v1/caravan/state", { at }, { signal });
  return [
    h("h1", {}, "State"),
    h("p.dim", {}, `After seq ${at || found.seq}. \`caravan replay --to ${at || found.seq}\` prints the same hashes. `, h("a", { href: address(["log"]) }, "The log")),
    table("Hashes", ["Table", "Hash"], Object.entries(found.tables).map(([name, hash]) => [name, h("code", {}, String(hash))])),
  ];
}
