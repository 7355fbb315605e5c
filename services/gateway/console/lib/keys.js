// Keys, and the help that lists them: both from one table. And the dialog that goes to what is typed.

import { h, plain, show } from "./dom.js";
import { query, send } from "./api.js";
import { PAGES, address } from "./router.js";
import { short } from "./format.js";

/** @typedef {{key: string, text: string, act: (bar: import("./timebar.js").TimeBar) => void}} Key */

const goTo = (/** @type {string} */ page) => () => {
  location.hash = address([page]);
};
/** @type {Key[]} */
const KEYS = [
  { key: "/", text: "filter", act: () => /** @type {HTMLElement | null} */ (document.querySelector("main input[type=search]"))?.focus() },
  { key: ":", text: "go to a page, job, node, allocation, evaluation or deployment", act: () => openGoTo() },
  { key: ",", text: "previous record", act: (bar) => bar.step(-1) },
  { key: ".", text: "next record", act: (bar) => bar.step(1) },
  { key: "<", text: "previous plan", act: (bar) => bar.stepPlan(-1) },
  { key: ">", text: "next plan", act: (bar) => bar.stepPlan(1) },
  { key: "[", text: "previous mark", act: (bar) => bar.jump(-1) },
  { key: "]", text: "next mark", act: (bar) => bar.jump(1) },
  { key: "p", text: "play or stop", act: (bar) => bar.play() },
  { key: "n", text: "now", act: (bar) => bar.now() },
  { key: "m", text: "pin this moment, to compare with it", act: (bar) => bar.pin() },
  { key: "c", text: "cluster", act: goTo("cluster") },
  { key: "j", text: "jobs", act: goTo("jobs") },
  { key: "o", text: "nodes", act: goTo("nodes") },
  { key: "q", text: "queue", act: goTo("queue") },
  { key: "e", text: "evaluations", act: goTo("evaluations") },
  { key: "l", text: "log", act: goTo("log") },
  { key: "d", text: "changes between two moments", act: goTo("changes") },
  { key: "t", text: "allocation times", act: goTo("times") },
  { key: "w", text: "what if", act: goTo("what-if") },
  { key: "s", text: "services", act: goTo("services") },
  { key: "v", text: "variables", act: goTo("variables") },
  { key: "?", text: "this help", act: () => openHelp() },
];

/** @param {import("./timebar.js").TimeBar} bar */
export function startKeys(bar) {
  addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.altKey || event.metaKey || target.closest("input, textarea, select, [contenteditable], dialog")) return;
    const found = KEYS.find((one) => one.key === event.key);
    if (found) {
      event.preventDefault();
      found.act(bar);
    }
  });
}

export function openHelp() {
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog", { "aria-labelledby": "keys-title" }));
  show(dialog, h("h2", { id: "keys-title" }, "Keys"), h("dl", {}, KEYS.map((one) => h("div", {}, h("dt", {}, h("kbd", {}, one.key)), h("dd", {}, one.text)))),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

const FOUND_MAX = 20;

/** Pages and things whose name or id begins so: kind, id and text. @param {string} text @returns {Promise<string[][]>} */
async function search(text) {
  const pages = PAGES.filter((one) => one.startsWith(text)).map((one) => [one, "", one]);
  if (!text) return pages;
  const [jobs, nodes, ids] = await Promise.all([
    query("jobs", { id: text, limit: FOUND_MAX }, 0), query("nodes", { id: text, limit: FOUND_MAX }, 0),
    /^[0-9a-f-]{2,}$/.test(text) ? send("/v1/search", { Prefix: text, Context: "all" }) : { Matches: {} }]);
  const of = (/** @type {string} */ context, /** @type {string} */ kind) => (ids.Matches[context] ?? []).map((/** @type {string} */ id) => [kind, id, `${kind} ${short(id)}`]);
  return [...pages, ...jobs.jobs.map((/** @type {any} */ one) => ["job", one.id, `job ${one.id}`]), ...nodes.nodes.map((/** @type {any} */ one) => ["node", one.id, `node ${one.id}`]),
    ...of("allocs", "alloc"), ...of("evals", "evaluation"), ...of("deployment", "deployment")].slice(0, FOUND_MAX);
}

/** A field for the beginning of a name; the first match is taken by Enter. */
export function openGoTo() {
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog.go", { "aria-labelledby": "go-title" }));
  const list = h("ul.found", { "aria-live": "polite" });
  /** @type {string[][]} */
  let found = [];
  let asked = 0;
  const take = (/** @type {string[]} */ [kind, id]) => {
    dialog.close();
    location.hash = address(id ? [kind, id] : [kind]);
  };
  const look = async (/** @type {string} */ text) => {
    const nth = ++asked;
    /** @type {string[][]} */
    let matches = [];
    try {
      matches = await search(text.trim());
    } catch (err) {
      if (nth === asked) list.replaceChildren(h("li.fault", {}, plain(/** @type {Error} */ (err).message)));
      return;
    }
    // A slower answer to an older text is of no use.
    if (nth !== asked) return;
    found = matches;
    list.replaceChildren(...(found.length ? found.map((one) => h("li", {}, h("button", { type: "button", onclick: () => take(one) }, plain(one[2]))))
      : [h("li.dim", {}, "no match")]));
  };
  const field = /** @type {HTMLInputElement} */ (h("input", { id: "go-to", type: "search", autocomplete: "off", oninput: (/** @type {any} */ event) => look(event.target.value) }));
  const go = async (/** @type {Event} */ event) => {
    event.preventDefault();
    await look(field.value);
    if (found.length) take(found[0]);
  };
  show(dialog, h("h2", { id: "go-title" }, "Go to"), h("form", { onsubmit: go }, h("label", { for: "go-to" }, "Beginning of a name or id "), field), list,
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  look("");
}
