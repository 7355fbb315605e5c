// A Caravan client in Node: the official NATS client and nothing of Caravan. CARAVAN_NATS_URL names the bus, user and
// password inside. Submits a job, follows it until it runs, stops it, follows it until it is over, and reads what the
// log says of that time.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { jetstreamManager } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { blake2b } from "@noble/hashes/blake2";

const urls = process.env.CARAVAN_NATS_URL.split(",").map((one) => new URL(one));
const { username: user, password: pass } = urls[0];
// A user may listen behind its own name only.
const options = { servers: urls.map((one) => one.host), user, pass, inboxPrefix: `_INBOX.${user}` };
let nc;
for (let pause = 500; !nc; pause = Math.min(2 * pause, 8_000)) {
  try {
    nc = await connect(options);
  } catch (error) {
    console.error(`waiting for the bus: ${error.message}`);
    await sleep(pause);
  }
}
// JetStream itself belongs to another account: no check, only direct gets.
const { direct } = await jetstreamManager(nc, { checkAPI: false });

const task = {
  Name: "sleep",
  Driver: "raw_exec",
  Config: { command: "/bin/sleep", args: ["3600"] },
  Resources: { CPU: 20, MemoryMB: 16 },
};
const job = {
  ID: "café/menu.node",
  Update: { MinHealthyTime: 1_000_000_000 },
  TaskGroups: [{ Name: "kitchen", Count: 2, Tasks: [task] }],
};

/** Spell an id as one token of a subject. */
function token(id) {
  const spell = (byte) => {
    const char = String.fromCharCode(byte);
    return /[A-Za-z0-9_-]/.test(char) ? char : `~${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  };
  return Array.from(Buffer.from(id), spell).join("");
}

/** Ask for a verdict, again under the same id while there is none. */
async function submit(verb, body) {
  const message = JSON.stringify({ ...body, SubmissionID: `node-${randomUUID()}` });
  for (let tries = 0; tries < 10; tries++) {
    let verdict;
    try {
      verdict = (await nc.request(`api.jobs.${verb}`, message, { timeout: 6_000 })).json();
    } catch (error) {
      console.error(`no service answered: ${error.message}`);
      await sleep(500);
      continue;
    }
    if (verdict.status === "accepted") return verdict;
    if (verdict.status === "refused" && verdict.error.code !== "unavailable") {
      throw new Error(`refused: ${verdict.error.message}`);
    }
  }
  throw new Error("no verdict");
}

/** Wait until the job's numbers, not older than `seq`, are as wanted; return the seq they show. */
async function follow(subject, seq, isReached) {
  // Listen first, then read the last value: what changes in between is not missed.
  const updates = nc.subscribe(subject);
  const next = updates[Symbol.asyncIterator]();
  let coming = next.next();
  let message = await direct.getMessage("VIEW", { last_by_subj: subject });
  try {
    for (;;) {
      const shown = message?.json();
      if (shown?.seq >= seq && isReached(shown)) return shown.seq;
      const update = await Promise.race([coming, sleep(5_000, null, { ref: false })]);
      if (update) coming = next.next();
      message = update ? update.value : await direct.getMessage("VIEW", { last_by_subj: subject });
    }
  } finally {
    updates.unsubscribe();
  }
}

function isRunning({ rollout }) {
  assert.notEqual(rollout.status, "failed", rollout.reason);
  return rollout.status === "running";
}
const isOver = ({ rollout }) => ["stopped", "complete"].includes(rollout.status);

/** Read records by one batched direct get, and check their checksums and their chain. */
async function readLog(first, last) {
  const records = [];
  for await (const message of await direct.getBatch("LOG_1", { seq: first, batch: last - first + 1 })) {
    const record = message.json();
    const sum = Buffer.from(blake2b(message.data.subarray(0, -42), { dkLen: 16 })).toString("hex");
    assert.equal(record.sum, sum);
    if (records.length > 0) assert.equal(record.prev, records.at(-1).sum);
    records.push({ seq: message.seq, kind: record.kind, sum });
  }
  return records;
}

const subject = `view.job.${token(job.ID)}`;
const submitted = (await submit("submit", { Job: job })).seq;
const running = await follow(subject, submitted, isRunning);
const stopped = await follow(subject, (await submit("stop", { JobID: job.ID })).seq, isOver);
console.log(JSON.stringify({ submitted, running, stopped, records: await readLog(submitted, stopped) }));
await nc.close();
