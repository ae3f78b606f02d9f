//! A BlueKing login service, which knows whose a `bk_token` is.
//!
//! It is asked over HTTP, within a bounded time and by a bounded number of calls at once: the threads that
//! wait for it are those that read the store, too. What it says is remembered for a minute; that it did not
//! answer is not. Tokens are kept as hashes and never logged, nor is an error text of the HTTP client, which
//! may repeat the url.

use crate::secret;
use procfleet_http_client::Timeouts;
use procfleet_program::panics;
use procfleet_proto::http::login_service::{TokenVerdict, verdict};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::warn;
use ureq::http::Uri;

/// How long a caller waits for it.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long an answer holds. A user who logs out there is let in here for so long at most.
const FRESH: Duration = Duration::from_secs(60);
/// How many answers are remembered: about a megabyte.
const REMEMBERED: usize = 10_000;
/// How many calls may wait for it at once.
const AT_ONCE: usize = 16;
const LARGEST_ANSWER: u64 = 64 * 1024;

/// Where it is asked: an http or https url without the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginUrl(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginUnanswered {
    #[error("the login service did not answer")]
    Silent,
    #[error("the login service did not answer in a way that is understood here")]
    Strange,
}

#[derive(Clone, Debug)]
pub struct LoginService {
    inner: Arc<Inner>,
}

struct Inner {
    url: LoginUrl,
    client: ureq::Agent,
    places: Arc<Semaphore>,
    answers: Mutex<CachedAnswers>,
}

/// What it said, by the hash of the token, and until when that holds.
#[derive(Default)]
struct CachedAnswers(HashMap<[u8; 32], (Instant, TokenVerdict)>);

impl LoginService {
    pub fn new(url: LoginUrl) -> LoginService {
        let client = procfleet_http_client::client(Timeouts { connect: None, overall: PATIENCE });
        let (places, answers) = (Arc::new(Semaphore::new(AT_ONCE)), Mutex::default());
        LoginService { inner: Arc::new(Inner { url, client, places, answers }) }
    }

    /// Whose token it is, as the service says now or has said within the last minute.
    pub async fn ask(&self, token: &str) -> Result<TokenVerdict, LoginUnanswered> {
        let hash = secret::hash(token.as_bytes());
        if let Some(said) = self.answers().get(&hash, Instant::now()) {
            return Ok(said);
        }
        match timeout(PATIENCE, self.ask_now(token.to_owned())).await {
            Ok(Ok(said)) => {
                self.answers().put(hash, said.clone(), Instant::now());
                Ok(said)
            }
            Ok(Err(unanswered)) => Err(unanswered),
            Err(_) => {
                warn!(reason = "time is up", "the login service did not answer");
                Err(LoginUnanswered::Silent)
            }
        }
    }

    async fn ask_now(&self, token: String) -> Result<TokenVerdict, LoginUnanswered> {
        // The place is given back by the thread, not by a caller that has given up: the thread may still
        // wait.
        let place = self.inner.places.clone().acquire_owned().await.map_err(|_| LoginUnanswered::Silent)?;
        let inner = self.inner.clone();
        let asking = panics::block_for_request(move || {
            let _place = place;
            inner.ask(&token)
        });
        asking.await.unwrap_or(Err(LoginUnanswered::Silent))
    }

    fn answers(&self) -> MutexGuard<'_, CachedAnswers> {
        self.inner.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedAnswers {
    fn get(&self, hash: &[u8; 32], now: Instant) -> Option<TokenVerdict> {
        self.0.get(hash).filter(|(until, _)| now < *until).map(|(_, said)| said.clone())
    }

    fn put(&mut self, hash: [u8; 32], said: TokenVerdict, now: Instant) {
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, (until, _)| now < *until);
        }
        if self.0.len() >= REMEMBERED {
            let oldest = self.0.iter().min_by_key(|(_, (until, _))| *until).map(|(hash, _)| *hash);
            oldest.and_then(|hash| self.0.remove(&hash));
        }
        self.0.insert(hash, (now + FRESH, said));
    }
}

impl Inner {
    fn ask(&self, token: &str) -> Result<TokenVerdict, LoginUnanswered> {
        let answer = self.client.get(&self.url.0).query("bk_token", token).call().and_then(|mut response| {
            let body = response.body_mut().with_config().limit(LARGEST_ANSWER).read_to_vec()?;
            Ok((response.status().as_u16(), body))
        });
        let (status, body) = answer.map_err(|fault| {
            warn!(reason = words_for(&fault), "the login service did not answer");
            LoginUnanswered::Silent
        })?;
        verdict(&body).filter(|_| status < 500).ok_or_else(|| {
            warn!(status, bytes = body.len(), "the login service answered with something else");
            LoginUnanswered::Strange
        })
    }
}

/// Fixed words, for its own may hold the url and with it the token.
fn words_for(fault: &ureq::Error) -> &'static str {
    match fault {
        ureq::Error::Timeout(_) => "time is up",
        ureq::Error::HostNotFound => "no such host",
        ureq::Error::ConnectionFailed | ureq::Error::Io(_) => "no connection",
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => "its certificate is not trusted, or TLS failed",
        ureq::Error::BodyExceedsLimit(_) => "the answer is too large",
        // `ureq::Error` is non-exhaustive; the other variants should not occur here.
        _ => "the request failed",
    }
}

impl FromStr for LoginUrl {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected http://HOST/… or https://HOST/…";
        let uri: Uri = text.parse().map_err(|_| expected.to_owned())?;
        match uri.scheme_str() {
            Some("http" | "https") => {}
            Some(_) | None => return Err(expected.to_owned()),
        }
        match uri.authority() {
            Some(authority) if authority.as_str().contains('@') => {
                Err("must not hold a user name or password".to_owned())
            }
            Some(_) => Ok(LoginUrl(text.to_owned())),
            None => Err(expected.to_owned()),
        }
    }
}

impl fmt::Debug for Inner {
    /// Without what it remembers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginService").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_of_the_web_are_taken() {
        for good in ["http://paas.example.com/login/accounts/is_login/", "https://10.0.0.1:8443/is_login"] {
            assert_eq!(good.parse(), Ok(LoginUrl(good.to_owned())));
        }
        for bad in
            ["", "/login", "paas.example.com", "ftp://x/y", "https://ann:pw@x/y", "http://", "http:// x"]
        {
            assert!(bad.parse::<LoginUrl>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_grows_old() {
        let (mut answers, began) = (CachedAnswers::default(), Instant::now());
        let hash = |number: usize| secret::hash(&number.to_le_bytes());
        let at = |number: usize| began + Duration::from_micros(number as u64);
        for number in 0..=REMEMBERED {
            answers.put(hash(number), TokenVerdict::NotLoggedIn, at(number));
        }
        let (last, end) = (hash(REMEMBERED), at(REMEMBERED));
        assert_eq!(answers.0.len(), REMEMBERED);
        assert_eq!(answers.get(&hash(0), end), None, "the oldest made room");
        assert_eq!(answers.get(&last, end), Some(TokenVerdict::NotLoggedIn));
        assert_eq!(answers.get(&last, end + FRESH), None);
        answers.put(hash(0), TokenVerdict::NotLoggedIn, end + FRESH);
        assert_eq!(answers.0.len(), 1, "what is old made room");
    }
}
