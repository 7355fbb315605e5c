// Pieces that pages share: links, states, tables, bars.

import { h, plain, show } from "./dom.js";
import { Fault } from "./api.js";
import { address, here } from "./router.js";
import { short } from "./format.js";

/** @typedef {{title: string, number?: boolean, hide?: boolean}} Column */

/**
 * A table with a caption for screen readers.
 * @param {string} caption @param {Array<string | Column>} columns @param {any[][]} rows @param {string} [empty]
 */
export function table(caption, columns, rows, empty = "none") {
  const known = columns.map((one) => (typeof one === "string" ? { title: one } : one));
  const head = h("tr", {}, known.map((one) => h(one.number ? "th.number" : "th", { scope: "col" }, one.title)));
  const body = rows.map((row) => h("tr", {}, row.map((cell, at) => h(known[at].number ? "td.number" : "td", {}, cell))));
  if (!rows.length) body.push(h("tr", {}, h("td.dim", { colspan: known.length }, empty)));
  return h("div.scroll", { tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption.hidden", {}, caption), h("thead", {}, head), h("tbody", {}, body)));
}

/** Rows of one page of a list. */
export const PAGE_ROWS = 50;

/** Where the page of the address begins in its list. @param {URLSearchParams} params */
export const pageOffset = (params) => Math.max((Number(params.get("page")) || 1) - 1, 0) * PAGE_ROWS;

/** Which rows are shown, and links to the other pages; nothing where all are. @param {string} what @param {number} offset @param {number} total */
export function pager(what, offset, total) {
  if (total <= PAGE_ROWS && !offset) return "";
  const { path, params } = here();
  params.delete("at");
  const page = offset / PAGE_ROWS + 1, last = Math.max(Math.ceil(total / PAGE_ROWS), 1);
  const to = (/** @type {string} */ text, /** @type {number} */ nth) => (nth < 1 || nth > last || nth === page
    ? h("span.dim", {}, text) : h("a", { href: address(path, { ...Object.fromEntries(params), page: nth === 1 ? "" : nth }) }, text));
  return h("nav.pages", { "aria-label": `Pages of ${what}` }, h("span", {}, offset < total
    ? `${offset + 1} to ${Math.min(offset + PAGE_ROWS, total)} of ${total}` : `none on this page, ${total} in all`), " ",
  to("first", 1), " ", to("previous", page > last ? last : page - 1), " ", to("next", page + 1), " ", to("last", last));
}

/** @param {string} title @param {...any} children */
export const section = (title, ...children) => h("section", { "aria-label": title }, h("h2", {}, title), children);

/** Names and values. @param {Array<[string, any]>} rows */
export const fields = (rows) => h("dl", {}, rows.filter(([, value]) => value !== "" && value !== null && value !== undefined)
  .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value instanceof Node || Array.isArray(value) ? value : plain(value)))));

const MARKS = {
  running: "●", ready: "●", complete: "✓", successful: "✓", done: "✓", paused: "◌", passing: "✓", healthy: "✓", pending: "○", blocked: "◌", progressing: "◐",
  waiting: "◌", failed: "✗", lost: "✗", down: "✗", unhealthy: "✗", critical: "✗", dead: "■", stopped: "■", cancelled: "■", unknown: "?", disconnected: "?",
};
const TONES = {
  running: "good", ready: "good", complete: "good", successful: "good", done: "good", paused: "warn", passing: "good", healthy: "good", failed: "bad", lost: "bad",
  down: "bad", unhealthy: "bad", critical: "bad", pending: "warn", blocked: "warn", waiting: "warn", progressing: "warn", unknown: "warn", disconnected: "warn",
};

/** A state by a sign, a colour and its word. @param {string} status */
export function state(status) {
  const tone = /** @type {any} */ (TONES)[status] ?? "dim";
  return h(`span.state.${tone}`, {}, h("span", { "aria-hidden": "true" }, /** @type {any} */ (MARKS)[status] ?? "·"), ` ${plain(status)}`);
}

