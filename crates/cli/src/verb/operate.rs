//! `procfleet start`, `stop`, `restart`, `reload`, `kill`, `host`, `unhost` and `status`: one operation on any
//! number of hosts, and waiting for its outcomes. What the request looks like is in `request`, what a status looks
//! like in `status`.

use super::{request, status};
use crate::client::{Answer, Client};
use crate::output::{Format, Output, plain};
use crate::wait::{Waiting, Watched};
use crate::{Connection, Error, Exit, Surroundings};
use procfleet_core::id::{AgentId, Host};
use procfleet_core::op::OpKind;
use procfleet_proto::http::native::{AgentRow, Operated};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Clone, Debug, clap::Args)]
pub struct Operate {
    /// The process's name in its namespace
    pub name: String,
    /// The group of processes it belongs to [default: that of the file, else "default"]
    #[arg(long, value_name = "NS")]
    pub namespace: Option<String>,
    /// A host to do it on; give it again for more. With no target: the only agent there is
    #[arg(long = "host", value_name = "CLOUD:IP", conflicts_with_all = ["agents", "select"])]
    pub hosts: Vec<Host>,
    /// An agent to do it on, by its id; give it again for more
    #[arg(long = "agent", value_name = "ID", conflicts_with = "select")]
    pub agents: Vec<AgentId>,
    /// The hosts to do it on, by what they are: addresses (10.0.0.1), ranges (10.0.0.1-10.0.0.50), blocks (10.0.0.0/24), globs
    /// (10.0.*), agent ids, labels (role=web*). Give it again for more places, or for labels that all must be there
    #[arg(long, value_name = "TERM")]
    pub select: Vec<String>,
    /// Only show the hosts that --select, --host or --agent means, and send them nothing
    #[arg(long)]
    pub dry_run: bool,
    /// A request body or a spec as JSON (- reads stdin); flags win over it
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// A label of the process; give it again for more
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
    #[command(flatten)]
    pub waiting: Waiting,
    /// The same call under the same key is one task, however often it is sent
    #[arg(long, value_name = "KEY", conflicts_with = "dry_run")]
    pub idempotency_key: Option<String>,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub spec: SpecFlags,
    #[command(flatten)]
    pub connection: Connection,
}

/// A spec in flags. With none of them (and no file) no spec is sent, and agents use the one they have stored.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Spec (none of these: the one that the agent has stored)")]
pub struct SpecFlags {
    /// The command that starts the process
    #[arg(long = "cmd", value_name = "COMMAND")]
    pub start_cmd: Option<String>,
    /// The command that stops it [none: SIGTERM]
    #[arg(long, value_name = "COMMAND")]
    pub stop_cmd: Option<String>,
    /// The command that restarts it [none: stop, then start]
    #[arg(long, value_name = "COMMAND")]
    pub restart_cmd: Option<String>,
    /// The command that lets it read its configuration again
    #[arg(long, value_name = "COMMAND")]
    pub reload_cmd: Option<String>,
    /// The command that ends it by force [none: SIGKILL]
    #[arg(long, value_name = "COMMAND")]
    pub kill_cmd: Option<String>,
    /// The file that it writes its pid to, if it does; relative to the setup path
    #[arg(long, value_name = "PATH")]
    pub pid_file: Option<PathBuf>,
    /// The folder on the host that commands run in [default: this folder]
    #[arg(long, value_name = "DIR")]
    pub setup_path: Option<PathBuf>,
    /// The account on the host that commands run as [default: root]
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// The file name of the program [default: NAME]
    #[arg(long, value_name = "NAME")]
    pub proc_name: Option<String>,
    /// How long it must be alive to count as started
    #[arg(long, value_name = "SECS")]
    pub start_check_secs: Option<u64>,
    /// How long it may take to be gone
    #[arg(long, value_name = "SECS")]
    pub stop_check_secs: Option<u64>,
    /// How long one command may run
    #[arg(long, value_name = "SECS")]
    pub op_timeout: Option<u64>,
    /// How often in a row it is started again before the agent gives up
    #[arg(long, value_name = "N")]
    pub start_retries: Option<u64>,
    /// How long a run must be to count as stable
    #[arg(long, value_name = "SECS")]
    pub start_interval: Option<u64>,
    /// How many samples in a row, 5 seconds apart, must be over a limit
    #[arg(long, value_name = "N")]
    pub limit_samples: Option<u64>,
    /// What happens when its health_cmd fails again and again: tell or restart
    #[arg(long, value_name = "WHAT")]
    pub on_unhealthy: Option<String>,
    /// What happens to what it left behind: end or keep
    #[arg(long, value_name = "WHAT")]
    pub detached: Option<String>,
}

#[derive(Deserialize)]
struct Accepted {
    task_id: String,
}

