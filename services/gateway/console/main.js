// The page: a frame (header, time bar) around one view, which is a function of the address and the moment.
//
// A view is `render(place, signal) -> children`; it is asked again when the address changes, and while the page shows
// the present, when the cluster changes. Patches keep focus and scrolling.

import { h, plain, show } from "./lib/dom.js";
import { Fault, hasToken, json, keepToken, loadSession, session } from "./lib/api.js";
import { MENU, address, here } from "./lib/router.js";
import { live } from "./lib/live.js";
import { TimeBar } from "./lib/timebar.js";
import { openGoTo, openHelp, startKeys } from "./lib/keys.js";
import { notice } from "./lib/parts.js";
import { login } from "./views/login.js";
import { cluster } from "./views/cluster.js";
import { jobPage, jobs } from "./views/jobs.js";
import { allocation } from "./views/allocation.js";
import { client, nodePage, nodes } from "./views/nodes.js";
import { queue } from "./views/queue.js";
import { evaluationPage, evaluations } from "./views/evaluations.js";
import { log } from "./views/log.js";
import { changes } from "./views/changes.js";
import { submit } from "./views/submit.js";
import { deploymentPage } from "./views/deployment.js";
import { services } from "./views/services.js";
import { variables } from "./views/variables.js";
import { delays } from "./views/delays.js";
import { whatIf } from "./views/what_if.js";

/** @type {Record<string, (place: import("./lib/router.js").Place, signal: AbortSignal) => Promise<any>>} */
const VIEWS = {
  "": cluster, cluster, jobs, job: jobPage, alloc: allocation, nodes, node: nodePage, client, queue, evaluations, evaluation: evaluationPage,
  deployment: deploymentPage, services, variables, log, changes, submit, times: delays, "what-if": whatIf,
};
/** Shortest time between two renderings of the present. */
const RENDER_MS = 400;

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const header = /** @type {HTMLElement} */ (document.getElementById("header"));
const banner = /** @type {HTMLElement} */ (document.getElementById("banner"));
const timeBar = new TimeBar(/** @type {HTMLElement} */ (document.getElementById("time")));
let running = new AbortController();
let shownPage = "", renderedPage = "", isRendering = false, isDirty = false, lastMs = 0;

function frame() {
  const { path, at } = here();
  const page = path[0] ?? "cluster";
  const theme = document.documentElement.dataset.theme ?? "";
  show(header,
    h("a.brand", { href: address(["cluster"]) }, "Caravan"),
    h("nav", { "aria-label": "Pages" }, MENU.map(([name, title]) =>
      h("a", { href: address([name]), "aria-current": name === page ? "page" : false }, title))),
    h("span.tools", {},
      session.archive && h("strong.archive", {}, "Archive ", plain(session.archive)),
      hasToken() && !at && !session.archive && h("a.button", { href: address(["submit"]) }, "Submit job"),
      h("button", { type: "button", onclick: changeTheme, title: "Change the theme" }, h("span", { "aria-hidden": "true" }, theme === "dark" ? "●" : theme === "light" ? "○" : "◐"),
        h("span.hidden", {}, `theme: ${theme || "that of the system"}`)),
      hasToken() && h("button", { type: "button", onclick: openGoTo, title: "Go to a page, job, node, allocation, evaluation or deployment" }, "Go to"),
      h("button", { type: "button", onclick: openHelp, title: "Keys" }, "?"),
      hasToken() && h("button", { type: "button", onclick: signOut }, "Sign out")));
  document.documentElement.dataset.moment = at ? "past" : "now";
}

function changeTheme() {
  const order = ["", "light", "dark"];
  const next = order[(order.indexOf(document.documentElement.dataset.theme ?? "") + 1) % 3];
  setTheme(next);
  frame();
}

/** @param {string} name empty: as the system has it */
function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("caravan.theme", name);
}

function signOut() {
  keepToken("");
  session.name = session.archive = "";
  live.stop();
  render();
}

