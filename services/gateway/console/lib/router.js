// The address holds the question and the moment: `#/job/web?at=123`. Without `at` it is now.

/**
 * @typedef {{path: string[], params: URLSearchParams, at: number}} Place
 */

/** Pages in the menu: address and title. */
export const MENU = [["cluster", "Cluster"], ["jobs", "Jobs"], ["nodes", "Nodes"], ["services", "Services"], ["variables", "Variables"], ["queue", "Queue"],
  ["evaluations", "Evaluations"], ["log", "Log"], ["changes", "Changes"], ["times", "Times"], ["what-if", "What if"]];
/** Addresses of all pages that need no id. `submit` has a button of its own. */
export const PAGES = [...MENU.map(([name]) => name), "submit"];

/** @returns {Place} */
export function here() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const params = new URLSearchParams(search ?? "");
  const at = Number(params.get("at") ?? 0);
  return { path: path.split("/").filter(Boolean).map(decodeURIComponent), params, at: Number.isSafeInteger(at) && at > 0 ? at : 0 };
}

/** Address of a page at a moment.
 * @param {string[]} path @param {Record<string, any>} [params] @param {number} [at] */
export function address(path, params = {}, at = here().at) {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) if (value) search.set(key, String(value));
  if (at) search.set("at", String(at));
  const text = search.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Go to another moment of this page. @param {number} at 0: now */
export function moveTo(at) {
  const { path, params } = here();
  params.delete("at");
  const wanted = address(path, Object.fromEntries(params), at);
  if (wanted !== location.hash) {
    history.replaceState(null, "", wanted);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}
