// Services that jobs offer, and the instances of one.

import { h, plain } from "../lib/dom.js";
import { query } from "../lib/api.js";
import { alloc, job, link, node, state, table } from "../lib/parts.js";

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function services({ path, at }, signal) {
  if (path[1]) {
    const found = await query("service", { id: path[1], limit: 500 }, at, signal);
    return [
      h("h1", {}, plain(path[1])),
      table("Instances", ["Address", "Status", "Job", "Allocation", "Node", "Tags"], found.instances.map((/** @type {any} */ one) => [
        plain(`${one.address ?? ""}:${one.port ?? ""}`), state(one.status), job(one.job), alloc(one.alloc), node(one.node),
        plain((one.tags ?? []).join(", "))]), "no instances"),
    ];
  }
  const found = await query("services", { limit: 500 }, at, signal);
  return [
    h("h1", {}, "Services"),
    table("Services", ["Service", "Tags", "Jobs", { title: "Instances", number: true }, { title: "Passing", number: true }], found.services.map((/** @type {any} */ one) => [
      link("services", one.name), plain((one.tags ?? []).join(", ")), one.jobs.map((/** @type {string} */ id) => [job(id), " "]), one.instances, one.passing]), "no services"),
  ];
}
