//! Plays a case: sends what it says, and compares what comes back.

use crate::case::{Case, Login, Request, Step};
use crate::folder;
use crate::template::Variables;
use procfleet_testkit::pattern::mismatches;
use procfleet_testkit::{PATIENCE, Raw, Up, account, ask_again};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

/// Callers ask every one to five seconds; the tests have less time.
const EVERY: Duration = Duration::from_millis(50);
/// The process that the programs of a case start. A link, because a file that was just written cannot be
/// executed while another process has it open.
const PROCESS: (&str, &str) = ("proc-test", "/bin/sleep");

/// State that all cases share.
pub(crate) struct Stage {
    up: Up,
    variables: Variables,
}

impl Stage {
    pub(crate) fn set_up() -> Stage {
        let up = Up::start(env!("CARGO_BIN_EXE_procfleet"));
        up.wait_for_agent();
        let agents = up.client.data("/api/v1/agents");
        let mut variables = Variables::default();
        variables.set("ip", agents[0]["ip"].clone());
        variables.set("cloud", agents[0]["bk_cloud_id"].clone());
        variables.set("agent", agents[0]["bk_agent_id"].clone());
        variables.set("user", account());
        variables.set("app_code", up.client.app_code.as_str());
        variables.set("app_secret", up.client.app_secret.as_str());
        let common = fs::read_to_string(folder().join("common.json")).expect("what most cases use");
        let common: Value = serde_json::from_str(&common).expect("common.json is JSON");
        for (name, value) in common.as_object().expect("common.json names values") {
            variables.set(name, value.clone());
        }
        Stage { up, variables }
    }

    /// The internal errors that the server or its agent has logged.
    pub(crate) fn complaints(&self) -> String {
        let log = self.up.stderr();
        let told = log.lines().filter(|line| [" WARN ", "ERROR "].iter().any(|word| line.contains(word)));
        told.map(|line| format!("{line}\n")).collect()
    }

    pub(crate) fn play(&self, path: &Path, number: usize) -> Result<(), String> {
        let case = Case::read(path)?;
        let mut variables = self.variables.clone();
        let folder = self.up.folder(&format!("cases/{number}"));
        furnish(&folder);
        variables.set("dir", folder.to_str().expect("a plain path"));
        variables.set("namespace", format!("case-{number}"));
        for (name, value) in &case.values {
            variables.set(name, value.clone());
        }
        for (index, step) in case.steps.iter().enumerate() {
            self.take(step, &mut variables)
                .map_err(|reason| format!("{}\nstep {} {}\n{reason}", case.about, index + 1, step.note))?;
        }
        Ok(())
    }

    fn take(&self, step: &Step, variables: &mut Variables) -> Result<(), String> {
        let sent = self.prepare(&step.request, variables)?;
        let pattern = variables.expand(&step.answer)?;
        // The number is for an idle machine.
        let deadline = step.until.map_or(Duration::ZERO, |secs| Duration::from_secs(secs).max(PATIENCE));
        let mut last = (None, Vec::new());
        let matched = ask_again(EVERY, deadline, || {
            let came = self.send(&sent);
            let body = serde_json::from_str(&came.text).unwrap_or(Value::String(came.text));
            let mut wrong = mismatches(&pattern, &body);
            if came.status != step.status {
                wrong.push(format!("HTTP status {} expected, {} found", step.status, came.status));
            }
            let fits = wrong.is_empty();
            last = (Some(body), wrong);
            fits.then_some(())
        });
        let (body, wrong) = last;
        let body = body.expect("it was sent at least once");
        if matched.is_none() {
            let waited = step.until.map(|_| format!(" within {deadline:?}")).unwrap_or_default();
            let wrong = wrong.join("\n  ");
            let Sent { method, target, headers: _, body: text } = &sent;
            return Err(format!(
                "{method} {target}\n{text}\nwas not answered as expected{waited}:\n  {wrong}\n{body}"
            ));
        }
        for (name, pointer) in &step.keep {
            let found = body.pointer(pointer).ok_or_else(|| format!("nothing at {pointer} in {body}"))?;
            variables.set(name, found.clone());
        }
        Ok(())
    }

    fn prepare(&self, request: &Request, variables: &Variables) -> Result<Sent, String> {
        let client = &self.up.client;
        let login = json!({
            "bk_app_code": client.app_code, "bk_app_secret": client.app_secret, "bk_username": client.username,
        });
        let mut headers = vec![("Content-Type".to_owned(), "application/json".to_owned())];
        let mut query: Vec<(String, Value)> = Vec::new();
        for (name, value) in &request.query {
            query.push((name.clone(), variables.expand(value)?));
        }
        let mut body = match &request.body {
            Some(body) => Some(variables.expand(body)?),
            None => None,
        };
        let fields = login.as_object().expect("it was just written").clone();
        match (request.login, &mut body) {
            (Login::Body, Some(Value::Object(body))) => {
                for (name, value) in fields {
                    body.entry(name).or_insert(value);
                }
            }
            (Login::Body, Some(_)) => {
                return Err("a body that is not an object cannot hold a login".to_owned());
            }
            (Login::Body, None) if request.text.is_some() => {}
            (Login::Body, None) => body = Some(login),
            (Login::Header, _) => headers.push(("X-Bkapi-Authorization".to_owned(), login.to_string())),
            (Login::Query, _) => query.extend(fields),
            (Login::None, _) => {}
        }
        for (name, value) in &request.headers {
            headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
            if let Some(value) = value {
                let value = match variables.expand(value)? {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                headers.push((name.clone(), value));
            }
        }
        let mut target = variables.expand_text(&request.path)?;
        for (index, (name, value)) in query.iter().enumerate() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let mark = if index == 0 { '?' } else { '&' };
            target.push_str(&format!("{mark}{name}={}", escaped(&value)));
        }
        let body = match &request.text {
            Some(text) => variables.expand_text(text)?,
            None => body.map(|body| body.to_string()).unwrap_or_default(),
        };
        Ok(Sent { method: request.method.clone(), target, headers, body })
    }

    fn send(&self, sent: &Sent) -> Raw {
        let headers: Vec<(&str, &str)> =
            sent.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.up.client.send(&sent.method, &sent.target, &headers, sent.body.as_bytes())
    }
}

/// A request with everything filled in.
struct Sent {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: String,
}

/// Puts the programs of a case into its folder.
fn furnish(folder: &Path) {
    let programs = fs::read_dir(crate::folder().join("programs")).expect("our programs");
    for program in programs.map(|entry| entry.expect("an entry").path()) {
        symlink(&program, folder.join(program.file_name().expect("a name"))).expect("our own folder");
    }
    symlink(PROCESS.1, folder.join(PROCESS.0)).expect("our own folder");
}

/// As it may stand in a query.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let parts = text.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    parts.collect()
}
