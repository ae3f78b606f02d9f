//! The URL and the login of the server. Url, app code and secret come from one source, the first of these
//! that has any of them: the flags, `--data`, the environment, and the `admin.json` in the default data
//! folder. A source that lacks one of the three is refused and not completed from another one, because that
//! would send the secret of one server to another.

use crate::admin_file::{AdminFile, Unusable};
use crate::client::Client;
use crate::error::Error;
use crate::login::{ClientLogin, Secret};
use crate::output::plain;
use crate::tls::Trust;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};
use procfleet_proto::tunnel::ProxyUrl;
use std::path::PathBuf;

/// The user of the administrator's app, if none is named. Other apps act as themselves.
const ADMIN_USERNAME: &str = "admin";

/// The flags that every verb has, and where their values come from.
#[derive(Clone, Debug)]
pub struct ConnectionFlags {
    flags: Flags,
    sources: Sources,
}

/// An empty variable counts as not set.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
#[group(skip)]
struct Flags {
    /// URL of the API, such as http://127.0.0.1:52030; url, code and secret must be given together
    #[arg(long, env = "PROCFLEET_URL", value_name = "URL")]
    url: Option<String>,
    /// bk_app_code of the calling app
    #[arg(long, env = "PROCFLEET_APP_CODE", value_name = "CODE")]
    app_code: Option<String>,
    /// Secret of the app; use the environment variables to keep it out of the process list
    #[arg(long, env = "PROCFLEET_APP_SECRET", value_name = "SECRET", hide_env_values = true)]
    app_secret: Option<Secret>,
    /// User on whose behalf the app acts; only a trusted app may name one [with admin.json: admin]
    #[arg(long, env = "PROCFLEET_USERNAME", value_name = "NAME")]
    username: Option<String>,
    /// Data folder of the server, with url, code and secret in admin.json
    #[arg(long, env = "PROCFLEET_DATA", value_name = "DIR", default_value = "./procfleet-data")]
    data: PathBuf,
    /// Trusted CAs of the server's certificate (PEM, or one in DER) [default: the pin in admin.json, else
    /// SSL_CERT_FILE, else the CAs of this system]
    #[arg(long, env = "PROCFLEET_CA", value_name = "FILE", value_parser = path())]
    ca: Option<PathBuf>,
    /// The CAs of this system, as OpenSSL and other clients know them
    #[arg(long, env = "SSL_CERT_FILE", value_name = "FILE", value_parser = path(), hide = true)]
    ssl_cert_file: Option<PathBuf>,
    /// HTTP proxy on the way to the server (CONNECT): http://[USER:PASSWORD@]HOST:PORT. HTTP_PROXY and the
    /// like have no effect [default: none]
    #[arg(long, env = "PROCFLEET_PROXY", value_name = "URL", hide_env_values = true)]
    proxy: Option<Secret>,
}

/// Clap's own parser of paths refuses an empty variable.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

#[derive(Clone, Copy, Debug)]
struct Sources {
    url: Option<ValueOrigin>,
    app_code: Option<ValueOrigin>,
    app_secret: Option<ValueOrigin>,
    data: Option<ValueOrigin>,
}

/// How a value was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueOrigin {
    Flag,
    Environment,
}

impl Sources {
    fn of(matches: &ArgMatches) -> Sources {
        let of = |id| match matches.value_source(id) {
            Some(ValueSource::CommandLine) => Some(ValueOrigin::Flag),
            Some(ValueSource::EnvVariable) => Some(ValueOrigin::Environment),
            Some(_) | None => None,
        };
        Sources { url: of("url"), app_code: of("app_code"), app_secret: of("app_secret"), data: of("data") }
    }
}

impl clap::Args for ConnectionFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        Flags::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Flags::augment_args_for_update(command)
    }
}

