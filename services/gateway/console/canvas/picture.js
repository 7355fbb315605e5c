// All nodes on one canvas: as cells, a square a node, or as a skyline, a column a node. Only what changed is drawn again.

import { Fleet, DOWN, DRAINING, INELIGIBLE, DISCONNECTED, NO_JOB, OTHER_JOB, VERSIONS } from "./columns.js";

// Seven steps of use, even to the eye and to the colour-blind; and twelve jobs.
const RAMP = { light: ["#e8ecf4", "#c6d4ea", "#97b9dd", "#5f9bc9", "#2f7ab0", "#155888", "#0b3357"],
  dark: ["#20262f", "#1f3a52", "#1f5578", "#27769d", "#45a0b8", "#86c9c4", "#e6efb5"] };
const JOBS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99", "#bbcc33", "#99ddff", "#ffaabb", "#77aadd"];
const STATES = { light: { ready: "#3d8f5f", draining: "#b7791f", ineligible: "#8a7a4a", down: "#b3261e", disconnected: "#8e44ad" },
  dark: { ready: "#4caf7a", draining: "#e0a84a", ineligible: "#a89a6a", down: "#ef6a60", disconnected: "#c58be0" } };
const BY_VERSION = { light: ["#e8ecf4", "#5f9bc9", "#c99a2e", "#b3261e"], dark: ["#20262f", "#45a0b8", "#e0a84a", "#ef6a60"] };
const OTHER = "#888888", MARK_MS = 1500;
/** What is drawn by use where it has no size of its own. */
const CATEGORIES = ["state", "job", "version"];

export class Picture {
  /** @param {HTMLCanvasElement} canvas @param {(row: number) => void} choose @param {(row: number) => void} point */
  constructor(canvas, choose, point) {
    this.canvas = canvas;
    /** @type {Fleet | null} */
    this.fleet = null;
    this.by = "use";
    this.sort = "name";
    this.form = "cells";
    /** @type {number[]} rows in the order in which they are drawn */
    this.rows = [];
    /** @type {Map<number, number>} row -> time until which it is marked as changed */
    this.marked = new Map();
    /** @type {Set<number>} rows to draw again; all where `isAll` */
    this.dirty = new Set();
    this.isAll = true;
    this.frame = 0;
    this.cell = 12;
    this.columns = 1;
    canvas.addEventListener("click", (event) => {
      const row = this.hit(event);
      if (row >= 0) choose(row);
    });
    canvas.addEventListener("mousemove", (event) => point(this.hit(event)));
    canvas.addEventListener("mouseleave", () => point(-1));
    new ResizeObserver(() => this.all()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.all());
  }

  /** @param {Fleet} fleet */
  take(fleet) {
    const isOther = !this.fleet || this.fleet.ids.length !== fleet.ids.length || this.fleet.ids.some((one, at) => one !== fleet.ids[at]);
    if (!isOther && this.fleet) this._markDifferences(this.fleet, fleet);
    this.fleet = fleet;
    if (isOther || this.rows.length !== fleet.ids.length) this.arrange();
    else this.all();
  }

  /** @param {Fleet} before @param {Fleet} after */
  _markDifferences(before, after) {
    const until = performance.now() + MARK_MS;
    for (const [name, column] of Object.entries(after.columns)) {
      const old = before.columns[name];
      for (let row = 0; row < column.length; row++) if (old[row] !== column[row]) this.marked.set(row, until);
    }
  }

  /** @param {number[][]} rows */
  change(rows) {
    if (!this.fleet) return;
    this.fleet.change(rows);
    const until = performance.now() + MARK_MS;
    for (const [row] of rows) {
      this.marked.set(row, until);
      this.dirty.add(row);
    }
    this.soon();
  }

  /** Sort anew. */
  arrange() {
    this.rows = this.fleet ? this.fleet.order(this.sort) : [];
    /** @type {Int32Array} row -> place */
    this.places = new Int32Array(this.rows.length);
    this.rows.forEach((row, place) => (/** @type {Int32Array} */ (this.places)[row] = place));
    this.all();
  }

