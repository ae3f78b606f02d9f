//! `procfleet show`: the spec that hosts have stored for a process, as `start --file` takes it.

use super::targets::Targets;
use crate::client::Client;
use crate::output::{Format, OutputFlag, plain};
use crate::{ConnectionFlags, Error, Surroundings, VerbExit};
use procfleet_core::op::OpKind;
use procfleet_proto::http::native::{MeantProc, OperateAnswer, SpecView};
use serde_json::{Map, Value, json};

#[derive(Clone, Debug, clap::Args)]
pub struct Show {
    #[command(flatten)]
    pub targets: Targets,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

/// A spec, and the hosts that have stored exactly this spec.
struct Same {
    file: Value,
    hosts: Vec<String>,
}

impl Show {
    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let client = self.connection.client()?;
        let mut body = Map::new();
        self.targets.write(&mut body)?;
        body.insert("op_type".to_owned(), json!(OpKind::Query.number()));
        body.insert("dry_run".to_owned(), json!(true));
        let meant: OperateAnswer = client.post("/api/v1/operate", &body)?.read()?;
        let by_agent = !self.targets.agents.is_empty();
        let (mut views, mut exit) = (Vec::new(), VerbExit::Done);
        let mut found: Vec<Same> = Vec::new();
        let several = meant.procs.iter().map(|proc| proc.hosts.len()).sum::<usize>() > 1;
        for proc in &meant.procs {
            for host in &proc.hosts {
                match ask(&client, proc, host, by_agent) {
                    Ok((data, view)) => {
                        views.push(data);
                        take(&mut found, &view);
                    }
                    // One host that is away spoils nothing for the others.
                    Err(fault @ Error::Refused { .. }) if several => {
                        let of = plain(&format!("{host} {}:{}", proc.namespace, proc.name));
                        around.note(&format!("{of}: error: {fault}"));
                        exit = VerbExit::Failed;
                    }
                    Err(fault) => return Err(fault),
                }
            }
        }
        match (self.output.format(), found.as_slice()) {
            (Format::Json, _) => around.json(&Value::Array(views))?,
            (Format::Text, [one]) => {
                if one.hosts.len() > 1 {
                    around.note(&format!("the same on {} hosts", one.hosts.len()));
                }
                around.json(&one.file)?;
            }
            // Each spec is its own document; a line on stderr before it names its hosts.
            (Format::Text, several) => {
                for Same { file, hosts } in several {
                    around.note(&plain(&format!("on {}:", hosts.join(", "))));
                    around.json(file)?;
                }
            }
        }
        Ok(exit)
    }
}

fn ask(client: &Client, proc: &MeantProc, host: &str, by_agent: bool) -> Result<(Value, SpecView), Error> {
    let place = if by_agent { "agent" } else { "host" };
    let query =
        [("namespace", proc.namespace.clone()), ("name", proc.name.clone()), (place, host.to_owned())];
    let answer = client.get("/api/v1/specs", &query)?;
    let view = answer.read()?;
    Ok((answer.data, view))
}

fn take(found: &mut Vec<Same>, view: &SpecView) {
    let file = json!({"meta": view.meta, "spec": view.spec});
    let host = format!("{}:{}", view.bk_cloud_id, view.ip);
    match found.iter_mut().find(|same| same.file == file) {
        Some(same) => same.hosts.push(host),
        None => found.push(Same { file, hosts: vec![host] }),
    }
}
