//! Errors of verbs, with messages that a person can act on.
//!
//! An op that failed on its host is not an error here: it is an answer, and makes the exit
//! [`VerbExit::Failed`].

use crate::VerbExit;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line or a file it names must be changed.
    #[error("{0}")]
    Usage(String),
    #[error(
        "nothing to connect with: give --url, --app-code and --app-secret; or set PROCFLEET_URL, \
         PROCFLEET_APP_CODE and PROCFLEET_APP_SECRET; or name the server's folder with --data, which holds \
         admin.json (looked in {}: {found})",
        looked_in.display()
    )]
    NoCredentials { looked_in: PathBuf, found: String },
    #[error(
        "{given} without {missing}: url, app code and secret must come from one source, so that no secret is sent to \
         another server{}",
        not_mixed(others)
    )]
    IncompleteLogin { given: String, missing: String, others: Vec<String> },
    #[error("{} is not used: {why}", path.display())]
    Untrusted { path: PathBuf, why: String },
    /// Nothing was sent.
    #[error("cannot reach {url}: {why}; is the server running? (procfleet up)")]
    Unreachable { url: String, why: String },
    /// Nothing was sent to the server.
    #[error("cannot reach {url} through the proxy {proxy}: {why}")]
    Proxy { url: String, proxy: String, why: String },
    /// The connection broke after a reading request was sent: asking again is harmless.
    #[error("lost {url} while it was answering: {why}")]
    Interrupted { url: String, why: String },
    /// The connection broke after a changing request was sent: asking again may do it twice.
    #[error(
        "lost {url} while it was answering: {why}; the request may have been accepted, so look at \
         `procfleet task list` before you repeat it"
    )]
    OutcomeUnknown { url: String, why: String },
    #[error("{url} answers (http status {status}), but not as procfleet does: {why}; is the address right?")]
    UnexpectedAnswer { url: String, status: u16, why: String },
    #[error("the server refuses the login: {message} (code {code}); the credentials are from {credentials}")]
    Denied { message: String, code: u32, credentials: String },
    #[error("the server refused: {message} (code {code})")]
    Refused { message: String, code: u32 },
    #[error("cannot write the output: {0}")]
    Output(std::io::Error),
}

impl Error {
    pub fn exit(&self) -> VerbExit {
        match self {
            Error::Usage(_) => VerbExit::Usage,
            Error::NoCredentials { .. }
            | Error::IncompleteLogin { .. }
            | Error::Untrusted { .. }
            | Error::Unreachable { .. }
            | Error::Proxy { .. }
            | Error::Interrupted { .. }
            | Error::OutcomeUnknown { .. }
            | Error::UnexpectedAnswer { .. }
            | Error::Denied { .. } => VerbExit::Unreachable,
            Error::Refused { .. } | Error::Output(_) => VerbExit::Failed,
        }
    }
}

fn not_mixed(others: &[String]) -> String {
    match others {
        [] => String::new(),
        others => format!(" (not mixed with what {} says)", others.join(" or ")),
    }
}
