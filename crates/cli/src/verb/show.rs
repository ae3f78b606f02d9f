//! `procfleet show`: the spec that hosts have stored for a process, as `start --file` takes it.

use super::targets::{NAMESPACE_WITHOUT_FILE, Targets};
use crate::client::Client;
use crate::output::{Format, OutputFlag, plain};
use crate::{ConnectionFlags, Console, Error, VerbExit};
use procfleet_core::op::OpKind;
use procfleet_proto::http::native::{MeantProc, OperateAnswer, SpecView};
use serde_json::{Map, Value, json};

#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("namespace", |namespace| namespace.help(NAMESPACE_WITHOUT_FILE)))]
pub struct Show {
    #[command(flatten)]
    pub targets: Targets,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

/// A spec, and the hosts that have stored exactly this spec.
struct SharedSpec {
    file: Value,
    hosts: Vec<String>,
}

impl Show {
    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let client = self.connection.client()?;
        let mut body = Map::new();
        self.targets.write(&mut body)?;
        body.insert("op_type".to_owned(), json!(OpKind::Query.number()));
        body.insert("dry_run".to_owned(), json!(true));
        let matches: OperateAnswer = client.post("/api/v1/operate", &body)?.read()?;
        let by_agent = !self.targets.agents.is_empty();
        let (mut views, mut exit) = (Vec::new(), VerbExit::Done);
        let mut found: Vec<SharedSpec> = Vec::new();
        let several = matches.procs.iter().map(|proc| proc.hosts.len()).sum::<usize>() > 1;
        for proc in &matches.procs {
            for host in &proc.hosts {
                match ask(&client, proc, host, by_agent) {
                    Ok((data, view)) => {
                        views.push(data);
                        take(&mut found, &view);
                    }
                    // A host that is away does not affect the others.
                    Err(fault @ Error::Refused { .. }) if several => {
                        let of = plain(&format!("{host} {}:{}", proc.namespace, proc.name));
                        console.note(&format!("{of}: error: {fault}"));
                        exit = VerbExit::Failed;
                    }
                    Err(fault) => return Err(fault),
                }
            }
        }
        match (self.output.format(), found.as_slice()) {
            (Format::Json, _) => console.json(&Value::Array(views))?,
            (Format::Text, [one]) => {
                if one.hosts.len() > 1 {
                    console.note(&format!("the same on {} hosts", one.hosts.len()));
                }
                console.json(&one.file)?;
            }
            // Each spec is its own document; a line on stderr before it names its hosts.
            (Format::Text, several) => {
                for SharedSpec { file, hosts } in several {
                    console.note(&plain(&format!("on {}:", hosts.join(", "))));
                    console.json(file)?;
                }
            }
        }
        Ok(exit)
    }
}

fn ask(client: &Client, proc: &MeantProc, host: &str, by_agent: bool) -> Result<(Value, SpecView), Error> {
    let field = if by_agent { "agent" } else { "host" };
    let query =
        [("namespace", proc.namespace.clone()), ("name", proc.name.clone()), (field, host.to_owned())];
    let answer = client.get("/api/v1/specs", &query)?;
    let view = answer.read()?;
    Ok((answer.data, view))
}

fn take(found: &mut Vec<SharedSpec>, view: &SpecView) {
    let file = json!({"meta": view.meta, "spec": view.spec});
    let host = format!("{}:{}", view.bk_cloud_id, view.ip);
    match found.iter_mut().find(|same| same.file == file) {
        Some(same) => same.hosts.push(host),
        None => found.push(SharedSpec { file, hosts: vec![host] }),
    }
}
