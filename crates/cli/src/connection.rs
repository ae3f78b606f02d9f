//! Where the server is and as whom to speak to it: flags and environment first, then the file that the server
//! leaves in its data folder.

use crate::client::Client;
use crate::error::Error;
use crate::output::plain;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Whom the administrator's app acts for, if nobody says. Other apps act as themselves.
const ADMIN_USERNAME: &str = "admin";

/// The flags that every verb has. A variable that is set to nothing counts as not set.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct Connection {
    /// The server's API, such as http://127.0.0.1:52030
    #[arg(long, env = "PROCFLEET_URL", value_name = "URL")]
    pub url: Option<String>,
    /// The app to speak as
    #[arg(long, env = "PROCFLEET_APP_CODE", value_name = "CODE")]
    pub app_code: Option<String>,
    /// The app's secret; the variable keeps it out of the process list
    #[arg(long, env = "PROCFLEET_APP_SECRET", value_name = "SECRET", hide_env_values = true)]
    pub app_secret: Option<Secret>,
    /// The user that tasks and the audit name; only a trusted app may name one [with admin.json: admin]
    #[arg(long, env = "PROCFLEET_USERNAME", value_name = "NAME")]
    pub username: Option<String>,
    /// The server's data folder, for what the flags above leave open
    #[arg(long, env = "PROCFLEET_DATA", value_name = "DIR", default_value = "./procfleet-data")]
    pub data: PathBuf,
}

/// A text that must not be seen in logs and error messages.
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Everything a client needs to know, checked.
pub(crate) struct Login {
    /// `http://HOST:PORT`, without a slash at its end.
    pub(crate) url: String,
    pub(crate) app_code: String,
    pub(crate) app_secret: Secret,
    /// Empty: the app acts as itself.
    pub(crate) username: String,
    /// Where code and secret come from, for the message when the server does not take them.
    pub(crate) credentials: String,
}

impl Connection {
    pub(crate) fn client(&self) -> Result<Client, Error> {
        Ok(Client::new(self.login()?))
    }

    /// Code and secret are one thing and come from one place, so that a code of one server is never tried with
    /// the secret of another.
    fn login(&self) -> Result<Login, Error> {
        let url = self.url.clone().filter(|url| !url.is_empty());
        let code = self.app_code.clone().filter(|code| !code.is_empty());
        let secret = self.app_secret.clone().filter(|secret| !secret.reveal().is_empty());
        let file = AdminFile::of(&self.data);
        let missing = |missing| Error::NoCredentials {
            missing,
            looked_in: file.path.clone(),
            found: file.content.as_ref().err().cloned().unwrap_or_else(|| "it was read".to_owned()),
        };
        let in_file = file.content.as_ref().ok();
        let url = url.or_else(|| in_file.map(|admin| admin.url.clone())).ok_or_else(|| missing("url"))?;
        let (app_code, app_secret, credentials, acts_for) = match (code, secret, in_file) {
            (Some(code), Some(secret), _) => (code, secret, "the flags or the environment".to_owned(), ""),
            (Some(_), None, _) => return Err(missing("app secret (an app code was given)")),
            (None, Some(_), _) => return Err(missing("app code (an app secret was given)")),
            (None, None, Some(admin)) => (
                admin.bk_app_code.clone(),
                admin.bk_app_secret.clone(),
                file.path.display().to_string(),
                ADMIN_USERNAME,
            ),
            (None, None, None) => return Err(missing("app code and secret")),
        };
        let named = self.username.clone().filter(|name| !name.is_empty());
        let username = named.unwrap_or_else(|| acts_for.to_owned());
        Ok(Login { url: check_url(&url)?, app_code, app_secret, username, credentials })
    }
}

/// What the server writes into its data folder for the person who runs it.
#[derive(serde::Deserialize)]
struct Admin {
    url: String,
    bk_app_code: String,
    bk_app_secret: Secret,
}

struct AdminFile {
    path: PathBuf,
    /// Or why it cannot be used, in a few words that hold nothing of its text.
    content: Result<Admin, String>,
}

impl AdminFile {
    fn of(data: &Path) -> AdminFile {
        let path = data.join("admin.json");
        let content = match std::fs::read(&path) {
            // serde's message can quote the value at fault, and that may be the secret: only its place is told.
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|fault: serde_json::Error| {
                format!("it cannot be understood at line {} column {}", fault.line(), fault.column())
            }),
            Err(fault) if fault.kind() == ErrorKind::NotFound => Err("there is no such file".to_owned()),
            Err(fault) => Err(format!("it cannot be read: {fault}")),
        };
        AdminFile { path, content }
    }
}

