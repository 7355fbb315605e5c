// Elements from plain descriptions, and a patch that turns what is shown into what is wanted. Text is always text:
// nothing here parses HTML.

/** @typedef {Node | string | number | null | undefined | false} Child */

const LISTENERS = Symbol("listeners");
/** On a stand-in: the element that is on the page already and must not leave it while the patch compares. */
const REAL = Symbol("real");

/**
 * Make an element. `on…` props are listeners, `data-…`, `aria-…` and the rest attributes; false and null leave one out.
 * @param {string} name tag, with classes behind dots: `td.number`
 * @param {Record<string, any>} [props]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElement}
 */
export function h(name, props = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(props ?? {})) set(made, key, value);
  append(made, children);
  return made;
}

/** @param {HTMLElement} made @param {string} key @param {any} value */
function set(made, key, value) {
  if (key.startsWith("on")) listen(made, key.slice(2), value);
  else if (key === "value") /** @type {any} */ (made).value = value;
  else if (value === true) made.setAttribute(key, "");
  else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, String(value));
}

/** @param {any} made @param {string} kind @param {(event: any) => void} handler */
function listen(made, kind, handler) {
  const known = (made[LISTENERS] ??= {});
  if (!known[kind]) made.addEventListener(kind, (/** @type {Event} */ event) => made[LISTENERS][kind]?.(event));
  known[kind] = handler;
}

/** @param {HTMLElement} parent @param {any[]} children */
function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (!(child instanceof Node)) parent.append(document.createTextNode(String(child)));
    else if (child instanceof HTMLElement && child.dataset.keep && child.isConnected) parent.append(standIn(child));
    else parent.append(child);
  }
}

/** @param {HTMLElement} kept */
function standIn(kept) {
  const made = kept.cloneNode(false);
  /** @type {any} */ (made)[REAL] = kept;
  return made;
}

/** A new node as it goes to the page: stand-ins in it become what they stand for. @param {any} made @returns {Node} */
function real(made) {
  if (made[REAL]) return made[REAL];
  if (made instanceof HTMLElement) for (const one of made.querySelectorAll("[data-keep]")) if (/** @type {any} */ (one)[REAL]) one.replaceWith(/** @type {any} */ (one)[REAL]);
  return made;
}

/**
 * Show `children` in `parent`, changing as little as possible: focus, selection and scrolling stay. An element with
 * `data-keep` owns what is inside it and is left alone while its key is the same.
 * @param {HTMLElement} parent
 * @param {...(Child | Child[])} children
 */
export function show(parent, ...children) {
  const wanted = document.createElement(parent.tagName);
  append(wanted, children);
  patchChildren(parent, wanted);
}

/** @param {Node} old @param {Node} wanted */
function patchChildren(old, wanted) {
  const news = [...wanted.childNodes];
  for (let at = 0; at < news.length; at++) {
    const was = old.childNodes[at];
    if (!was) old.appendChild(real(news[at]));
    else if (!isSame(was, news[at])) old.replaceChild(real(news[at]), was);
    else patch(was, news[at]);
  }
  while (old.childNodes.length > news.length) old.lastChild?.remove();
}

/** @param {Node} one @param {Node} other */
function isSame(one, other) {
  if (one.nodeType !== other.nodeType || one.nodeName !== other.nodeName) return false;
  if (!(one instanceof HTMLElement) || !(other instanceof HTMLElement)) return true;
  return one.dataset.keep === other.dataset.keep && one.dataset.key === other.dataset.key;
}

/** @param {any} old @param {any} wanted */
function patch(old, wanted) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
    return;
  }
  if (old.dataset.keep) return;
  for (const { name } of [...old.attributes]) if (!wanted.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) !== value && name !== "open") old.setAttribute(name, value);
  }
  for (const [kind, handler] of Object.entries(wanted[LISTENERS] ?? {})) listen(old, kind, /** @type {any} */ (handler));
  // What a person types is theirs.
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(old.tagName)) {
    if (old.tagName === "SELECT" && old !== document.activeElement) patchChildren(old, wanted);
    return;
  }
  patchChildren(old, wanted);
}

/** Make control characters and changes of direction visible: names and log lines are foreign text.
 * @param {unknown} text @returns {string} */
export function plain(text) {
  return String(text ?? "").replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (one) =>
    `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
