//! The URL of a PostgreSQL store as an argument: `--store` of the server, `--to` of `store copy`.
//!
//! The URL may hold a password. So clap does not judge it, because clap's errors would print it, and a
//! program that gets one as an argument executes itself again with the URL in `PROCFLEET_STORE`.

use procfleet_program::argv::{reexec_with_env, without_option};
use procfleet_store::{StoreUrl, UrlFault};
use std::convert::Infallible;
use std::str::FromStr;
use std::sync::Arc;

/// The environment variable that stands for the argument.
pub(crate) const VARIABLE: &str = "PROCFLEET_STORE";

#[derive(Clone)]
pub(crate) struct StoreArgument {
    text: String,
    url: Result<StoreUrl, Arc<UrlFault>>,
}

/// An argument that cannot be used. The program exits with 2.
#[derive(Debug, thiserror::Error)]
#[error("{option}: {reason}")]
pub(crate) struct BadArgument {
    option: &'static str,
    reason: Arc<UrlFault>,
}

impl FromStr for StoreArgument {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<StoreArgument, Infallible> {
        Ok(StoreArgument { text: text.to_owned(), url: text.parse().map_err(Arc::new) })
    }
}

impl StoreArgument {
    /// `option` is the name of the argument.
    pub(crate) fn url(self, option: &'static str) -> Result<StoreUrl, BadArgument> {
        self.url.map_err(|reason| BadArgument { option, reason })
    }

    /// Whether other users must not see it.
    pub(crate) fn has_password(&self) -> bool {
        self.url.as_ref().is_ok_and(StoreUrl::has_password)
    }

    /// Executes the program again without the option, if it was an argument and has a password.
    pub(crate) fn hide(&self, option: &str) -> std::io::Result<()> {
        if !self.has_password() {
            return Ok(());
        }
        match without_option(std::env::args_os(), option) {
            Some(arguments) => Err(reexec_with_env(&arguments, VARIABLE, &self.text)),
            None => Ok(()),
        }
    }
}
