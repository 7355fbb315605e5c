// The live feed: one connection a tab. It begins again by itself, and views are asked anew then, so nothing is missed.

import { Fault, follow } from "./api.js";

/** @typedef {{seq: number, t_ms: number, lines?: any[], left_out?: number, rows?: number[][], fleet_is_new?: boolean, text?: string}} Change */

const LINES_MAX = 500;

class Live {
  constructor() {
    this.seq = 0;
    this.t_ms = 0;
    /** seq behind which this connection began; 0: it has not yet. */
    this.began = 0;
    /** @type {any[]} newest events of this connection, oldest first */
    this.lines = [];
    /** @type {Array<(change: Change) => void>} */
    this._listeners = [];
    /** @type {AbortController | null} */
    this._running = null;
    /** @type {(isUp: boolean, text: string) => void} */
    this.onState = () => {};
  }

  /** @param {(change: Change) => void} listener @returns {() => void} what ends it */
  hear(listener) {
    this._listeners.push(listener);
    return () => {
      this._listeners = this._listeners.filter((one) => one !== listener);
    };
  }

  start() {
    if (this._running) return;
    this._running = new AbortController();
    this._run(this._running.signal);
  }

  stop() {
    this._running?.abort();
    this._running = null;
  }

  /** @param {AbortSignal} signal */
  async _run(signal) {
    for (let waitMs = 500; !signal.aborted; waitMs = Math.min(waitMs * 2, 10_000)) {
      let text = "the connection to the gateway ended";
      try {
        await follow("/v1/caravan/live", signal, (kind, data) => {
          waitMs = 500;
          this._take(kind, data);
        });
      } catch (err) {
        if (signal.aborted) return;
        if (err instanceof Fault && err.status === 403) return;
        if (err instanceof Fault) text = err.message;
      }
      if (signal.aborted) return;
      this.onState(false, text);
      await new Promise((done) => setTimeout(done, waitMs));
    }
  }

  /** @param {string} kind @param {Change} data */
  _take(kind, data) {
    this.seq = data.seq;
    if (kind === "state") {
      this.onState(!data.text, data.text ?? "");
      return;
    }
    if (kind === "seq") {
      // What came between two connections is not in the list.
      this.began = data.seq;
      this.lines = [];
      this.onState(true, "");
      return;
    }
    this.t_ms = data.t_ms;
    this.lines.push(...(data.lines ?? []));
    if (this.lines.length > LINES_MAX) this.lines.splice(0, this.lines.length - LINES_MAX);
    for (const listener of this._listeners) listener(data);
  }
}

export const live = new Live();

/** Log time of what is shown, ms: of the newest record where it is the present. Set by the time bar. @type {{timeOf: (seq: number) => number}} */
export const times = { timeOf: () => 0 };

/** @param {number} at */
export const moment = (at) => (at ? times.timeOf(at) : Math.max(live.t_ms, times.timeOf(live.seq)));
