//! Users and their tokens, below `/api/v1/users`.

use super::fault::Faults;
use super::manage::read;
use super::read::RequestBody;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

const LONGEST_NAME: usize = 64;
/// A leap year, the maximum lifetime of a user's token.
const LONGEST_TTL_SECS: i64 = 366 * 86_400;

/// `POST /api/v1/users`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateUser {
    pub name: String,
}

/// `POST /api/v1/users/{name}/token`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateUserToken {
    /// How long it can be used.
    pub ttl_secs: u64,
}

/// The answer to `POST /api/v1/users/{name}/token`.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct UserToken {
    pub name: String,
    /// It is shown once; the server keeps only its hash.
    pub token: String,
    /// Seconds since 1970, UTC.
    pub expires_at: i64,
}

/// One row of `GET /api/v1/users`; the answer to calls that change a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UserView {
    pub name: String,
    pub disabled: bool,
    /// Seconds since 1970, UTC.
    pub created_at: i64,
    /// How many of its tokens have not expired.
    pub tokens: u64,
}

pub fn create_user<'v>(body: impl Into<RequestBody<'v>>) -> Result<CreateUser, Faults> {
    read(body.into(), &["name"], |reader, faults| {
        let name = reader.required_text("name", LONGEST_NAME, faults);
        if let Some(odd) = name.chars().find(|c| !c.is_ascii_alphanumeric() && !"-_.@".contains(*c)) {
            faults.add("name", format!("contains {odd:?}; letters, digits and -_.@ are allowed"));
        }
        CreateUser { name }
    })
}

pub fn create_user_token<'v>(body: impl Into<RequestBody<'v>>) -> Result<CreateUserToken, Faults> {
    read(body.into(), &["ttl_secs"], |reader, faults| {
        reader.require("ttl_secs", faults);
        let secs = reader.integer("ttl_secs", 1..=LONGEST_TTL_SECS, faults);
        CreateUserToken { ttl_secs: secs.and_then(|secs| u64::try_from(secs).ok()).unwrap_or_default() }
    })
}

/// The token stays out of logs.
impl fmt::Debug for UserToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserToken").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_fault_is_named() {
        let check = |faults: Faults, expected: &[&str]| {
            let faults_text = faults.to_string();
            expected
                .iter()
                .for_each(|word| assert!(faults_text.contains(word), "{word:?} is not in {faults_text:?}"));
        };
        check(create_user(&json!({"name": "a b", "x": 1})).expect_err("faults"), &["name: contains", "x: "]);
        check(create_user(&json!({})).expect_err("faults"), &["name: is required"]);
        check(create_user(&json!({"name": "x".repeat(65)})).expect_err("faults"), &["name: has 65"]);
        check(create_user_token(&json!({})).expect_err("faults"), &["ttl_secs: is required"]);
        check(create_user_token(&json!({"ttl_secs": 0})).expect_err("faults"), &["ttl_secs: is 0"]);
        assert_eq!(
            create_user(&json!({"name": "ann@shop", "bk_token": "x"})).expect("fine").name,
            "ann@shop"
        );
    }
}