impl FromArgMatches for ConnectionFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ConnectionFlags, clap::Error> {
        Ok(ConnectionFlags { sources: Sources::of(matches), flags: Flags::from_arg_matches(matches)? })
    }

    // Reading a value takes it out of the matches, and its source with it.
    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<ConnectionFlags, clap::Error> {
        Ok(ConnectionFlags { sources: Sources::of(matches), flags: Flags::from_arg_matches_mut(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = ConnectionFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ConnectionFlags {
    pub(crate) fn client(&self) -> Result<Client, Error> {
        Client::new(self.login()?)
    }

    fn login(&self) -> Result<ClientLogin, Error> {
        let Flags { url, app_code, app_secret, username, data, .. } = &self.flags;
        let given = |origin: ValueOrigin| SourceValues {
            url: url.as_ref().filter(|url| !url.is_empty() && self.sources.url == Some(origin)),
            code: app_code.as_ref().filter(|code| !code.is_empty() && self.sources.app_code == Some(origin)),
            secret: app_secret
                .as_ref()
                .filter(|secret| !secret.reveal().is_empty() && self.sources.app_secret == Some(origin)),
        };
        let (flags, environment) = (given(ValueOrigin::Flag), given(ValueOrigin::Environment));
        let named = username.clone().filter(|name| !name.is_empty());
        let says =
            |given: &SourceValues<'_>| given.url.is_some() || given.code.is_some() || given.secret.is_some();
        let (given, origin) = match (says(&flags), says(&environment), self.sources.data) {
            (true, _, _) => (flags, ValueOrigin::Flag),
            (false, true, None | Some(ValueOrigin::Environment)) => (environment, ValueOrigin::Environment),
            (false, _, _) => return self.login_of_file(named),
        };
        let SourceValues { url: Some(url), code: Some(code), secret: Some(secret) } = given else {
            let environment =
                (origin == ValueOrigin::Flag && says(&environment)).then(|| "the environment".to_owned());
            let file = data.join("admin.json");
            let file = file.exists().then(|| file.display().to_string());
            return Err(Error::IncompleteLogin {
                given: given.names(origin, PresentValues::Yes),
                missing: given.names(origin, PresentValues::No),
                others: environment.into_iter().chain(file).collect(),
            });
        };
        let credentials = match origin {
            ValueOrigin::Flag => "the flags",
            ValueOrigin::Environment => "the environment",
        };
        Ok(ClientLogin {
            url: check_url(url)?,
            app_code: code.clone(),
            app_secret: secret.clone(),
            username: named.unwrap_or_default(),
            trust: self.given_ca().unwrap_or_else(|| self.system()),
            proxy: self.proxy()?,
            credentials: credentials.to_owned(),
        })
    }

    fn given_ca(&self) -> Option<Trust> {
        let file = self.flags.ca.clone().filter(|file| !file.as_os_str().is_empty());
        file.map(Trust::Ca)
    }

    fn system(&self) -> Trust {
        let file = self.flags.ssl_cert_file.clone();
        Trust::System(file.filter(|file| !file.as_os_str().is_empty()))
    }

    /// Checked here and not by clap, which would print the value with its password.
    fn proxy(&self) -> Result<Option<ProxyUrl>, Error> {
        let given = self.flags.proxy.as_ref().map(Secret::reveal).filter(|url| !url.is_empty());
        let proxy = given.map(|url| url.parse().map_err(|fault| Error::Usage(format!("--proxy: {fault}"))));
        proxy.transpose()
    }

    fn login_of_file(&self, named: Option<String>) -> Result<ClientLogin, Error> {
        let AdminFile { path, content } = AdminFile::of(&self.flags.data);
        let admin = content.map_err(|unusable| match unusable {
            Unusable::Missing => {
                Error::NoCredentials { looked_in: path.clone(), found: "there is no such file".to_owned() }
            }
            Unusable::Unreadable(found) => Error::NoCredentials { looked_in: path.clone(), found },
            Unusable::Untrusted(why) => Error::Untrusted { path: path.clone(), why },
        })?;
        let pinned = admin.tls_sha256.map(|pin| {
            let why = "its tls_sha256 is no SHA-256 in hexadecimal digits".to_owned();
            Trust::pin(&pin).ok_or(Error::Untrusted { path: path.clone(), why })
        });
        let pinned = pinned.transpose()?.unwrap_or_else(|| self.system());
        Ok(ClientLogin {
            url: check_url(&admin.url)?,
            trust: self.given_ca().unwrap_or(pinned),
            proxy: self.proxy()?,
            app_code: admin.bk_app_code,
            app_secret: admin.bk_app_secret,
            username: named.unwrap_or_else(|| ADMIN_USERNAME.to_owned()),
            credentials: path.display().to_string(),
        })
    }
}

/// The values of one source.
#[derive(Clone, Copy)]
struct SourceValues<'a> {
    url: Option<&'a String>,
    code: Option<&'a String>,
    secret: Option<&'a Secret>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PresentValues {
    Yes,
    No,
}

impl SourceValues<'_> {
    /// The names of present or missing values, as this source calls them.
    fn names(&self, origin: ValueOrigin, which: PresentValues) -> String {
        let all = [
            (self.url.is_some(), "--url", "PROCFLEET_URL"),
            (self.code.is_some(), "--app-code", "PROCFLEET_APP_CODE"),
            (self.secret.is_some(), "--app-secret", "PROCFLEET_APP_SECRET"),
        ];
        let names = all.into_iter().filter(|(is_there, ..)| *is_there == (which == PresentValues::Yes));
        let names = names.map(|(_, flag, variable)| match origin {
            ValueOrigin::Flag => flag,
            ValueOrigin::Environment => variable,
        });
        names.collect::<Vec<_>>().join(" and ")
    }
}

fn check_url(url: &str) -> Result<String, Error> {
    let bare = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    match bare {
        // A password before an @ would be printed with every message that names the URL.
        Some(rest) if rest.contains('@') => Err(Error::Usage(
            "the url holds a user or a password; use --app-code and --app-secret".to_owned(),
        )),
        Some(rest) if !rest.is_empty() && !rest.starts_with('/') => Ok(url.trim_end_matches('/').to_owned()),
        Some(_) | None => {
            let expected = "expected http://HOST:PORT or https://HOST:PORT";
            Err(Error::Usage(format!("not a server's url: {}: {expected}", plain(url))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    const FILE: &str =
        r#"{"url":"http://127.0.0.1:52030/","bk_app_code":"admin","bk_app_secret":"from-file","more":1}"#;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        connection: ConnectionFlags,
    }

    fn connection(flags: &[&str], data: &Path) -> ConnectionFlags {
        let data = data.to_str().expect("a temp dir is text");
        let line = ["procfleet"].into_iter().chain(flags.iter().copied()).chain(["--data", data]);
        Line::try_parse_from(line).expect("flags").connection
    }

    /// Treats the flags as environment variables, and `--data` as not given.
    fn in_environment(mut connection: ConnectionFlags) -> ConnectionFlags {
        let Sources { url, app_code, app_secret, data } = &mut connection.sources;
        for origin in [url, app_code, app_secret] {
            *origin = origin.map(|_| ValueOrigin::Environment);
        }
        *data = None;
        connection
    }

    fn data(file: Option<&str>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temp dir");
        if let Some(text) = file {
            let path = dir.path().join("admin.json");
            std::fs::write(&path, text).expect("a file in it");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("our own file");
        }
        dir
    }

    const ALL: [&str; 6] =
        ["--url", "https://fleet.example/gate/", "--app-code", "ops", "--app-secret", "given"];

    #[track_caller]
    fn check(connection: &ConnectionFlags, url: &str, code: &str, secret: &str, from: &str) {
        let login = connection.login().expect("a login");
        assert_eq!(
            (login.url.as_str(), login.app_code.as_str(), login.app_secret.reveal()),
            (url, code, secret)
        );
        assert!(login.credentials.ends_with(from), "{}", login.credentials);
    }

    #[test]
    fn url_code_and_secret_come_from_the_first_source_that_sets_any() {
        let dir = data(Some(FILE));
        let of_file = ("http://127.0.0.1:52030", "admin", "from-file", "admin.json");
        let given = ("https://fleet.example/gate", "ops", "given");
        check(&connection(&[], dir.path()), of_file.0, of_file.1, of_file.2, of_file.3);
        check(&connection(&ALL, dir.path()), given.0, given.1, given.2, "the flags");
        check(&connection(&ALL, Path::new("/nowhere")), given.0, given.1, given.2, "the flags");
        let mut environment = in_environment(connection(&ALL, dir.path()));
        check(&environment, given.0, given.1, given.2, "the environment");
        environment.sources.data = Some(ValueOrigin::Environment);
        check(&environment, given.0, given.1, given.2, "the environment");
        environment.sources.data = Some(ValueOrigin::Flag);
        check(&environment, of_file.0, of_file.1, of_file.2, of_file.3);

        let username = |connection: &ConnectionFlags| connection.login().expect("a login").username;
        assert_eq!(username(&connection(&ALL, dir.path())), "");
        assert_eq!(username(&connection(&[], dir.path())), "admin");
        assert_eq!(username(&connection(&["--username", "ann"], dir.path())), "ann");
    }

    /// The url of one server is never combined with the secret of another.
    #[test]
    fn half_of_a_login_is_refused_and_not_completed_from_elsewhere() {
        let dir = data(Some(FILE));
        let file = dir.path().join("admin.json").display().to_string();
        let rows: [(&[&str], &str, &str); 5] = [
            (&ALL[..2], "--url without --app-code and --app-secret", "url"),
            (&ALL[2..], "--app-code and --app-secret without --url", "code and secret"),
            (&ALL[2..4], "--app-code without --url and --app-secret", "code"),
            (&ALL[4..], "--app-secret without --url and --app-code", "secret"),
            (&ALL[..4], "--url and --app-code without --app-secret", "url and code"),
        ];
        for (flags, words, what) in rows {
            for connection in [connection(flags, dir.path()), in_environment(connection(flags, dir.path()))] {
                let error = connection.login().err().expect(what);
                assert_eq!(error.exit(), crate::VerbExit::Unreachable);
                let text = error.to_string();
                let words = match connection.sources.data {
                    Some(_) => words.to_owned(),
                    None => {
                        let variable =
                            |flag: &str| format!("PROCFLEET_{}", flag[2..].to_uppercase().replace('-', "_"));
                        words
                            .split(' ')
                            .map(|word| if word.starts_with("--") { variable(word) } else { word.to_owned() })
                            .collect::<Vec<_>>()
                            .join(" ")
                    }
                };
                assert!(text.starts_with(&words) && text.contains(&file), "{words}: {text}");
                assert!(!text.contains("given,") && !text.contains("from-file"), "{text}");
            }
        }
    }

    #[test]
    fn an_empty_variable_counts_as_not_set() {
        let dir = data(Some(FILE));
        let empty = ["--url", "", "--app-code", "", "--app-secret", "", "--username", ""];
        let login = in_environment(connection(&empty, dir.path())).login().expect("the file's");
        assert_eq!((login.app_code.as_str(), login.username.as_str()), ("admin", "admin"));
    }

    #[test]
    fn missing_values_are_named_with_the_three_sources() {
        let none = data(None);
        let broken = data(Some(r#"{"url":"http://x","bk_app_code":"a","bk_app_secret":77123}"#));
        for (dir, found) in [(&none, "there is no such file"), (&broken, "it cannot be understood at line 1")]
        {
            let text = connection(&[], dir.path()).login().err().expect("nothing to use").to_string();
            let file = dir.path().join("admin.json").display().to_string();
            for part in ["--url", "--app-secret", "PROCFLEET_APP_SECRET", "--data", file.as_str(), found] {
                assert!(text.contains(part), "{part} is not in: {text}");
            }
            assert!(!text.contains("77123"), "{text}");
        }
    }

    #[test]
    fn urls() {
        for good in ["http://127.0.0.1:52030", "https://[::1]:52030", "http://fleet/gate"] {
            assert_eq!(check_url(good).expect("good"), good);
        }
        for bad in ["", "127.0.0.1:52030", "ftp://x", "http://", "http:///x", "http://me:pass@x"] {
            let error = check_url(bad).expect_err(bad);
            assert_eq!(error.exit(), crate::VerbExit::Usage);
            assert!(!error.to_string().contains("pass@"), "{error}");
        }
    }

    #[test]
    fn secrets_do_not_show() {
        let flags = ["--app-secret", "hush", "--proxy", "http://ann:hush@proxy:3128"];
        let with = connection(&flags, Path::new("/nowhere"));
        assert!(!format!("{with:?}").contains("hush"));
    }

    #[test]
    fn a_proxy_is_used_only_where_it_is_given() {
        let dir = data(Some(FILE));
        for (flags, expected) in [
            (&[][..], None),
            (&["--proxy", ""], None),
            (&["--proxy", "http://ann:hush@proxy:3128"], Some("http://proxy:3128")),
        ] {
            let of_file = connection(flags, dir.path());
            let by_flags = connection(&[&ALL, flags].concat(), dir.path());
            for connection in [of_file, by_flags] {
                let proxy = connection.login().expect("a login").proxy;
                assert_eq!(proxy.map(|proxy| proxy.to_string()).as_deref(), expected);
            }
        }
        for bad in ["https://ann:hush@proxy:3128", "http://ann:hush@proxy", "ann:hush@proxy:3128"] {
            let error = connection(&["--proxy", bad], dir.path()).login().err().expect(bad);
            assert_eq!(error.exit(), crate::VerbExit::Usage);
            let text = error.to_string();
            assert!(
                text.starts_with("--proxy: expected http://HOST:PORT") && !text.contains("hush"),
                "{text}"
            );
        }
    }
}