/** Say what is wrong; empty: nothing is. @param {string} text */
function tell(text) {
  show(banner, text && h("p", {}, text));
  document.documentElement.toggleAttribute("data-stale", text !== "");
}

async function render() {
  if (isRendering) {
    isDirty = true;
    // The page that is being asked for is not asked for anew.
    if (location.hash !== renderedPage) running.abort();
    return;
  }
  isRendering = true;
  isDirty = false;
  const place = here();
  const hash = (renderedPage = location.hash);
  frame();
  running = new AbortController();
  try {
    if (!hasToken()) {
      timeBar.hide();
      show(main, await login(signedIn));
    } else {
      if (!session.name) {
        await loadSession();
        frame();
      }
      const view = VIEWS[place.path[0] ?? ""];
      const children = view ? await view(place, running.signal) : h("p", {}, "There is no such page.");
      if (hash === location.hash) {
        show(main, children);
        document.title = `${main.querySelector("h1")?.textContent ?? "Cluster"} – Caravan`;
        if (shownPage.split("?")[0] !== hash.split("?")[0]) main.scrollTop = 0;
        document.documentElement.dataset.seq = String(place.at || live.seq);
        tell("");
      }
    }
  } catch (err) {
    failed(err, hash);
  } finally {
    shownPage = hash;
    isRendering = false;
    lastMs = performance.now();
    // Another place was asked for meanwhile: at once. The present may wait.
    if (location.hash !== hash) queueMicrotask(render);
    else if (isDirty) soon();
  }
}

/** @param {any} err @param {string} hash */
function failed(err, hash) {
  if (err?.name === "AbortError") return;
  if (err instanceof Fault && (err.status === 403 || err.status === 401)) {
    keepToken("");
    live.stop();
    show(main, h("p", {}, "The login was refused."));
    isDirty = true;
  } else if (err instanceof Fault && (err.status === 404 || err.status === 400 || err.status === 410)) {
    show(main, h("h1", {}, err.status === 404 ? "Not found" : "Not possible"), h("p", {}, err.message));
  } else if (err instanceof Fault) {
    tell(`${err.message}. What is shown may be old; trying again.`);
    if (hash !== shownPage) show(main, h("p.dim", {}, "Waiting for the gateway."));
    setTimeout(soon, 2000);
  } else {
    show(main, h("h1", {}, "Error in this page"), h("p", {}, String(err?.message ?? err)));
    throw err;
  }
}

let waiting = 0;
function soon() {
  if (waiting) return;
  waiting = window.setTimeout(() => {
    waiting = 0;
    render();
  }, Math.max(0, RENDER_MS - (performance.now() - lastMs)));
}

function signedIn() {
  live.start();
  render();
}

async function begin() {
  setTheme(localStorage.getItem("caravan.theme") ?? "");
  const code = here().params.get("code");
  if (here().path[0] === "login" && code) {
    // The code is spent by this; it must not stay in the address.
    history.replaceState(null, "", "#/cluster");
    try {
      keepToken((await json("/v1/caravan/login", {}, { method: "POST", body: JSON.stringify({ code }) })).token);
    } catch (err) {
      tell(err instanceof Fault ? err.message : String(err));
    }
  }
  addEventListener("hashchange", () => {
    timeBar.moved();
    if (shownPage.split("?")[0] !== location.hash.split("?")[0]) notice("");
    render();
    if (shownPage.split("?")[0] !== location.hash.split("?")[0]) main.focus({ preventScroll: true });
  });
  live.hear((change) => {
    timeBar.grew(change.seq, change.t_ms);
    if (!here().at && document.visibilityState === "visible") soon();
  });
  live.onState = (isUp, text) => {
    tell(isUp ? "" : `${text}. What is shown is the state at seq ${live.seq}; reconnecting.`);
    if (isUp) {
      timeBar.load();
      soon();
    }
  };
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && soon());
  startKeys(timeBar);
  if (hasToken()) live.start();
  render();
}

begin();
