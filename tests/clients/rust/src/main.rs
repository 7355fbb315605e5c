//! A Caravan client in Rust: the official NATS client and nothing of Caravan. CARAVAN_NATS_URL names the bus,
//! user and password inside. Submits a job, follows it until it runs, stops it, follows it until it is over, and reads
//! what the log says of that time.

use std::{env, error::Error, time::Duration};

use async_nats::{Client, Subscriber};
use blake2::{Blake2b, Digest, digest::consts::U16};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

type Outcome<T> = Result<T, Box<dyn Error>>;

const JOB_ID: &str = "café/menu.rust";
const PATIENCE: Duration = Duration::from_secs(5);

/// Spell an id as one token of a subject.
fn token(id: &str) -> String {
    let spell = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
        _ => format!("~{byte:02X}"),
    };
    id.bytes().map(spell).collect()
}

/// Ask for a verdict, again under the same id while there is none; return the seq it names.
async fn submit(nc: &Client, verb: &str, mut body: Value) -> Outcome<u64> {
    body["SubmissionID"] = nc.new_inbox().replace("_INBOX.", "rust-").into();
    for _ in 0..10 {
        let reply = nc.request(format!("api.jobs.{verb}"), body.to_string().into()).await;
        let Ok(reply) = reply else {
            eprintln!("no service answered: {reply:?}");
            sleep(Duration::from_millis(500)).await;
            continue;
        };
        let verdict: Value = serde_json::from_slice(&reply.payload)?;
        match verdict["status"].as_str() {
            Some("accepted") => return Ok(verdict["seq"].as_u64().ok_or("no seq")?),
            Some("refused") if verdict["error"]["code"] != "unavailable" => {
                return Err(verdict["error"]["message"].to_string().into());
            }
            _ => {}
        }
    }
    Err("no verdict".into())
}

/// Wait until the job's numbers, not older than `seq`, are as wanted; return the seq they show.
async fn follow(nc: &Client, updates: &mut Subscriber, seq: u64, is_reached: fn(&Value) -> bool) -> Outcome<u64> {
    let last_value = format!("$JS.API.DIRECT.GET.VIEW.view.job.{}", token(JOB_ID));
    let mut message = nc.request(last_value.clone(), "".into()).await?;
    loop {
        // Without a body it is a status: nothing is published under this subject yet.
        let shown: Value = serde_json::from_slice(&message.payload).unwrap_or_default();
        match shown["seq"].as_u64() {
            Some(at) if at >= seq && is_reached(&shown) => return Ok(at),
            _ => {}
        }
        message = match timeout(PATIENCE, updates.next()).await {
            Ok(update) => update.ok_or("the bus is gone")?,
            Err(_) => nc.request(last_value.clone(), "".into()).await?,
        };
    }
}

fn is_running(shown: &Value) -> bool {
    let rollout = &shown["rollout"];
    assert_ne!(rollout["status"], "failed", "{}", rollout["reason"]);
    rollout["status"] == "running"
}

fn is_over(shown: &Value) -> bool {
    ["stopped", "complete"].iter().any(|one| shown["rollout"]["status"] == *one)
}

/// Read records by one batched direct get, and check their checksums and their chain.
async fn read_log(nc: &Client, first: u64, last: u64) -> Outcome<Vec<Value>> {
    let inbox = nc.new_inbox();
    let mut answers = nc.subscribe(inbox.clone()).await?;
    let request = json!({"seq": first, "batch": last - first + 1});
    nc.publish_with_reply("$JS.API.DIRECT.GET.LOG_1", inbox, request.to_string().into()).await?;
    let mut records: Vec<Value> = Vec::new();
    while let Some(message) = timeout(PATIENCE, answers.next()).await? {
        if message.status.is_some() {
            break; // 204 ends the batch.
        }
        let record: Value = serde_json::from_slice(&message.payload)?;
        let body = &message.payload[..message.payload.len() - 42];
        let sum: String = Blake2b::<U16>::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
        if record["sum"] != sum || records.last().is_some_and(|last| last["sum"] != record["prev"]) {
            return Err(format!("the log is damaged: {record}").into());
        }
        let headers = message.headers.ok_or("no headers")?;
        let seq: u64 = headers.get("Nats-Sequence").ok_or("no seq")?.as_str().parse()?;
        records.push(json!({"seq": seq, "kind": record["kind"], "sum": sum}));
    }
    Ok(records)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let servers = env::var("CARAVAN_NATS_URL")?;
    let parts: Vec<&str> = servers.split(['/', ':', '@']).collect(); // nats, "", "", user, password, …
    // A user may listen behind its own name only.
    let options = async_nats::ConnectOptions::with_user_and_password(parts[3].into(), parts[4].into())
        .custom_inbox_prefix(format!("_INBOX.{}", parts[3]));
    let mut pause = Duration::from_millis(500);
    let nc = loop {
        match options.clone().connect(&servers).await {
            Ok(nc) => break nc,
            Err(error) => eprintln!("waiting for the bus: {error}"),
        }
        sleep(pause).await;
        pause = (2 * pause).min(Duration::from_secs(8));
    };
    let task = json!({
        "Name": "sleep", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["3600"]},
        "Resources": {"CPU": 20, "MemoryMB": 16},
    });
    let job = json!({
        "ID": JOB_ID, "Update": {"MinHealthyTime": 1_000_000_000},
        "TaskGroups": [{"Name": "kitchen", "Count": 2, "Tasks": [task]}],
    });
    // Listen first, then read the last value: what changes in between is not missed.
    let mut updates = nc.subscribe(format!("view.job.{}", token(JOB_ID))).await?;
    let submitted = submit(&nc, "submit", json!({"Job": job})).await?;
    let running = follow(&nc, &mut updates, submitted, is_running).await?;
    let stop = submit(&nc, "stop", json!({"JobID": JOB_ID})).await?;
    let stopped = follow(&nc, &mut updates, stop, is_over).await?;
    let records = read_log(&nc, submitted, stopped).await?;
    println!("{}", json!({"submitted": submitted, "running": running, "stopped": stopped, "records": records}));
    Ok(())
}
