// Requests to the gateway that served this page. The login is in memory and in this tab's session storage, and is sent
// as a header: never in an address.

const KEY = "caravan.token";
let token = sessionStorage.getItem(KEY) ?? "";

export const hasToken = () => token !== "";
export const currentToken = () => token;

/** @param {string} value empty: forget it */
export function keepToken(value) {
  token = value;
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** Who is signed in, and the name of the archive that is shown in place of a cluster. */
export const session = { name: "", archive: "" };

/** Read who is signed in. */
export async function loadSession() {
  Object.assign(session, await json("/v1/caravan/self"));
}

/** Whether the page may offer changes: not in the past, and not of an archive. @param {number} at */
export const canChange = (at) => !at && !session.archive;

/** An answer that is not a success. `status` 0: the gateway could not be reached. */
export class Fault extends Error {
  /** @param {number} status @param {string} text */
  constructor(status, text) {
    super(text || `HTTP ${status}`);
    this.status = status;
  }
}

/**
 * @param {string} path
 * @param {Record<string, any>} [params] left out where empty
 * @param {RequestInit} [options]
 * @returns {Promise<Response>}
 */
export async function request(path, params = {}, options = {}) {
  const url = new URL(path, location.origin);
  for (const [key, value] of Object.entries(params)) {
    if (value !== undefined && value !== null && value !== "" && value !== 0) url.searchParams.set(key, String(value));
  }
  let found;
  try {
    found = await fetch(url, {
      ...options,
      headers: { ...(token ? { Authorization: `Bearer ${token}` } : {}), ...(options.headers ?? {}) },
    });
  } catch (err) {
    if (err instanceof DOMException && err.name === "AbortError") throw err;
    throw new Fault(0, "the gateway cannot be reached");
  }
  if (!found.ok) throw new Fault(found.status, (await found.text()).trim());
  return found;
}

/** @param {string} path @param {Record<string, any>} [params] @param {RequestInit} [options] @returns {Promise<any>} */
export const json = async (path, params, options) => (await request(path, params, options)).json();

/** Answer of a query at a moment; `at` 0: now.
 * @param {string} noun @param {Record<string, any>} params @param {number} at @param {AbortSignal} [signal] */
export const query = (noun, params, at, signal) => json(`/v1/caravan/query/${noun}`, { ...params, at }, { signal });

/** @param {string} path @param {any} body @param {string} [method] */
export const send = (path, body, method = "PUT") =>
  json(path, {}, { method, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });

/**
 * Server-sent events, with the login in a header, which EventSource cannot send.
 * @param {string} path
 * @param {AbortSignal} signal
 * @param {(kind: string, data: any) => void} hear
 */
export async function follow(path, signal, hear) {
  const found = await request(path, {}, { signal });
  const reader = /** @type {ReadableStream} */ (found.body).pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const fields = { event: "", data: "" };
      for (const line of rest.slice(0, end).split("\n")) {
        const colon = line.indexOf(": ");
        const name = line.slice(0, colon);
        if (name === "event" || name === "data") fields[name] = line.slice(colon + 2);
      }
      rest = rest.slice(end + 2);
      if (fields.data) hear(fields.event, JSON.parse(fields.data));
    }
  }
}
