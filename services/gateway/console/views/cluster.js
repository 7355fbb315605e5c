// The cluster: all nodes on a canvas, counts, what waits, the newest events. Live, or at any past seq.

import { h, plain } from "../lib/dom.js";
import { Fault, json, query, request } from "../lib/api.js";
import { clock, number, percent } from "../lib/format.js";
import { address, here } from "../lib/router.js";
import { live } from "../lib/live.js";
import { choice, eventTable, node, section, state, table, tally } from "../lib/parts.js";
import { Fleet, VERSIONS } from "../canvas/columns.js";
import { Picture } from "../canvas/picture.js";

const BY = [["use", "scarcest resource"], ["cpu", "CPU"], ["memory", "memory"], ["disk", "disk"], ["job", "largest job"], ["version", "version"], ["state", "state"]];
const SORTS = [["name", "name"], ["use", "use"], ["cpu", "CPU"], ["memory", "memory"], ["count", "allocations"], ["job", "job"], ["version", "version"], ["state", "state"]];
const FORMS = [["cells", "cells"], ["skyline", "skyline"]];
const TABLE_ROWS = 50, EVENTS = 25;

/** @type {{picture: Picture, box: HTMLElement, pointed: HTMLElement, at: number, isCurrent: boolean, missed: number} | null} */
let kept = null;

function made() {
  if (kept) return kept;
  const canvas = /** @type {HTMLCanvasElement} */ (h("canvas.fleet", { role: "img", "aria-label": "all nodes; the table below shows the first 50" }));
  const pointed = h("p.pointed", { "aria-hidden": "true" }, "\u00a0");
  const picture = new Picture(canvas, (row) => {
    location.hash = address(["node", picture.fleet?.ids[row] ?? ""]);
  }, (row) => {
    pointed.textContent = row < 0 || !picture.fleet ? "\u00a0" : describe(picture.fleet, row);
  });
  const one = { picture, box: h("div", { "data-keep": "fleet" }, canvas, pointed), pointed, at: -1, isCurrent: false, missed: 0 };
  live.hear((change) => {
    if (here().at) return;
    if (change.fleet_is_new) one.isCurrent = false;
    if (!one.isCurrent) one.missed = change.seq;
    else if (change.rows) {
      picture.change(change.rows);
      if (picture.fleet) picture.fleet.seq = change.seq;
    }
  });
  kept = one;
  return one;
}

/** @param {Fleet} fleet @param {number} row */
function describe(fleet, row) {
  const { cpu, memory, disk, count } = fleet.columns;
  return `${fleet.ids[row]}: ${fleet.status(row)}, CPU ${percent(cpu[row], 65535)}, memory ${percent(memory[row], 65535)}, `
    + `disk ${percent(disk[row], 65535)}, ${number(count[row])} allocations, ${fleet.job(row)}`;
}

/** What the colours mean. @param {Picture} picture */
function legend(picture) {
  const known = picture.legend();
  const items = known.map(([colour, text]) => {
    const swatch = h("span.swatch", { "aria-hidden": "true" });
    swatch.style.backgroundColor = colour;
    return h("li", {}, swatch, plain(text));
  });
  return h("ul.legend", { "data-keep": `legend ${known.flat().join(" ")}`, "aria-label": "Colours" }, items);
}