/** @param {string} kind @param {string} id @param {string} [text] */
export const link = (kind, id, text = id) => (id ? h("a", { href: address([kind, id]) }, plain(text)) : "");
/** @param {string} id */
export const job = (id) => link("job", id);
/** @param {string} id */
export const node = (id) => link("node", id);
/** @param {string} id @param {string} [name] */
export const alloc = (id, name) => link("alloc", id, name ? name : short(id));
/** @param {string} id */
export const evaluation = (id) => link("evaluation", id, short(id));

/** A share as a bar with its number. @param {number} part @param {number} whole @param {string} label */
export function bar(part, whole, label) {
  const share = whole ? Math.min(1, part / whole) : 0;
  return h("span.bar", {}, h("meter", { min: "0", max: "1", value: share.toFixed(3), "aria-label": label }), ` ${label}`);
}

/** Counts of allocations by state, as one line. @param {Record<string, number>} counts */
export function tally(counts) {
  const shown = ["running", "pending", "complete", "failed", "lost", "unknown"].filter((one) => counts[one]);
  return h("span.tally", {}, shown.map((one) => [h("span.part", {}, `${counts[one]} `, state(one)), " "]), shown.length ? "" : h("span.dim", {}, "none"));
}

/** Say something above the page until it is closed or another page is shown. @param {string} text empty: nothing */
export function notice(text) {
  const box = /** @type {HTMLElement} */ (document.getElementById("notice"));
  show(box, text && h("p", {}, h("span.fault", {}, plain(text)), " ", h("button", { type: "button", onclick: () => notice("") }, "Close")));
}

/** Do something that may be refused; why is said. @param {() => Promise<any>} perform */
export async function attempt(perform) {
  notice("");
  try {
    await perform();
  } catch (err) {
    notice(err instanceof Fault || err instanceof SyntaxError ? err.message : String(err));
  }
}

/** A button that asks, then changes something. @param {string} title @param {string} question @param {() => Promise<any>} perform @param {string} [tone] */
export const act = (title, question, perform, tone = "") =>
  h(`button${tone && `.${tone}`}`, { type: "button", onclick: () => confirm(question) && attempt(perform) }, title);

/** A field for a choice. @param {string} label @param {string} value @param {string[][]} choices value and text @param {(value: string) => void} choose */
export const choice = (label, value, choices, choose) => h("label", {}, `${label} `,
  h("select", { onchange: (/** @type {any} */ event) => choose(event.target.value) },
    choices.map(([name, text]) => h("option", { value: name, selected: name === value }, text))));

/** How far the groups of a deployment have come. @param {Record<string, any>} groups @param {(ms: number) => string} clock */
export const progress = (groups, clock) => table("Progress", ["Group", "Healthy", { title: "Placed", number: true }, { title: "Unhealthy", number: true },
  "Canaries", "Next one healthy by"],
Object.entries(groups).map(([name, one]) => [plain(name), bar(one.healthy, one.desired, `${one.healthy} of ${one.desired}`), one.placed, one.unhealthy,
  one.canaries ? `${one.placed_canaries} of ${one.canaries} placed, ${one.promoted ? "promoted" : one.auto_promote ? "promoted when healthy" : "not promoted"}` : "none",
  one.require_by_ns ? clock(one.require_by_ns / 1e6) : ""]), "no groups");

/** Rows of an allocations table. @param {any[]} found */
export const allocRows = (found) => found.map((one) => [
  alloc(one.id, one.name), h("code", {}, short(one.id)), node(one.node), state(one.client_status), plain(one.desired_status), one.version,
  one.health ? state(one.health) : h("span.dim", {}, "not tracked"), one.create_seq, one.modify_seq]);
export const ALLOC_COLUMNS = ["Allocation", "ID", "Node", "Status", "Wanted", { title: "Version", number: true }, "Health",
  { title: "Created", number: true }, { title: "Changed", number: true }];

/** Lines of events in words. @param {any[]} lines @param {(ms: number) => string} clock */
export const eventTable = (lines, clock) => table("Events", [{ title: "Seq", number: true }, "Time", "Event", "Text"],
  lines.map((one) => [h("a", { href: address(["log"], {}, one.seq), title: "go to this moment" }, one.seq), clock(one.t_ms), h("code", {}, plain(one.type)), plain(one.text)]), "no events");
