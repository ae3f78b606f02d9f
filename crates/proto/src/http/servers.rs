//! The servers of the fleet, below `/api/v1/servers`.

use super::fault::Faults;
use super::manage::read;
use super::read::RequestBody;
use procfleet_core::server_name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `POST /api/v1/servers/drain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainServer {
    pub name: String,
    /// False: the server takes agents again.
    pub drain: bool,
}

/// One row of `GET /api/v1/servers`. The answer to `POST /api/v1/servers/drain` has all rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerRow {
    pub name: String,
    /// `up`, `draining`, `left` or `dead`.
    pub state: String,
    /// The URL of its link; empty: it has no address that others can use.
    pub url: String,
    pub version: String,
    /// Seconds since 1970, UTC.
    pub started_at: i64,
    /// How many agents are connected to it.
    pub agents: u64,
    /// How many ops without an outcome it decides about.
    pub open_ops: u64,
    /// The work that it does for all servers.
    pub leases: Vec<String>,
    /// `notified` or `polling`: how it learns of new work.
    pub wakeups: String,
    /// Whether it is the server that answers.
    pub answering: bool,
}

pub fn drain_server<'v>(body: impl Into<RequestBody<'v>>) -> Result<DrainServer, Faults> {
    read(body.into(), &["name", "drain"], |reader, faults| {
        let name = reader.required_text("name", server_name::LONGEST, faults);
        reader.require("drain", faults);
        DrainServer { name, drain: reader.flag("drain", faults) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_wish_to_drain_names_a_server_and_says_which_way() {
        for (body, expected) in [
            (json!({"name": "s1", "drain": true}), Ok(("s1", true))),
            (json!({"name": "s1", "drain": false, "bk_token": "x"}), Ok(("s1", false))),
            (json!({}), Err(vec!["name: is required", "drain: is required"])),
            (json!({"name": "", "drain": null}), Err(vec!["name: must not be empty", "drain: is required"])),
            (json!({"name": "s1", "drain": "yes"}), Err(vec!["drain: must be true or false"])),
            (json!({"name": 1, "drain": true, "undo": true}), Err(vec!["name: ", "undo: "])),
            (json!({"name": "x".repeat(65), "drain": true}), Err(vec!["name: has 65"])),
        ] {
            let read = drain_server(&body);
            match (read, expected) {
                (Ok(read), Ok((name, drain))) => {
                    assert_eq!((read.name.as_str(), read.drain), (name, drain), "{body}");
                }
                (Err(faults), Err(expected)) => {
                    let faults = faults.to_string();
                    expected.iter().for_each(|fault| assert!(faults.contains(fault), "{body}: {faults}"));
                }
                (read, expected) => panic!("{body}: {read:?} instead of {expected:?}"),
            }
        }
    }
}
