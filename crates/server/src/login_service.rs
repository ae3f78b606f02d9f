//! A BlueKing login service, which knows the user of a `bk_token`.
//!
//! Requests to it have a time limit, and their number is bounded, because the threads that wait for it also
//! read the store. Its answers are cached for a minute; failures are not. Tokens are kept as hashes and never
//! logged, nor is an error text of the HTTP client, which may repeat the URL.

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

/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long an answer is cached, and so for how long at most a user who has logged out there is still
/// admitted here.
const FRESH: Duration = Duration::from_secs(60);
/// Maximum number of cached answers: about a megabyte.
const REMEMBERED: usize = 10_000;
/// Maximum number of concurrent requests.
const AT_ONCE: usize = 16;
const LARGEST_ANSWER: u64 = 64 * 1024;

/// URL of the service: http or https, without the token.
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
    permits: Arc<Semaphore>,
    answers: Mutex<CachedAnswers>,
}

/// Cached answers with their expiry, by the hash of the token.
#[derive(Default)]
struct CachedAnswers(HashMap<[u8; 32], (Instant, TokenVerdict)>);

impl LoginService {
    pub fn new(url: LoginUrl) -> LoginService {
        let client = procfleet_http_client::client(Timeouts { connect: None, overall: TIMEOUT });
        let (permits, answers) = (Arc::new(Semaphore::new(AT_ONCE)), Mutex::default());
        LoginService { inner: Arc::new(Inner { url, client, permits, answers }) }
    }

    /// The user of a token, as the service says now or has said within the last minute.
    pub async fn ask(&self, token: &str) -> Result<TokenVerdict, LoginUnanswered> {
        let hash = secret::hash(token.as_bytes());
        if let Some(verdict) = self.answers().get(&hash, Instant::now()) {
            return Ok(verdict);
        }
        match timeout(TIMEOUT, self.ask_now(token.to_owned())).await {
            Ok(Ok(verdict)) => {
                self.answers().put(hash, verdict.clone(), Instant::now());
                Ok(verdict)
            }
            Ok(Err(unanswered)) => Err(unanswered),
            Err(_) => {
                warn!(reason = "timeout", "the login service did not answer; the token was not checked");
                Err(LoginUnanswered::Silent)
            }
        }
    }

    async fn ask_now(&self, token: String) -> Result<TokenVerdict, LoginUnanswered> {
        // The thread releases the permit, not a caller that has given up: the thread may still wait.
        let permit = self.inner.permits.clone().acquire_owned().await.map_err(|_| LoginUnanswered::Silent)?;
        let inner = self.inner.clone();
        let asking = panics::block_for_request(move || {
            let _permit = permit;
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
        self.0.get(hash).filter(|(until, _)| now < *until).map(|(_, verdict)| verdict.clone())
    }

    fn put(&mut self, hash: [u8; 32], verdict: TokenVerdict, now: Instant) {
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, (until, _)| now < *until);
        }
        if self.0.len() >= REMEMBERED {
            let oldest = self.0.iter().min_by_key(|(_, (until, _))| *until).map(|(hash, _)| *hash);
            oldest.and_then(|hash| self.0.remove(&hash));
        }
        self.0.insert(hash, (now + FRESH, verdict));
    }
}

impl Inner {
    fn ask(&self, token: &str) -> Result<TokenVerdict, LoginUnanswered> {
        let answer = self.client.get(&self.url.0).query("bk_token", token).call().and_then(|mut response| {
            let body = response.body_mut().with_config().limit(LARGEST_ANSWER).read_to_vec()?;
            Ok((response.status().as_u16(), body))
        });
        let (status, body) = answer.map_err(|fault| {
            warn!(reason = words_for(&fault), "the login service did not answer; the token was not checked");
            LoginUnanswered::Silent
        })?;
        verdict(&body).filter(|_| status < 500).ok_or_else(|| {
            warn!(status, bytes = body.len(), "the login service sent an answer in an unknown format; the token was not checked, see --login-url");
            LoginUnanswered::Strange
        })
    }
}

/// Fixed words, because the error's own text may contain the URL and with it the token.
fn words_for(fault: &ureq::Error) -> &'static str {
    match fault {
        ureq::Error::Timeout(_) => "timeout",
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
    /// Without the cached answers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginService").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_and_https_urls_are_accepted() {
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
    fn cached_answers_are_bounded_and_expire() {
        let (mut answers, began) = (CachedAnswers::default(), Instant::now());
        let hash = |number: usize| secret::hash(&number.to_le_bytes());
        let at = |number: usize| began + Duration::from_micros(number as u64);
        for number in 0..=REMEMBERED {
            answers.put(hash(number), TokenVerdict::NotLoggedIn, at(number));
        }
        let (last, end) = (hash(REMEMBERED), at(REMEMBERED));
        assert_eq!(answers.0.len(), REMEMBERED);
        assert_eq!(answers.get(&hash(0), end), None, "the oldest answer was evicted");
        assert_eq!(answers.get(&last, end), Some(TokenVerdict::NotLoggedIn));
        assert_eq!(answers.get(&last, end + FRESH), None);
        answers.put(hash(0), TokenVerdict::NotLoggedIn, end + FRESH);
        assert_eq!(answers.0.len(), 1, "expired answers were removed");
    }
}
