// The items of one variable. Nothing is asked of the keeper before a button is pressed; what it answered, and what is
// typed, is in one object alone, which is emptied when its page is left. No value is in an address or in any storage.

import { h, plain, show } from "../lib/dom.js";
import { Fault, json, request, send } from "../lib/api.js";
import { address, here } from "../lib/router.js";
import { table } from "../lib/parts.js";

const MASK = "••••••••";
/** @typedef {{revision: number, items: Record<string, string>}} Read */
/** @typedef {{key: string, name: string, value: string, isMasked: boolean}} Row */

/** @type {ItemsBox | null} */
let kept = null;
/** Boxes so far: no two have one key, or an empty one would be left on the page in place of the next. */
let made = 0;

/** The box of a path on its page; it stays the same one until the page is left. @param {string} path @param {any} line of the log; null: it has none */
export function itemsOf(path, line) {
  if (kept?.path !== path || kept.isOver) {
    kept?.forget();
    kept = new ItemsBox(path);
  }
  kept.know(line);
  return kept.root;
}

class ItemsBox {
  /** @param {string} path */
  constructor(path) {
    this.path = path;
    this.root = h("div", { "data-keep": `items ${(made += 1)}` });
    this.url = `/v1/var/${path.split("/").map(encodeURIComponent).join("/")}`;
    this.revision = 0;
    this.isLocked = false;
    /** @type {Read | null} */
    this.read = null;
    /** names whose values are shown. @type {Set<string>} */
    this.shown = new Set();
    /** what is being typed, and the revision that it would replace. @type {Row[] | null} */
    this.draft = null;
    this.base = 0;
    /** what the path has in place of `base`. @type {Read | null} */
    this.present = null;
    this.said = "";
    this.isBusy = false;
    this.isOver = false;
    this._rows = 0;
    const leaving = (this._leaving = new AbortController());
    const look = () => (here().path[1] !== path || here().at ? this.forget() : undefined);
    addEventListener("hashchange", look, { signal: leaving.signal });
    addEventListener("pagehide", () => this.forget(), { signal: leaving.signal });
    // Signing out, and a page that says what is wrong, change no address.
    this._watch = new MutationObserver(() => !this.root.isConnected && this.forget());
    this._watch.observe(/** @type {HTMLElement} */ (document.getElementById("main")), { childList: true, subtree: true });
  }

  /** Drop all that was read and typed. */
  forget() {
    this.isOver = true;
    this.read = this.draft = this.present = null;
    this.shown.clear();
    this._leaving.abort();
    this._watch.disconnect();
    this.root.replaceChildren();
    if (kept === this) kept = null;
  }

  /** Take what the log has of the path now. @param {any} line */
  know(line) {
    this.revision = line?.revision ?? 0;
    this.isLocked = line?.lock_seq > 0;
    this.draw();
  }

  draw() {
    show(this.root, this.draft ? this._editor(this.draft) : this._reader(), h("p", { role: "status" }, plain(this.said)));
  }

  // ---- reading ----

  _reader() {
    const { read, revision } = this;
    const change = (/** @type {string} */ title, /** @type {() => void} */ act, tone = "") =>
      h(`button${tone}`, { type: "button", disabled: this.isBusy || this.isLocked, onclick: act }, title);
    return [
      h("p.actions", {},
        revision > 0 && !read && h("button", { type: "button", disabled: this.isBusy, onclick: () => this._do(() => this._fetch()) }, "Read items"),
        read && h("button", { type: "button", onclick: () => this._hide() }, "Hide items"),
        change(revision ? "Change" : "Store items", () => this._do(() => this._edit())),
        revision > 0 && change("Purge", () => this._purge(), ".danger")),
      read && read.revision !== revision && h("p.fault", {}, revision ? `These are of revision ${read.revision}; revision ${revision} is stored now.` : "It is erased by now."),
      read ? this._items("Items", read.items)
        : h("p.dim", {}, revision ? "Names and values are encrypted, and are asked of the keeper when you press the button."
          : "Stored only if the path has no items then."),
    ];
  }

