// How numbers, times and sizes are written.

/** @param {number} ms @returns {string} time of day, or date and time where it is another day */
export function clock(ms) {
  if (!ms) return "";
  const when = new Date(ms), today = new Date();
  const time = when.toLocaleTimeString([], { hour12: false });
  return when.toDateString() === today.toDateString() ? time : `${when.toLocaleDateString("sv")} ${time}`;
}

/** @param {number} ns nanoseconds since 1970 @returns {string} */
export const clockNs = (ns) => clock(Number(ns) / 1e6);

/** @param {number} ms @param {number} now @returns {string} `3m`, `2h` */
export function age(ms, now) {
  if (!ms) return "";
  const s = Math.max(0, Math.round((now - ms) / 1000));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m`;
  if (s < 86400) return `${Math.floor(s / 3600)}h`;
  return `${Math.floor(s / 86400)}d`;
}

/** @param {number} n @returns {string} */
export const number = (n) => Number(n ?? 0).toLocaleString("en");

/** @param {number} mib @returns {string} */
export function mib(mib) {
  return mib < 1024 ? `${mib} MiB` : `${(mib / 1024).toFixed(1)} GiB`;
}

/** @param {number} part @param {number} whole @returns {string} */
export const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "0 %");

/** @param {string} id @returns {string} the beginning of an id, as the command line prints it */
export const short = (id) => String(id ?? "").slice(0, 8);

/** @param {number} ms @returns {string} as a field for date and time has it */
export const localTime = (ms) => (ms ? `${new Date(ms).toLocaleDateString("sv")}T${new Date(ms).toLocaleTimeString("sv")}` : "");

/** @param {number} ms @returns {string} a duration: `2.5 ms`, `13 s`, `4.2 min` */
export function lasting(ms) {
  const [n, unit] = ms < 1000 ? [ms, "ms"] : ms < 120_000 ? [ms / 1000, "s"] : ms < 7_200_000 ? [ms / 60_000, "min"] : [ms / 3_600_000, "h"];
  return `${n < 10 ? Number(n.toFixed(1)) : Math.round(n)} ${unit}`;
}
