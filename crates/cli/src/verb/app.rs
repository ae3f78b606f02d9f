//! `procfleet app`: the callers of the API and their grants. Scripts read a secret from stdout, so nothing
//! else goes there.

use super::common::CommonFlags;
use crate::client::{ReplyData, path_segment};
use crate::output::plain;
use crate::{Console, Error, VerbExit};
use procfleet_proto::http::native::{AppSecret, AppView, CreateApp};
use serde_json::{Value, json};

#[derive(Clone, Debug, clap::Subcommand)]
pub enum AppVerb {
    /// Create an app and print its secret; it has no rights until it is granted some
    Create(AppCreate),
    /// List all apps and their grants
    List(CommonFlags),
    /// Show an app and its grants
    Show(AppName),
    /// Replace the secret of an app and print the new one; the old one stops working
    Rotate(AppName),
    /// Disable an app; it can no longer log in
    Disable(AppName),
    /// Enable a disabled app
    Enable(AppName),
    /// Grant rights to an app
    ///
    /// Each flag is repeatable, and * is everything of its kind. Without a grant of a kind nothing of it is
    /// allowed.
    Grant(AppEdit),
    /// Revoke rights of an app
    ///
    /// Each flag is repeatable, and * revokes everything of its kind. A right that another grant still covers
    /// (web1 while there is web*) cannot be revoked.
    Revoke(AppEdit),
}

#[derive(Clone, Debug, clap::Args)]
pub struct AppCreate {
    /// bk_app_code of the new app: letters, digits and -_.
    #[arg(value_name = "CODE")]
    pub code: String,
    /// Allow the app to name the user on whose behalf it acts (bk_username)
    #[arg(long)]
    pub trusted: bool,
    #[command(flatten)]
    pub common: CommonFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct AppName {
    /// bk_app_code of the app
    #[arg(value_name = "CODE")]
    pub code: String,
    #[command(flatten)]
    pub common: CommonFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct AppEdit {
    /// bk_app_code of the app
    #[arg(value_name = "CODE")]
    pub code: String,
    #[command(flatten)]
    pub grants: GrantFlags,
    #[command(flatten)]
    pub common: CommonFlags,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Grants")]
#[group(required = true, multiple = true)]
pub struct GrantFlags {
    /// Hosts of this business
    #[arg(long = "business", value_name = "N")]
    pub businesses: Vec<String>,
    /// Processes of this namespace, or of all namespaces with a prefix: web*
    #[arg(long = "namespace", value_name = "PATTERN")]
    pub namespaces: Vec<String>,
    /// Operation: start, stop, query, host, unhost, restart, reload, kill, register, update, unregister,
    /// group
    #[arg(long = "op", value_name = "KIND")]
    pub ops: Vec<String>,
    /// OS account on the hosts; operations without a spec need all accounts (*)
    #[arg(long = "account", value_name = "USER")]
    pub accounts: Vec<String>,
    /// All businesses, namespaces, operations and accounts
    #[arg(long, conflicts_with_all = ["businesses", "namespaces", "ops", "accounts"])]
    pub all: bool,
}

impl AppVerb {
    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        match self {
            AppVerb::Create(AppCreate { code, trusted, common }) => {
                let wanted = CreateApp { code: code.clone(), trusted: *trusted };
                let answer = common.post("/api/v1/apps", &wanted)?;
                common.show(console, &answer, |console, answer| {
                    show_secret(console, answer)?;
                    console
                        .note(&format!("it may use nothing yet: procfleet app grant {} --help", plain(code)));
                    Ok(())
                })
            }
            AppVerb::Rotate(named) => named.common.show(console, &named.post("rotate")?, show_secret),
            AppVerb::List(common) => {
                let answer = common.get("/api/v1/apps")?;
                common.show(console, &answer, |console, answer| show(console, answer.read()?))
            }
            AppVerb::Show(AppName { code, common }) => {
                common.show(console, &common.get(&path(code, ""))?, show_one)
            }
            AppVerb::Disable(named) => named.common.show(console, &named.post("disable")?, show_one),
            AppVerb::Enable(named) => named.common.show(console, &named.post("enable")?, show_one),
            AppVerb::Grant(change) => change.common.show(console, &change.post("grant")?, show_one),
            AppVerb::Revoke(change) => change.common.show(console, &change.post("revoke")?, show_one),
        }
    }
}

impl AppName {
    fn post(&self, action: &str) -> Result<ReplyData, Error> {
        self.common.post_empty(&path(&self.code, action))
    }
}

impl AppEdit {
    fn post(&self, action: &str) -> Result<ReplyData, Error> {
        self.common.post(&path(&self.code, action), &self.grants.body())
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

fn show_secret(console: &mut Console<'_>, answer: &ReplyData) -> Result<(), Error> {
    let made: AppSecret = answer.read()?;
    console.print_line(&plain(&made.secret))?;
    console.note(&format!("the secret of app {}; it is shown only this once", plain(&made.code)));
    Ok(())
}

fn show_one(console: &mut Console<'_>, answer: &ReplyData) -> Result<(), Error> {
    show(console, vec![answer.read()?])
}

fn show(console: &mut Console<'_>, apps: Vec<AppView>) -> Result<(), Error> {
    console.table(
        ["APP", "STATE", "MAY NAME USERS", "BUSINESSES", "NAMESPACES", "OPS", "ACCOUNTS"],
        apps.into_iter().map(cells).collect(),
        "no apps",
    )
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