  /** @param {string} title @param {Record<string, string>} items */
  _items(title, items) {
    const of = (/** @type {string} */ name) => h("span.hidden", {}, ` the value of ${plain(name)}`);
    return table(title, ["Name", "Value", "Actions"], Object.keys(items).sort().map((name) => [
      h("code", {}, plain(name)),
      this.shown.has(name) ? h("pre.value", {}, plain(items[name])) : h("span", {}, h("span", { "aria-hidden": "true" }, MASK), h("span.hidden", {}, "hidden")),
      h("span.actions", {},
        h("button", { type: "button", onclick: () => this._toggle(name) }, this.shown.has(name) ? "Hide" : "Show", of(name)),
        h("button", { type: "button", onclick: () => this._copy(name, items[name]) }, "Copy", of(name)))]), "no items");
  }

  /** @param {string} name */
  _toggle(name) {
    if (!this.shown.delete(name)) this.shown.add(name);
    this.draw();
  }

  _hide() {
    this.read = null;
    this.shown.clear();
    this.said = "";
    this.draw();
  }

  /** @param {string} name @param {string} value */
  async _copy(name, value) {
    try {
      await navigator.clipboard.writeText(value);
      this.said = `${name} is copied; the clipboard keeps it.`;
    } catch {
      this.said = "The browser lets a page copy over https or on this machine only.";
    }
    if (!this.isOver) this.draw();
  }

  async _fetch() {
    const found = await json(this.url, {}, { cache: "no-store", signal: this._leaving.signal });
    this.read = { revision: found.ModifyIndex, items: found.Items };
  }

  // ---- storing ----

  async _edit() {
    if (this.revision && this.read?.revision !== this.revision) await this._fetch();
    const read = this.revision ? this.read : null;
    this.base = read?.revision ?? 0;
    this.draft = Object.entries(read?.items ?? {}).sort().map(([name, value]) => this._row(name, value, true));
    if (!this.draft.length) this.draft.push(this._row("", "", false));
    this.shown.clear();
  }

  /** @param {string} name @param {string} value @param {boolean} isMasked @returns {Row} */
  _row(name, value, isMasked) {
    this._rows += 1;
    return { key: `row-${this._rows}`, name, value, isMasked };
  }

  /** @param {Row[]} draft */
  _editor(draft) {
    const { present } = this;
    const store = (/** @type {any} */ event) => {
      event.preventDefault();
      this._do(() => this._store());
    };
    return h("form", { onsubmit: store, autocomplete: "off" },
      h("p.dim", {}, this.base ? `What is stored replaces revision ${this.base}, and nothing newer.` : "Stored only if the path has no items then.",
        " Items that are not listed here are removed."),
      draft.map((row, nth) => this._field(row, nth + 1)),
      present && h("div.alarms", { role: "alert" },
        h("p", {}, present.revision ? `Revision ${present.revision} was stored meanwhile. What you typed is kept.` : "The variable was erased meanwhile. What you typed is kept."),
        present.revision > 0 && this._items("Present items", present.items)),
      h("p.actions", {},
        h("button", { type: "button", onclick: () => this._add() }, "Add item"),
        present ? h("button.danger", { type: "submit", disabled: this.isBusy }, present.revision ? `Store over revision ${present.revision}` : "Store anew")
          : h("button", { type: "submit", disabled: this.isBusy }, "Store"),
        h("button", { type: "button", onclick: () => this._cancel() }, "Discard what was typed")));
  }

