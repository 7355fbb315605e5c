// Submitting a job: written as HCL or JSON, planned first, then registered. Also the next version of a job.

import { h, plain } from "../lib/dom.js";
import { Fault, query, send } from "../lib/api.js";
import { address } from "../lib/router.js";
import { section, table } from "../lib/parts.js";
import { submitted } from "./jobs.js";

const EXAMPLE = `job "hello" {
  group "web" {
    task "server" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "while true; do date; sleep 1; done"]
      }
      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
`;
/** @type {{id: string, box: HTMLElement} | null} */
let kept = null;

/** @param {import("../lib/router.js").Place} place @param {AbortSignal} signal */
export async function submit({ params }, signal) {
  const id = params.get("job") ?? "";
  if (kept?.id !== id || !kept.box.isConnected) {
    kept = { id, box: made(id, id ? await present(id, signal) : EXAMPLE) };
  }
  return [h("h1", {}, id ? `Change ${plain(id)}` : "Submit a job"), kept.box];
}

/** A job to be changed: its file, where it needs no values of variables, else its JSON. @param {string} id @param {AbortSignal} signal */
async function present(id, signal) {
  const found = await query("job_version", { id, version: "-1" }, 0, signal);
  const file = await submitted(id, found.version, signal);
  const isWhole = file?.Format === "hcl2" && !file.Variables && !file.VariableFlags;
  return isWhole ? file.Source : JSON.stringify(found.spec, null, 2);
}

/** @param {string} id @param {string} known */
function made(id, known) {
  const text = /** @type {HTMLTextAreaElement} */ (h("textarea", { id: "job-text", rows: "18", spellcheck: "false", "aria-describedby": "job-fault" }));
  text.value = known;
  const said = h("p.fault", { id: "job-fault", role: "alert" });
  const result = h("div", { "aria-live": "polite" });
  const submitButton = h("button", { type: "button", disabled: true, onclick: () => attempt(register) }, "Submit");
  const read = async () => {
    const value = text.value.trim();
    const found = value.startsWith("{") ? JSON.parse(value) : await send("/v1/jobs/parse", { JobHCL: value, Canonicalize: false });
    return found.Job ?? found;
  };
  const plan = async () => {
    const job = await read();
    const found = await send(`/v1/job/${encodeURIComponent(job.ID)}/plan`, { Job: job, Diff: true });
    result.replaceChildren(...planned(found));
    submitButton.removeAttribute("disabled");
  };
  const register = async () => {
    const job = await read();
    const value = text.value.trim();
    const found = await send("/v1/jobs", { Job: job, Submission: { Source: text.value, Format: value.startsWith("{") ? "json" : "hcl2" } });
    location.hash = address(["job", job.ID], {}, 0);
    return found;
  };
  const attempt = async (/** @type {() => Promise<any>} */ act) => {
    said.textContent = "";
    try {
      await act();
    } catch (err) {
      said.textContent = err instanceof Fault || err instanceof SyntaxError ? err.message : String(err);
      result.replaceChildren();
      submitButton.setAttribute("disabled", "");
    }
  };
  text.addEventListener("input", () => submitButton.setAttribute("disabled", ""));
  return h("div", { "data-keep": `submit ${id}` },
    h("label", { for: "job-text" }, "Job file, in HCL or JSON"), text, said,
    h("p.actions", {}, h("button", { type: "button", onclick: () => attempt(plan) }, "Plan"), " ", submitButton), result);
}

/** @param {any} found */
function planned(found) {
  const groups = Object.entries(found.Annotations?.DesiredTGUpdates ?? {});
  const failed = Object.entries(found.FailedTGAllocs ?? {});
  return [
    section("What it would do", table("Plan", ["Group", "Changes"], groups.map(([name, one]) => [plain(name),
      Object.entries(/** @type {any} */ (one)).filter(([, n]) => Number(n) > 0).map(([what, n]) => `${n} ${what}`).join(", ") || "nothing"]), "nothing changes")),
    ...(failed.length ? [section("Without a place", h("ul", {}, failed.map(([name, one]) =>
      h("li", {}, plain(`${name}: ${JSON.stringify(/** @type {any} */ (one).DimensionExhausted ?? /** @type {any} */ (one).ConstraintFiltered ?? {})}`)))))] : []),
    ...(found.Warnings ? [h("p.fault", {}, plain(found.Warnings))] : []),
  ];
}