/** The node whose scarcest resource is used most; -1: there is no node. @param {Fleet} fleet */
function fullest(fleet) {
  let best = -1;
  for (let row = 0; row < fleet.ids.length; row++) if (best < 0 || fleet.share(row, "use") > fleet.share(best, "use")) best = row;
  return best;
}

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function cluster({ at }, signal) {
  const one = made(), { picture } = one;
  const isOther = one.at !== at || (!at && !one.isCurrent);
  // The picture is drawn as soon as it is there, whatever else the page waits for.
  const drawn = async () => {
    if (!isOther) return;
    const raw = await (await request("/v1/caravan/fleet", { at }, { signal })).arrayBuffer();
    one.at = at;
    picture.take(new Fleet(raw));
    // What changed while the columns were on their way is asked for again.
    one.isCurrent = one.missed <= /** @type {Fleet} */ (picture.fleet).seq;
  };
  // Asked for first: all four wait for one state.
  const [, found, waiting, past] = await Promise.all([
    drawn(), query("cluster", {}, at, signal), query("waiting", { limit: 10 }, at, signal),
    at ? json("/v1/caravan/events", { to: at, limit: EVENTS }, { signal }) : null]);
  const fleet = /** @type {Fleet} */ (picture.fleet);
  const states = new Map();
  fleet.ids.forEach((_, row) => states.set(fleet.status(row), (states.get(fleet.status(row)) ?? 0) + 1));
  const redo = (/** @type {"by" | "sort" | "form"} */ what) => (/** @type {string} */ value) => {
    picture[what] = value;
    picture.arrange();
    dispatchEvent(new HashChangeEvent("hashchange"));
  };
  const full = fullest(fleet);
  const lines = at ? past.lines : live.lines.length >= EVENTS ? live.lines : recent();
  return [
    h("h1", {}, "Cluster"),
    found.alarms.length > 0 && h("ul.alarms", { role: "alert" }, found.alarms.map((/** @type {string} */ text) => h("li", {}, text))),
    h("ul.cards", {},
      card("Nodes", number(fleet.ids.length), [...states].map(([name, n]) => [h("span.part", {}, `${number(n)} `, state(name)), " "]),
        full >= 0 && h("span", {}, "fullest: ", node(fleet.ids[full]), ` ${percent(fleet.share(full, "use"), 1)}`)),
      card("Jobs", number(found.counts.jobs), h("a", { href: address(["jobs"]) }, "all jobs")),
      card("Allocations", number(Object.values(found.counts.allocations).reduce((/** @type {any} */ a, /** @type {any} */ b) => a + b, 0)), tally(found.counts.allocations)),
      card("Waiting groups", number(waiting.total), h("a", { href: address(["queue"]) }, "the queue"))),
    section("Nodes",
      h("p.choices", {}, choice("Colour by", picture.by, BY, redo("by")), choice("Sort by", picture.sort, SORTS, redo("sort")),
        choice("As", picture.form, FORMS, redo("form")),
        h("button", { type: "button", onclick: () => picture.arrange(), title: "sort again by the present values" }, "Sort")),
      one.box,
      legend(picture),
      h("p.dim", {}, "Hatched: down or disconnected. Notch: draining or ineligible. Frame: changed just now."),
      h("details", {}, h("summary", {}, `The same as a table (${Math.min(TABLE_ROWS, fleet.ids.length)} of ${number(fleet.ids.length)} nodes)`),
        table("Nodes", ["Node", "State", { title: "CPU", number: true }, { title: "Memory", number: true }, { title: "Disk", number: true },
          { title: "Allocations", number: true }, "Largest job", "Versions"],
        picture.rows.slice(0, TABLE_ROWS).map((row) => [node(fleet.ids[row]), state(fleet.status(row)), percent(fleet.columns.cpu[row], 65535),
          percent(fleet.columns.memory[row], 65535), percent(fleet.columns.disk[row], 65535), number(fleet.columns.count[row]), plain(fleet.job(row)), VERSIONS[fleet.columns.version[row]]]), "no nodes"))),
    section(at ? "Events up to this moment" : "Newest events", eventTable(lines.slice(-EVENTS).reverse(), clock)),
  ];
}

/** Events from before the feed began; the page is shown without them until they come. */
let older = { to: 0, lines: /** @type {any[]} */ ([]) };

function recent() {
  if (live.began && older.to !== live.began) {
    const asked = (older = { to: live.began, lines: [] });
    json("/v1/caravan/events", { to: asked.to, limit: EVENTS }).then((found) => {
      asked.lines = found.lines;
      dispatchEvent(new HashChangeEvent("hashchange"));
    }, (err) => {
      // Asked again with the next picture.
      if (older === asked) older = { to: 0, lines: [] };
      if (!(err instanceof Fault)) throw err;
    });
  }
  return [...older.lines, ...live.lines];
}

/** @param {string} title @param {string} value @param {...any} more */
const card = (title, value, ...more) => h("li", {}, h("span.title", {}, title), h("span.value", {}, value), more.map((one) => one && h("span.more", {}, one)));