  all() {
    this.isAll = true;
    this.soon();
  }

  soon() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  _measure() {
    const width = this.canvas.clientWidth, n = Math.max(1, this.rows.length);
    const limit = this.form === "skyline" ? 240 : 420;
    if (this.form === "skyline") {
      this.columns = n;
      this.cell = Math.max(1, Math.min(24, Math.floor(width / n)));
      this.height = 240;
    } else {
      this.cell = Math.max(4, Math.min(36, Math.floor(Math.sqrt((width * limit) / n))));
      this.columns = Math.max(1, Math.floor(width / this.cell));
      this.height = Math.ceil(n / this.columns) * this.cell;
    }
    const scale = devicePixelRatio || 1;
    const w = Math.round(width * scale), hgt = Math.round(this.height * scale);
    if (this.canvas.width !== w || this.canvas.height !== hgt) {
      this.canvas.width = w;
      this.canvas.height = hgt;
      this.canvas.style.height = `${this.height}px`;
    }
    return scale;
  }

  draw() {
    const pen = this.canvas.getContext("2d");
    if (!pen || !this.fleet || !this.canvas.clientWidth) return;
    const now = performance.now();
    for (const [row, until] of this.marked) {
      if (until <= now) {
        this.marked.delete(row);
        this.dirty.add(row);
      }
    }
    if (this.isAll) {
      const scale = this._measure();
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, this.canvas.clientWidth, /** @type {number} */ (this.height));
    }
    const { theme } = this;
    if (this.isAll && this.form === "skyline" && this.rows.length > this.canvas.clientWidth) this._drawDense(pen, theme);
    else for (const row of this.isAll ? this.rows : this.dirty) this._drawRow(pen, row, theme);
    this.isAll = false;
    this.dirty.clear();
    if (this.marked.size) setTimeout(() => this.soon(), 200);
    this.canvas.dataset.seq = String(this.fleet.seq);
    this.canvas.dataset.drawn = String(this.rows.length);
  }

  /** @returns {"light" | "dark"} */
  get theme() {
    return getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1" ? "dark" : "light";
  }

  /** What the height of a column means. */
  get sized() {
    return CATEGORIES.includes(this.by) ? "use" : this.by;
  }

  /** What the colours mean: colour and words. @returns {string[][]} */
  legend() {
    const { theme } = this;
    if (this.by === "state") return Object.entries(STATES[theme]).map(([name, colour]) => [colour, name]);
    if (this.by === "version") return VERSIONS.map((name, nth) => [BY_VERSION[theme][nth], name]);
    if (this.by === "job") return [...(this.fleet?.jobs ?? []).map((name, nth) => [JOBS[nth % JOBS.length], name]), [OTHER, "other jobs"], [RAMP[theme][0], "none"]];
    return RAMP[theme].map((colour, nth) => [colour, nth ? `up to ${Math.round((100 * nth) / 6)} %` : "unused"]);
  }

  /** @param {number} row @param {"light" | "dark"} theme */
  colour(row, theme) {
    const fleet = /** @type {Fleet} */ (this.fleet);
    if (this.by === "state") return STATES[theme][/** @type {"ready"} */ (fleet.status(row))];
    if (this.by === "version") return BY_VERSION[theme][fleet.columns.version[row]];
    if (this.by === "job") {
      const number = fleet.columns.job[row];
      if (number === NO_JOB) return RAMP[theme][0];
      return number === OTHER_JOB ? OTHER : JOBS[number % JOBS.length];
    }
    return RAMP[theme][Math.min(6, Math.ceil(fleet.share(row, this.by) * 6))];
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} row @param {"light" | "dark"} theme */
  _drawRow(pen, row, theme) {
    const fleet = /** @type {Fleet} */ (this.fleet), place = /** @type {Int32Array} */ (this.places)[row];
    const flags = fleet.columns.flags[row], isMarked = this.marked.has(row), ink = theme === "dark" ? "#ffffff" : "#111111";
    if (this.form === "skyline") {
      const x = place * this.cell, width = Math.max(1, this.cell - (this.cell > 3 ? 1 : 0)), height = /** @type {number} */ (this.height);
      const top = Math.round(height * (1 - fleet.share(row, this.sized)));
      if (!this.isAll) pen.clearRect(x, 0, this.cell, height);
      pen.fillStyle = RAMP[theme][0];
      pen.fillRect(x, 0, width, height);
      pen.fillStyle = this.colour(row, theme);
      pen.fillRect(x, top, width, height - top);
      if (flags & (DOWN | DISCONNECTED)) this._hatch(pen, x, 0, width, height, STATES[theme].down);
      if (isMarked) {
        pen.fillStyle = ink;
        pen.fillRect(x, Math.max(0, top - 3), width, 3);
      }
      return;
    }
    const x = (place % this.columns) * this.cell, y = Math.floor(place / this.columns) * this.cell, side = this.cell - (this.cell > 5 ? 1 : 0);
    // A whole picture begins on an empty canvas.
    if (!this.isAll) pen.clearRect(x, y, this.cell, this.cell);
    pen.fillStyle = this.colour(row, theme);
    pen.fillRect(x, y, side, side);
    if (flags & (DOWN | DISCONNECTED)) this._hatch(pen, x, y, side, side, STATES[theme].down);
    else if (flags & (DRAINING | INELIGIBLE)) {
      pen.fillStyle = STATES[theme].draining;
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x + side * 0.5, y);
      pen.lineTo(x, y + side * 0.5);
      pen.fill();
    }
    if (isMarked) {
      pen.strokeStyle = ink;
      pen.lineWidth = this.cell > 10 ? 2 : 1;
      pen.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    }
  }

  /** More nodes than pixels: each pixel column is the mean of its nodes, with a line at the highest.
   * @param {CanvasRenderingContext2D} pen @param {"light" | "dark"} theme */
  _drawDense(pen, theme) {
    const fleet = /** @type {Fleet} */ (this.fleet), width = this.canvas.clientWidth, height = /** @type {number} */ (this.height);
    const by = this.sized;
    for (let x = 0; x < width; x++) {
      const from = Math.floor((x * this.rows.length) / width), to = Math.max(from + 1, Math.floor(((x + 1) * this.rows.length) / width));
      let sum = 0, most = 0;
      for (let place = from; place < to; place++) {
        const share = fleet.share(this.rows[place], by);
        sum += share;
        most = Math.max(most, share);
      }
      const top = Math.round(height * (1 - sum / (to - from)));
      pen.fillStyle = this.colour(this.rows[from], theme);
      pen.fillRect(x, top, 1, height - top);
      pen.fillRect(x, Math.round(height * (1 - most)), 1, 1);
    }
  }

  /** Colour alone says nothing: what is down is crossed as well.
   * @param {CanvasRenderingContext2D} pen @param {number} x @param {number} y @param {number} width @param {number} height @param {string} colour */
  _hatch(pen, x, y, width, height, colour) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width, height);
    pen.clip();
    pen.strokeStyle = colour;
    pen.lineWidth = Math.max(1, Math.min(width, 12) / 6);
    pen.beginPath();
    const step = Math.max(3, Math.min(8, width / 2));
    for (let at = -height; at < width; at += step) {
      pen.moveTo(x + at, y + height);
      pen.lineTo(x + at + height, y);
    }
    pen.stroke();
    pen.restore();
  }

  /** Row under the mouse; -1: none. @param {MouseEvent} event */
  hit(event) {
    const column = Math.floor(event.offsetX / this.cell), line = this.form === "skyline" ? 0 : Math.floor(event.offsetY / this.cell);
    if (this.form === "skyline" && this.rows.length > this.canvas.clientWidth) {
      return this.rows[Math.floor((event.offsetX * this.rows.length) / this.canvas.clientWidth)] ?? -1;
    }
    if (column >= this.columns) return -1;
    return this.rows[line * this.columns + column] ?? -1;
  }
}
