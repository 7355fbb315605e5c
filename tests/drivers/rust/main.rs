//! A driver plugin in Rust, written from docs/driver-plugins.md alone, with the standard library. A task is a shell
//! command in a process group of its own, kept by a copy of this program, which writes down how it ended.

mod json;

use json::{parse, quoted, Value};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const O_NOFOLLOW: i32 = 0o400000;
const SCHEMA: &str = r#"{"type": "object", "additionalProperties": false, "required": ["command"],
    "properties": {"command": {"type": "string", "minLength": 1}}}"#;

type Answer = Result<String, String>;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if words.len() > 3 {
        return keep(&words[1], &words[2], &Run(PathBuf::from(&words[3])));
    }
    let path = std::env::var("CARAVAN_DRIVER_SOCKET").expect("no socket");
    let peer = UnixStream::connect(path).expect("cannot connect");
    let out = Arc::new(Mutex::new(peer.try_clone().expect("cannot write")));
    let starting = Arc::new(Mutex::new(()));
    for line in BufReader::new(peer).lines().map_while(Result::ok) {
        let (out, starting) = (out.clone(), starting.clone());
        thread::spawn(move || {
            let Some(asked) = parse(&line) else { return };
            let Value::Number(id) = asked.at(&["id"]) else { return };
            let said = match perform(&asked, &starting) {
                Ok(result) => format!("{{\"id\": {id}, \"result\": {result}}}\n"),
                Err(text) => {
                    let text = quoted(&text);
                    format!("{{\"id\": {id}, \"error\": {{\"message\": {text}, \"recoverable\": false}}}}\n")
                }
            };
            let _ = out.lock().unwrap().write_all(said.as_bytes());
        });
    }
}

fn perform(asked: &Value, starting: &Mutex<()>) -> Answer {
    let run = Run(state().join(Path::new(asked.at(&["run"]).text()).file_name().unwrap_or_default()));
    match asked.at(&["verb"]).text() {
        "info" => {
            let name = quoted(&std::env::var("CARAVAN_DRIVER_NAME").unwrap_or_default());
            Ok(format!(r#"{{"apis": [1], "name": {name}, "version": "rust", "config_schema": {SCHEMA}}}"#)
                .replace('\n', " "))
        }
        "fingerprint" => Ok(r#"{"attributes": {"language": "rust"}}"#.into()),
        "start" => {
            let _one = starting.lock().unwrap();
            if run.has("void") {
                return Err("the run was abandoned".into());
            }
            if !run.has("begun") {
                begin(&run, asked).map_err(|err| err.to_string())?;
            }
            Ok(format!("{{\"pid\": {}}}", run.pid()))
        }
        "recover" => Ok(look(&run)),
        "wait" => {
            while run.is_kept() {
                thread::sleep(Duration::from_millis(20));
            }
            Ok(format!("{{{}}}", run.end()))
        }
        "forget" => {
            let _ = fs::remove_dir_all(&run.0);
            Ok("{}".into())
        }
        "signal" => {
            let name = asked.at(&["signal"]).text();
            Ok(format!("{{\"delivered\": {}}}", run.kill(name.trim_start_matches("SIG"))))
        }
        "stop" => {
            run.kill("KILL");
            Ok("{}".into())
        }
        "abandon" => {
            fs::create_dir_all(&run.0).map_err(|err| err.to_string())?;
            run.write("void", "").map_err(|err| err.to_string())?;
            let _one = starting.lock().unwrap();
            run.kill("KILL");
            Ok("{}".into())
        }
        "stats" => Ok("{}".into()),
        verb => Err(format!("unknown verb {verb}")),
    }
}

fn state() -> PathBuf {
    PathBuf::from(std::env::var("CARAVAN_DRIVER_STATE").expect("no directory"))
}

/// The records of one run.
struct Run(PathBuf);

impl Run {
    fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    fn number(&self, name: &str) -> i64 {
        fs::read_to_string(self.0.join(name)).unwrap_or_default().trim().parse().unwrap_or(0)
    }

    fn write(&self, name: &str, text: &str) -> std::io::Result<()> {
        let fresh = self.0.join(format!("{name}.new"));
        fs::write(&fresh, text)?;
        fs::rename(fresh, self.0.join(name))
    }

    /// The pid of the task, which its keeper writes at once; 0: it never began.
    fn pid(&self) -> i64 {
        for _ in 0..500 {
            if !self.has("begun") {
                break;
            }
            if self.has("pid") {
                return self.number("pid");
            }
            thread::sleep(Duration::from_millis(10));
        }
        0
    }

    fn is_kept(&self) -> bool {
        self.pid() != 0 && !self.has("exit") && is_alive(self.number("keeper"))
    }

    /// Signals the group of the task; returns whether it was there.
    fn kill(&self, name: &str) -> bool {
        let pid = self.pid();
        if pid == 0 || self.has("exit") || !is_alive(pid) {
            return false;
        }
        let mut kill = Command::new("/bin/sh");
        kill.args(["-c", "kill -s \"$1\" -- \"-$2\"", "kill", name, &pid.to_string()]);
        kill.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        kill.status().is_ok_and(|status| status.success())
    }

    fn end(&self) -> String {
        if !self.has("exit") {
            return r#""exit_code": null, "reason": "its keeper was killed""#.into();
        }
        let code = self.number("exit");
        format!("\"exit_code\": {code}, \"signal\": {}", if code > 128 { code - 128 } else { 0 })
    }
}

fn is_alive(pid: i64) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    pid != 0 && text.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

fn begin(run: &Run, asked: &Value) -> std::io::Result<()> {
    fs::create_dir_all(&run.0)?;
    let mut keeper = Command::new(std::env::current_exe()?);
    keeper.arg(asked.at(&["config", "command"]).text()).arg(asked.at(&["directories", "task"]).text()).arg(&run.0);
    keeper.env_clear().stdin(Stdio::null()).process_group(0);
    if let Value::Object(env) = asked.at(&["env"]) {
        keeper.envs(env.iter().map(|(name, value)| (name, value.text())));
    }
    for (name, is_out) in [("stdout", true), ("stderr", false)] {
        let to = match asked.at(&[name]).text() {
            "" => Stdio::null(),
            path => OpenOptions::new().append(true).create(true).custom_flags(O_NOFOLLOW).open(path)?.into(),
        };
        if is_out { keeper.stdout(to) } else { keeper.stderr(to) };
    }
    run.write("begun", "")?;
    let mut child = keeper.spawn()?;
    thread::spawn(move || child.wait());
    Ok(())
}

fn look(run: &Run) -> String {
    if !run.has("begun") {
        return r#"{"state": "gone", "started": false}"#.into();
    }
    if run.is_kept() {
        return format!("{{\"state\": \"running\", \"pid\": {}}}", run.pid());
    }
    if run.has("exit") {
        return format!("{{\"state\": \"exited\", {}}}", run.end());
    }
    format!("{{\"state\": \"gone\", \"started\": {}, \"reason\": \"its keeper was killed\"}}", run.has("pid"))
}

/// The keeper of a task: a process of its own, which outlives the driver.
fn keep(command: &str, directory: &str, run: &Run) {
    let _ = run.write("keeper", &std::process::id().to_string());
    let begun = Command::new("/bin/sh").args(["-c", command]).current_dir(directory).process_group(0).spawn();
    let code = match begun {
        Err(_) => 127,
        Ok(mut task) => {
            let _ = run.write("pid", &task.id().to_string());
            task.wait().map_or(1, |status| status.code().unwrap_or(128 + status.signal().unwrap_or(0)))
        }
    };
    let _ = run.write("exit", &code.to_string());
}
