// One deployment: its progress, what it waits for, its allocations; promote, pause, resume and fail at the present.

import { h, plain } from "../lib/dom.js";
import { canChange, query, send } from "../lib/api.js";
import { clock, clockNs, short } from "../lib/format.js";
import { ALLOC_COLUMNS, act, allocRows, fields, job, progress, section, state, table } from "../lib/parts.js";

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function deploymentPage({ path, at }, signal) {
  const found = await query("deployment", { id: path[1] ?? "", limit: 100 }, at, signal);
  const one = found.deployment;
  return [
    h("h1", {}, `Deployment ${short(one.id)}`),
    h("p", {}, state(one.status), " of ", job(one.job), `, version ${one.version}`),
    deploymentActions(one, at),
    h("p.rollout", {}, plain(one.description)),
    fields([["Cause", one.cause], ["Reverted to version", one.reverted_to >= 0 ? one.reverted_to : ""], ["Began at seq", one.create_seq], ["Changed at seq", one.modify_seq]]),
    waits(found.waits),
    section("Progress", progress(one.groups ?? {}, clock)),
    section("Allocations", table("Allocations", ALLOC_COLUMNS, allocRows(found.allocations ?? []), "no allocations")),
  ];
}

/** @param {any[]} found */
const waits = (found) => (found ?? []).length > 0 && section("Waits for", h("ul.reasons", {}, found.map((wait) =>
  h("li", {}, plain(`${wait.group}: ${wait.reason || wait.why}`), wait.since_ns > 0 && `, since ${clockNs(wait.since_ns)}`,
    wait.allocations.length > 0 && ` (${plain(wait.allocations.join(", "))})`))));

/** Buttons that fit its status. @param {any} one @param {number} at */
export function deploymentActions(one, at) {
  if (!canChange(at) || ["successful", "failed", "cancelled"].includes(one.status)) return null;
  const needsPromotion = Object.values(one.groups).some((group) => group.canaries > 0 && !group.promoted);
  const verb = (/** @type {string} */ title, /** @type {string} */ name, /** @type {any} */ body, tone = "") =>
    [act(title, `${title} the deployment of ${one.job}, version ${one.version}?`, () => send(`/v1/deployment/${name}/${one.id}`, body), tone), " "];
  return h("p.actions", {},
    needsPromotion && verb("Promote", "promote", { DeploymentID: one.id, All: true }),
    one.status === "paused" ? verb("Resume", "pause", { DeploymentID: one.id, Pause: false }) : verb("Pause", "pause", { DeploymentID: one.id, Pause: true }),
    verb("Fail", "fail", {}, "danger"));
}
