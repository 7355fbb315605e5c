// The fleet's columns as the gateway sends them (shared/query/fleet_columns.py), on typed arrays.

export const DOWN = 1, DRAINING = 2, INELIGIBLE = 4, DISCONNECTED = 8;
export const OTHER_JOB = 254, NO_JOB = 255;
const WHOLE = 65535;
const KINDS = { uint8: Uint8Array, uint16: Uint16Array };
/** Order in a changed row, behind its number. */
const ORDER = ["cpu", "memory", "disk", "count", "flags", "job", "version"];
export const VERSIONS = ["nothing runs", "present versions", "some older", "older versions"];

export class Fleet {
  /** @param {ArrayBuffer} raw */
  constructor(raw) {
    const size = new DataView(raw).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 4, size)));
    /** @type {number} */
    this.seq = header.seq;
    /** @type {string[]} */
    this.ids = header.nodes;
    /** @type {string[]} */
    this.datacenters = header.datacenters;
    /** @type {string[]} */
    this.classes = header.classes;
    /** @type {string[]} */
    this.jobs = header.jobs;
    /** @type {Record<string, Uint8Array | Uint16Array>} */
    this.columns = {};
    let at = 4 + size;
    for (const [name, kind] of header.columns) {
      at += (8 - (at % 8)) % 8;
      const made = new (/** @type {any} */ (KINDS)[kind])(raw, at, this.ids.length);
      this.columns[name] = made;
      at += made.byteLength;
    }
  }

  /** Take over changed rows. @param {number[][]} rows */
  change(rows) {
    for (const [row, ...values] of rows) ORDER.forEach((name, at) => (this.columns[name][row] = values[at]));
  }

  /** Use of a resource, or of the scarcest one: 0 to 1. @param {number} row @param {string} by */
  share(row, by) {
    const { cpu, memory, disk } = this.columns;
    if (by === "use") return Math.max(cpu[row], memory[row], disk[row]) / WHOLE;
    return this.columns[by][row] / WHOLE;
  }

  /** @param {number} row */
  status(row) {
    const flags = this.columns.flags[row];
    if (flags & DOWN) return "down";
    if (flags & DISCONNECTED) return "disconnected";
    if (flags & DRAINING) return "draining";
    return flags & INELIGIBLE ? "ineligible" : "ready";
  }

  /** @param {number} row */
  job(row) {
    const number = this.columns.job[row];
    return number === NO_JOB ? "none" : number === OTHER_JOB ? "other jobs" : this.jobs[number] ?? "other jobs";
  }

  /** Rows in an order that changes only when it is asked for. @param {string} by name, use, cpu, memory, disk, count, state, version, job */
  order(by) {
    const rows = Array.from({ length: this.ids.length }, (_, row) => row);
    if (by === "name") return rows;
    const { count, flags, job, version } = this.columns;
    const value = by === "count" ? (/** @type {number} */ row) => -count[row]
      : by === "state" ? (/** @type {number} */ row) => -flags[row]
        : by === "version" ? (/** @type {number} */ row) => -version[row]
        : by === "job" ? (/** @type {number} */ row) => job[row] : (/** @type {number} */ row) => -this.share(row, by);
    const keys = Float64Array.from(rows, value);
    return rows.sort((a, b) => keys[a] - keys[b] || a - b);
  }
}