  /** @param {Row} row @param {number} nth */
  _field(row, nth) {
    const quiet = { autocomplete: "off", autocapitalize: "off", spellcheck: "false" };
    return h("p.choices", { "data-key": `${row.key} ${row.isMasked}` },
      h("label", {}, `Name ${nth} `, h("input", { ...quiet, value: row.name, required: true, oninput: (/** @type {any} */ event) => (row.name = event.target.value) })),
      row.isMasked ? [h("span", { "aria-hidden": "true" }, MASK), h("button", { type: "button", onclick: () => this._unmask(row) }, `Show and change value ${nth}`)]
        : h("label.wide", {}, `Value ${nth} `, h("textarea.item", { ...quiet, rows: Math.min(row.value.split("\n").length, 12), value: row.value, oninput: (/** @type {any} */ event) => (row.value = event.target.value) })),
      h("button", { type: "button", onclick: () => this._remove(row) }, `Remove item ${nth}`));
  }

  /** @param {Row} row */
  _unmask(row) {
    row.isMasked = false;
    this.draw();
  }

  _add() {
    this.draft?.push(this._row("", "", false));
    this.draw();
  }

  /** @param {Row} row */
  _remove(row) {
    this.draft = this.draft?.filter((one) => one !== row) ?? null;
    this.draw();
  }

  _cancel() {
    this.draft = this.present = null;
    this._hide();
  }

  async _store() {
    const draft = this.draft ?? [], names = draft.map((row) => row.name);
    if (!names.length) throw new Fault(0, "A variable has at least one item; Purge erases it.");
    if (new Set(names).size !== names.length) throw new Fault(0, "Two items have the same name.");
    if (this.present) [this.base, this.present] = [this.present.revision, null];
    try {
      const stored = await send(`${this.url}?cas=${this.base}`, { Items: Object.fromEntries(draft.map((row) => [row.name, row.value])) });
      this.draft = this.read = null;
      this.shown.clear();
      this.said = `Stored as revision ${stored.ModifyIndex}.`;
    } catch (err) {
      const found = err instanceof Fault && err.status === 409 ? presentOf(err.message) : null;
      if (!found) throw err;
      this.shown.clear();
      this.present = found;
    }
  }

  // ---- erasing ----

  _purge() {
    const { path, revision } = this;
    const dialog = /** @type {HTMLDialogElement} */ (h("dialog", { "aria-labelledby": "purge-title" }));
    const button = h("button.danger", { type: "submit", disabled: true }, "Purge");
    const isSame = (/** @type {any} */ event) => button.toggleAttribute("disabled", event.target.value !== path);
    const erase = (/** @type {any} */ event) => {
      event.preventDefault();
      dialog.close();
      this._do(async () => {
        await request(this.url, { cas: revision }, { method: "DELETE" });
        location.hash = address(["variables"]);
      });
    };
    show(dialog, h("h2", { id: "purge-title" }, "Purge ", plain(path)),
      h("p", {}, `Erases revision ${revision}, all its items, and the key that they are encrypted with: no copy can be read any more.`),
      h("form", { onsubmit: erase },
        h("label", {}, "Type the path to confirm ", h("input", { autocomplete: "off", spellcheck: "false", oninput: isSame })),
        h("p.actions", {}, button, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"))));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  // ---- asking ----

  /** Do one thing after the other, and say what failed. @param {() => Promise<void>} work */
  async _do(work) {
    if (this.isBusy) return;
    [this.isBusy, this.said] = [true, ""];
    this.draw();
    try {
      await work();
    } catch (err) {
      // Of a conflict the message is the variable, with its items.
      const isConflict = err instanceof Fault && err.status === 409 && presentOf(err.message) !== null;
      this.said = isConflict ? "It was changed meanwhile; nothing was done." : err instanceof Error ? err.message : String(err);
    }
    this.isBusy = false;
    if (this.isOver) this.forget();
    else this.draw();
  }
}

/** The variable that stands in a 409; null: it is a text. @param {string} text @returns {Read | null} */
function presentOf(text) {
  try {
    const found = JSON.parse(text);
    return { revision: found.ModifyIndex, items: found.Items ?? {} };
  } catch {
    return null;
  }
}
