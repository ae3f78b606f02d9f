//! `procfleet app`: who may call the API, and what each may use. Scripts read a secret from stdout, so
//! nothing else goes there.

use crate::client::{ReplyData, path_segment};
use crate::output::{Format, OutputFlag, plain};
use crate::{ConnectionFlags, Error, Surroundings, VerbExit};
use procfleet_proto::http::native::{AppSecret, AppView, CreateApp};
use serde_json::{Value, json};

#[derive(Clone, Debug, clap::Subcommand)]
pub enum AppVerb {
    /// Make an app and print its secret; until it is granted something, it can only log in
    Create(AppCreate),
    /// Show all apps and what they may use
    List(AppList),
    /// Show one app and what it may use
    Show(AppName),
    /// Give an app a new secret and print it; the old one opens nothing any more
    Rotate(AppName),
    /// Let an app in no more
    Disable(AppName),
    /// Let a disabled app in again
    Enable(AppName),
    /// Allow an app to use more
    ///
    /// Each flag may be given several times, and * is everything of its kind. Without a grant of a kind
    /// nothing of it is allowed.
    Grant(AppEdit),
    /// Take back what an app was allowed
    ///
    /// Each flag may be given several times, and * takes back everything of its kind. What would go on by
    /// another grant (web1 while there is web*) is refused.
    Revoke(AppEdit),
}

#[derive(Clone, Debug, clap::Args)]
pub struct AppCreate {
    /// The new app's bk_app_code: letters, digits and -_.
    #[arg(value_name = "CODE")]
    pub code: String,
    /// Trust it to name the user that it acts for (bk_username)
    #[arg(long)]
    pub trusted: bool,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct AppList {
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct AppName {
    /// The app's bk_app_code
    #[arg(value_name = "CODE")]
    pub code: String,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct AppEdit {
    /// The app's bk_app_code
    #[arg(value_name = "CODE")]
    pub code: String,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub grants: GrantFlags,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Grants")]
#[group(required = true, multiple = true)]
pub struct GrantFlags {
    /// Hosts of this business
    #[arg(long = "business", value_name = "N")]
    pub businesses: Vec<String>,
    /// Processes of this namespace, or of all that begin alike: web*
    #[arg(long = "namespace", value_name = "PATTERN")]
    pub namespaces: Vec<String>,
    /// This operation: start, stop, query, host, unhost, restart, reload, kill, register, update, unregister,
    /// group
    #[arg(long = "op", value_name = "KIND")]
    pub ops: Vec<String>,
    /// This OS account on the hosts; operations without a spec need all of them (*)
    #[arg(long = "account", value_name = "USER")]
    pub accounts: Vec<String>,
    /// Everything of all four kinds
    #[arg(long, conflicts_with_all = ["businesses", "namespaces", "ops", "accounts"])]
    pub all: bool,
}

impl AppVerb {
    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        match self {
            AppVerb::Create(create) => {
                let wanted = CreateApp { code: create.code.clone(), trusted: create.trusted };
                let answer = create.connection.client()?.post("/api/v1/apps", &wanted)?;
                show_secret(around, &answer, create.output)?;
                if create.output.format() == Format::Text {
                    let code = plain(&create.code);
                    around.note(&format!("it may use nothing yet: procfleet app grant {code} --help"));
                }
            }
            AppVerb::Rotate(named) => show_secret(around, &named.post("rotate")?, named.output)?,
            AppVerb::List(list) => {
                let answer = list.connection.client()?.get("/api/v1/apps", &[])?;
                show(around, &answer, list.output, |answer| answer.read())?;
            }
            AppVerb::Show(named) => {
                let answer = named.connection.client()?.get(&path(&named.code, ""), &[])?;
                show(around, &answer, named.output, one)?;
            }
            AppVerb::Disable(named) => show(around, &named.post("disable")?, named.output, one)?,
            AppVerb::Enable(named) => show(around, &named.post("enable")?, named.output, one)?,
            AppVerb::Grant(change) => show(around, &change.post("grant")?, change.output, one)?,
            AppVerb::Revoke(change) => show(around, &change.post("revoke")?, change.output, one)?,
        }
        Ok(VerbExit::Done)
    }
}

impl AppName {
    fn post(&self, action: &str) -> Result<ReplyData, Error> {
        self.connection.client()?.post(&path(&self.code, action), &json!({}))
    }
}

impl AppEdit {
    fn post(&self, action: &str) -> Result<ReplyData, Error> {
        self.connection.client()?.post(&path(&self.code, action), &self.grants.body())
    }
}

impl GrantFlags {
    fn body(&self) -> Value {
        let GrantFlags { businesses, namespaces, ops, accounts, all } = self;
        match all {
            true => json!({"all": true}),
            false => {
                json!({"businesses": businesses, "namespaces": namespaces, "ops": ops, "accounts": accounts})
            }
        }
    }
}

fn path(code: &str, action: &str) -> String {
    let app = format!("/api/v1/apps/{}", path_segment(code));
    if action.is_empty() { app } else { format!("{app}/{action}") }
}

fn show_secret(around: &mut Surroundings<'_>, answer: &ReplyData, output: OutputFlag) -> Result<(), Error> {
    match output.format() {
        Format::Json => around.json(&answer.data),
        Format::Text => {
            let made: AppSecret = answer.read()?;
            around.say(&plain(&made.secret))?;
            around.note(&format!("the secret of app {}; it is shown only this once", plain(&made.code)));
            Ok(())
        }
    }
}

fn one(answer: &ReplyData) -> Result<Vec<AppView>, Error> {
    Ok(vec![answer.read()?])
}

fn show(
    around: &mut Surroundings<'_>,
    answer: &ReplyData,
    output: OutputFlag,
    rows: impl FnOnce(&ReplyData) -> Result<Vec<AppView>, Error>,
) -> Result<(), Error> {
    match output.format() {
        Format::Json => around.json(&answer.data),
        Format::Text => around.table(
            ["APP", "STATE", "MAY NAME USERS", "BUSINESSES", "NAMESPACES", "OPS", "ACCOUNTS"],
            rows(answer)?.into_iter().map(cells).collect(),
            "no apps",
        ),
    }
}

fn cells(app: AppView) -> [String; 7] {
    let state = match (app.administrator, app.disabled) {
        (true, _) => "administrator",
        (false, true) => "disabled",
        (false, false) => "enabled",
    };
    let grants = app.grants;
    [
        app.code,
        state.to_owned(),
        crate::output::yes_no(app.trusted),
        grants.businesses.join(", "),
        grants.namespaces.join(", "),
        grants.ops.join(", "),
        grants.accounts.join(", "),
    ]
}
