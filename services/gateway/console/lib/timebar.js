// The time bar: from the first record of the log to the last. A slider over seqs with the log's time beside it, marks
// above it, steps by record, plan and mark, and play at the log's pace or a multiple of it.

import { h, plain, show } from "./dom.js";
import { Fault, json } from "./api.js";
import { clock } from "./format.js";
import { times } from "./live.js";
import { attempt } from "./parts.js";
import { address, here, moveTo } from "./router.js";

const COLOURS = { node_lost: "--bad", drain: "--warn", deployment: "--accent", job: "--good", stop: "--dim", node: "--dim" };
/** Time between two pictures of a playback, and the longest silence in it, ms. */
const PLAY_MS = 350, SILENCE_MS = 1000;
/** Speeds: a multiple of log time, or records at a time where negative. */
const SPEEDS = [["1", "1×"], ["10", "10×"], ["100", "100×"], ["1000", "1000×"], ["-1", "each record"], ["-10", "10 records"], ["-100", "100 records"]];
const MARKS_LISTED = 200;

export class TimeBar {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.first = 1;
    this.last = 0;
    this.lastMs = 0;
    /** @type {Array<[number, number]>} */
    this.points = [];
    /** @type {Array<{seq: number, t_ms: number, kind: string, text: string}>} */
    this.marks = [];
    this.marksFirst = 1;
    /** seq that changes are compared with; 0: none */
    this.pinned = 0;
    this.playing = 0;
    this.speed = "10";
    /** log time that the playback has reached, ms. */
    this.playedMs = 0;
    times.timeOf = (seq) => this.timeOf(seq);
    this.canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { "data-keep": "marks", height: "12", "aria-hidden": "true" }));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  async load() {
    try {
      const found = await json("/v1/caravan/time");
      this.first = found.first_seq;
      this.points = found.points;
      this.marks = found.marks;
      this.marksFirst = found.marks_first_seq;
      this.grew(found.seq, found.t_ms);
    } catch (err) {
      if (!(err instanceof Fault)) throw err;
    }
  }

  hide() {
    this.stop();
    show(this.root);
  }

  /** @param {number} seq @param {number} t_ms */
  grew(seq, t_ms) {
    this.last = Math.max(this.last, seq);
    this.lastMs = t_ms || this.lastMs;
    const newest = this.points.at(-1);
    if (t_ms && (!newest || newest[0] < seq)) this.points.push([seq, t_ms]);
    this.moved();
  }

  get at() {
    return here().at || this.last;
  }

  /** Log time of a seq, between the two points around it. @param {number} seq */
  timeOf(seq) {
    let low = 0, high = this.points.length - 1;
    if (high < 0 || seq < this.points[0][0]) return 0;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.points[middle][0] <= seq) low = middle;
      else high = middle - 1;
    }
    const [seqA, msA] = this.points[low], [seqB, msB] = this.points[low + 1] ?? this.points[low];
    return seqB === seqA ? msA : msA + ((msB - msA) * (seq - seqA)) / (seqB - seqA);
  }

  /** The last seq written by a log time, as far as the points tell. @param {number} ms */
  seqOf(ms) {
    let low = 0, high = this.points.length - 1;
    if (high < 0 || ms < this.points[0][1]) return this.first;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.points[middle][1] <= ms) low = middle;
      else high = middle - 1;
    }
    const [seqA, msA] = this.points[low], [seqB, msB] = this.points[low + 1] ?? this.points[low];
    return msB === msA ? seqA : Math.floor(seqA + ((seqB - seqA) * (ms - msA)) / (msB - msA));
  }

  /** @param {number} seq */
  go(seq) {
    const wanted = Math.max(this.first, Math.min(seq, this.last));
    moveTo(wanted >= this.last ? 0 : wanted);
  }

  /** @param {number} by records */
  step(by) {
    this.go(this.at + by);
  }

  /** The next or the last record with a plan. @param {number} by */
  async stepPlan(by) {
    await attempt(async () => {
      const { seq } = await json("/v1/caravan/step", { from: this.at, by });
      this.go(seq || (by > 0 ? this.last : this.first));
    });
  }

  /** The next or the last moment with a mark. @param {number} direction */
  jump(direction) {
    const seqs = this.marks.map((one) => one.seq);
    const found = direction > 0 ? seqs.find((one) => one > this.at) : seqs.reverse().find((one) => one < this.at);
    if (found !== undefined) this.go(found);
    else this.go(direction > 0 ? this.last : this.first);
  }

  now() {
    this.stop();
    moveTo(0);
  }

  play() {
    if (this.playing) return this.stop();
    if (!here().at) this.go(this.first);
    this.playedMs = this.timeOf(this.at);
    this.playing = window.setInterval(() => (here().at ? this._tick() : this.stop()), PLAY_MS);
    this.moved();
  }

  /** One picture of the playback: a silence of the log is cut short. */
  _tick() {
    const speed = Number(this.speed), next = this.at + 1;
    if (speed < 0) return this.go(this.at - speed);
    this.playedMs += PLAY_MS * speed;
    const nextMs = this.timeOf(next);
    if (nextMs > this.playedMs + SILENCE_MS * speed) this.playedMs = nextMs;
    if (nextMs <= this.playedMs) this.go(Math.max(next, this.seqOf(this.playedMs)));
  }

  stop() {
    clearInterval(this.playing);
    this.playing = 0;
    this.moved();
  }

  pin() {
    this.pinned = this.pinned ? 0 : this.at;
    this.moved();
  }

  moved() {
    if (!this.last) return;
    const { at } = here();
    const ms = at ? this.timeOf(at) : this.lastMs;
    const text = `${at ? "past" : "now"}, seq ${this.at}${ms ? `, ${clock(ms)}` : ""}`;
    const button = (/** @type {string} */ title, /** @type {string} */ sign, /** @type {() => void} */ act) =>
      h("button", { type: "button", "aria-label": title, title, onclick: act }, sign);
    show(this.root,
      h("div.steps", {},
        button("previous mark", "|◀", () => this.jump(-1)), button("previous plan", "◀◀", () => this.stepPlan(-1)),
        button("previous record", "◀", () => this.step(-1)),
        button(this.playing ? "stop playing" : "play the log", this.playing ? "Stop" : "Play", () => this.play()),
        h("select", { "aria-label": "speed of playing", title: "speed of playing", onchange: (/** @type {any} */ event) => (this.speed = event.target.value) },
          SPEEDS.map(([value, text]) => h("option", { value, selected: value === this.speed }, text))),
        button("next record", "▶", () => this.step(1)), button("next plan", "▶▶", () => this.stepPlan(1)),
        button("next mark", "▶|", () => this.jump(1))),
      h("div.track", {}, this.canvas, this._slider(text)),
      h("div.moment", {}, h("output", { "aria-live": "off", class: at ? "past" : "" }, text),
        h("span", {},
          h("button", { type: "button", onclick: () => this.now(), disabled: !at }, "Now"), " ",
          h("button", { type: "button", onclick: () => this.list(), title: "list the marks of the bar" }, "Marks"), " ",
          h("a.button", { href: address(["what-if"], {}, here().at), title: "fork from this moment: what if something was different" }, "Fork"), " ",
          h("button", { type: "button", onclick: () => this.pin(), title: "compare other moments with this one" },
            this.pinned ? `Unpin ${this.pinned}` : "Pin"), " ",
          this.pinned > 0 && this.pinned !== this.at && h("a.button", {
            href: `#/changes?from=${Math.min(this.pinned, this.at)}&to=${Math.max(this.pinned, this.at)}`,
          }, "Compare"))));
    const slider = /** @type {HTMLInputElement} */ (this.root.querySelector("input"));
    if (document.activeElement !== slider || Number(slider.value) !== this.at) slider.value = String(this.at);
    this.draw();
  }

  /** Show the newest marks as links to their moments. */
  list() {
    const dialog = /** @type {HTMLDialogElement} */ (h("dialog", { "aria-labelledby": "marks-title" }));
    const shown = this.marks.slice(-MARKS_LISTED).reverse();
    show(dialog, h("h2", { id: "marks-title" }, "Marks"),
      h("ul.marks", { tabindex: "0" }, shown.map((one) => h("li", {}, h("button", {
        type: "button", onclick: () => {
          dialog.close();
          this.go(one.seq);
        },
      }, String(one.seq)), ` ${clock(one.t_ms)} `, plain(one.text)))),
      shown.length < this.marks.length && h("p.dim", {}, `the newest ${shown.length} of ${this.marks.length}`),
      !shown.length && h("p.dim", {}, "no marks"),
      this.marksFirst > 1 && h("p.dim", {}, `Records before seq ${this.marksFirst} have no marks.`),
      h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  /** @param {string} text */
  _slider(text) {
    return h("input", {
      type: "range", min: String(this.first), max: String(this.last), step: "1", "aria-label": "moment of the log", "aria-valuetext": text,
      oninput: (/** @type {any} */ event) => {
        const wanted = Number(event.target.value);
        this.stop();
        this.go(wanted);
      },
    });
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const scale = devicePixelRatio || 1;
    this.canvas.width = width * scale;
    this.canvas.height = 12 * scale;
    const pen = this.canvas.getContext("2d");
    if (!pen) return;
    pen.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const span = Math.max(1, this.last - this.first);
    const x = (/** @type {number} */ seq) => 8 + ((width - 16) * (seq - this.first)) / span;
    for (const one of this.marks) {
      pen.fillStyle = style.getPropertyValue(/** @type {any} */ (COLOURS)[one.kind] ?? "--dim");
      pen.fillRect(Math.round(x(one.seq)) - 1, one.kind === "node_lost" ? 0 : 4, 2, 12);
    }
    if (this.pinned) {
      pen.fillStyle = style.getPropertyValue("--text");
      pen.fillRect(Math.round(x(this.pinned)) - 1, 0, 3, 12);
    }
  }
}