impl Operate {
    pub(crate) fn run(&self, kind: OpKind, around: &mut Surroundings<'_>) -> Result<Exit, Error> {
        // What can be wrong with the command line is found before the server is asked anything.
        let terms = self.terms()?;
        let file = self.file.as_deref().map(|path| request::read_file(path, around.input)).transpose()?;
        let mut body = request::body(self, kind, file)?;
        let client = self.connection.client()?;
        if !terms.is_empty() {
            return self.run_selected(kind, &client, body, terms, around);
        }
        if !request::has_target(&body) {
            let (key, value) = only_agent(&client)?;
            body.insert(key.to_owned(), value);
        }
        let answer = client.post_once(
            "/api/c/compapi/v2/gse/operate_proc_v2/",
            &body,
            self.idempotency_key.as_deref(),
        )?;
        let Accepted { task_id } = answer.read()?;
        self.follow(kind, &client, &answer, &task_id, around)
    }

    /// What the server is to select hosts by. A dry run goes this way whatever its targets: it is the one that sends nothing.
    fn terms(&self) -> Result<Vec<String>, Error> {
        if !self.dry_run || !self.select.is_empty() {
            return Ok(self.select.clone());
        }
        let hosts = self.hosts.iter().map(Host::to_string);
        let terms: Vec<String> = hosts.chain(self.agents.iter().map(AgentId::to_string)).collect();
        match terms.is_empty() {
            true => Err(Error::Usage("--dry-run needs --select, --host or --agent to say where".to_owned())),
            false => Ok(terms),
        }
    }

    fn run_selected(
        &self,
        kind: OpKind,
        client: &Client,
        mut body: serde_json::Map<String, Value>,
        terms: Vec<String>,
        around: &mut Surroundings<'_>,
    ) -> Result<Exit, Error> {
        // A file may name targets of its own; the command line wins.
        body.shift_remove("hosts");
        body.shift_remove("agent_id_list");
        body.insert("select".to_owned(), json!(terms));
        body.insert("dry_run".to_owned(), json!(self.dry_run));
        let answer = client.post_once("/api/v1/operate", &body, self.idempotency_key.as_deref())?;
        let Operated { task_id, count, hosts } = answer.read()?;
        let meant =
            if count == 1 { "1 host is meant".to_owned() } else { format!("{count} hosts are meant") };
        if !self.dry_run {
            around.note(&meant);
            return self.follow(kind, client, &answer, &task_id, around);
        }
        match self.output.format() {
            Format::Json => around.json(&answer.data)?,
            Format::Text => {
                around.note(&format!("{meant}; nothing was sent"));
                hosts.iter().try_for_each(|host| around.say(&plain(host)))?;
            }
        }
        Ok(Exit::Done)
    }

    /// Waits for the outcomes, unless nobody wants to.
    fn follow(
        &self,
        kind: OpKind,
        client: &Client,
        answer: &Answer,
        task_id: &str,
        around: &mut Surroundings<'_>,
    ) -> Result<Exit, Error> {
        match self.waiting.follow(client, answer, task_id, &self.output, around)? {
            Some(seen) => self.report(kind, &seen, around),
            None => Ok(Exit::Done),
        }
    }

    fn report(&self, kind: OpKind, seen: &Watched, around: &mut Surroundings<'_>) -> Result<Exit, Error> {
        match (self.output.format(), kind) {
            (Format::Json, _) => around.json(&seen.data)?,
            (Format::Text, OpKind::Query) => {
                around.table(status::HEADER, status::rows(&seen.view.ops), "the task has no ops")?;
            }
            (
                Format::Text,
                OpKind::Start
                | OpKind::Stop
                | OpKind::Host
                | OpKind::Unhost
                | OpKind::Restart
                | OpKind::Reload
                | OpKind::Kill
                | OpKind::Register
                | OpKind::Update
                | OpKind::Unregister
                | OpKind::Group,
            ) => around.say(&seen.summary())?,
        }
        Ok(seen.exit())
    }
}

/// The target of an order that names none: without a choice there is nothing to choose wrongly.
fn only_agent(client: &Client) -> Result<(&'static str, Value), Error> {
    const LISTED: usize = 10;
    let agents: Vec<AgentRow> = client.get("/api/v1/agents", &[])?.read()?;
    match agents.as_slice() {
        [] => Err(Error::Usage(
            "no agent has joined yet, so there is no host to do it on: procfleet token create makes a token for one"
                .to_owned(),
        )),
        // An agent that never told its address can still be named by its id.
        [agent] if agent.ip.is_empty() => Ok(("agent_id_list", json!([agent.bk_agent_id]))),
        [agent] => Ok(("hosts", json!([{"ip": agent.ip, "bk_cloud_id": agent.bk_cloud_id}]))),
        several => {
            let mut text =
                format!("there are {} agents: choose with --host CLOUD:IP or --agent ID", several.len());
            for agent in several.iter().take(LISTED) {
                let (cloud, ip, id) = (agent.bk_cloud_id, &agent.ip, &agent.bk_agent_id);
                text.push_str(&format!("\n  {}", plain(&format!("--host {cloud}:{ip}  (--agent {id})"))));
            }
            if several.len() > LISTED {
                text.push_str(&format!("\n  and {} more: procfleet agents", several.len() - LISTED));
            }
            Err(Error::Usage(text))
        }
    }
}

pub(super) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err("expected KEY=VALUE".to_owned()),
    }
}