fn check_url(url: &str) -> Result<String, Error> {
    let bare = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    match bare {
        // Whatever stands before an @ would be printed with every message that names the address.
        Some(rest) if rest.contains('@') => Err(Error::Usage(
            "the url holds a user or a password; use --app-code and --app-secret".to_owned(),
        )),
        Some(rest) if !rest.is_empty() && !rest.starts_with('/') => Ok(url.trim_end_matches('/').to_owned()),
        Some(_) | None => {
            Err(Error::Usage(format!("not a server's url: {}: expected http://HOST:PORT", plain(url))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        r#"{"url":"http://127.0.0.1:52030/","bk_app_code":"admin","bk_app_secret":"from-file","more":1}"#;

    fn connection(data: &Path) -> Connection {
        Connection { url: None, app_code: None, app_secret: None, username: None, data: data.to_owned() }
    }

    fn data(file: Option<&str>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temp dir");
        if let Some(text) = file {
            std::fs::write(dir.path().join("admin.json"), text).expect("a file in it");
        }
        dir
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_fills_the_gaps() {
        let dir = data(Some(FILE));
        let from_file = connection(dir.path()).login().expect("a login");
        assert_eq!(from_file.url, "http://127.0.0.1:52030");
        assert_eq!((from_file.app_code.as_str(), from_file.app_secret.reveal()), ("admin", "from-file"));
        assert!(from_file.credentials.ends_with("admin.json"));

        let mut given = connection(dir.path());
        given.app_code = Some("ops".to_owned());
        given.app_secret = Some(Secret("given".to_owned()));
        let login = given.login().expect("a login");
        assert_eq!((login.app_code.as_str(), login.app_secret.reveal()), ("ops", "given"));
        assert_eq!((login.url.as_str(), login.username.as_str()), ("http://127.0.0.1:52030", ""));
        given.username = Some("ann".to_owned());
        assert_eq!(given.login().expect("a login").username, "ann");

        given.url = Some("https://fleet.example/gate/".to_owned());
        given.data = PathBuf::from("/nowhere");
        assert_eq!(given.login().expect("no file is needed").url, "https://fleet.example/gate");
    }

    #[test]
    fn an_empty_variable_is_no_value() {
        let dir = data(Some(FILE));
        let mut empty = connection(dir.path());
        empty.url = Some(String::new());
        empty.app_code = Some(String::new());
        empty.app_secret = Some(Secret(String::new()));
        empty.username = Some(String::new());
        let login = empty.login().expect("the file's");
        assert_eq!((login.app_code.as_str(), login.username.as_str()), ("admin", "admin"));
    }

    #[test]
    fn what_is_missing_is_said_with_the_three_ways_and_the_place() {
        let none = data(None);
        let broken = data(Some(r#"{"url":"http://x","bk_app_code":"a","bk_app_secret":77123}"#));
        for (dir, found) in [(&none, "there is no such file"), (&broken, "it cannot be understood at line 1")]
        {
            let text = connection(dir.path()).login().err().expect("nothing to use").to_string();
            let place = dir.path().join("admin.json").display().to_string();
            for part in ["--url", "--app-secret", "PROCFLEET_APP_SECRET", "--data", place.as_str(), found] {
                assert!(text.contains(part), "{part} is not in: {text}");
            }
            assert!(!text.contains("77123"), "{text}");
        }
    }

    #[test]
    fn half_of_the_credentials_is_not_completed_from_the_file() {
        let dir = data(Some(FILE));
        let mut half = connection(dir.path());
        half.app_code = Some("ops".to_owned());
        let error = half.login().err().expect("no secret");
        assert!(error.to_string().starts_with("no app secret (an app code was given)"), "{error}");
        assert_eq!(error.exit(), crate::Exit::Unreachable);
    }

    #[test]
    fn urls() {
        for good in ["http://127.0.0.1:52030", "https://[::1]:52030", "http://fleet/gate"] {
            assert_eq!(check_url(good).expect("good"), good);
        }
        for bad in ["", "127.0.0.1:52030", "ftp://x", "http://", "http:///x", "http://me:pass@x"] {
            let error = check_url(bad).expect_err(bad);
            assert_eq!(error.exit(), crate::Exit::Usage);
            assert!(!error.to_string().contains("pass@"), "{error}");
        }
    }

    #[test]
    fn secrets_do_not_show() {
        let mut with = connection(Path::new("/nowhere"));
        with.app_secret = Some(Secret("hush".to_owned()));
        assert!(!format!("{with:?}").contains("hush"));
    }
}
