// Signing in with a login of the bus, as `USER:PASSWORD`. `caravan ui` opens this page with a one-time code instead.

import { h } from "../lib/dom.js";
import { Fault, json, keepToken } from "../lib/api.js";

let fault = "";

/** @param {() => void} done */
export async function login(done) {
  const enter = async (/** @type {any} */ event) => {
    event.preventDefault();
    const field = /** @type {HTMLInputElement} */ (document.getElementById("token"));
    const said = /** @type {HTMLElement} */ (document.getElementById("login-fault"));
    keepToken(field.value.trim());
    try {
      await json("/v1/caravan/self");
      fault = "";
      done();
    } catch (err) {
      keepToken("");
      fault = err instanceof Fault ? err.message : String(err);
      said.textContent = fault;
    }
  };
  return h("section.login", {}, h("h1", {}, "Sign in"),
    h("p", {}, "Run ", h("code", {}, "caravan ui"), " to open this page signed in, or enter a login of the cluster."),
    h("form", { onsubmit: enter },
      h("label", { for: "token" }, "Login (USER:PASSWORD)"),
      h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, "aria-describedby": "login-fault" }),
      h("button", { type: "submit" }, "Sign in")),
    h("p.fault", { id: "login-fault", role: "alert" }, fault));
}
