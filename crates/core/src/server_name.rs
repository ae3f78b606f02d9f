//! The name by which operators know a server.

use std::fmt;
use std::str::FromStr;

/// As long as the name of a host can be (HOST_NAME_MAX).
pub const LONGEST: usize = 64;

/// Letters, digits and `-_.`, at most [`LONGEST`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerName(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("a server's name must not be empty")]
    Empty,
    #[error("a server's name has at most {LONGEST} characters")]
    Long,
    #[error("{0:?} must not be in a server's name; letters, digits and -_. are allowed")]
    Character(char),
}

impl ServerName {
    /// A name made from that of a machine. Characters that are not allowed become `-`.
    pub fn of_host(host: &str) -> ServerName {
        let plain = |c: char| if is_allowed(c) { c } else { '-' };
        let name: String = host.chars().take(LONGEST).map(plain).collect();
        ServerName(if name.is_empty() { "server".to_owned() } else { name })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}

impl FromStr for ServerName {
    type Err = BadName;
    fn from_str(text: &str) -> Result<ServerName, BadName> {
        if let Some(odd) = text.chars().find(|c| !is_allowed(*c)) {
            return Err(BadName::Character(odd));
        }
        match text.len() {
            0 => Err(BadName::Empty),
            1..=LONGEST => Ok(ServerName(text.to_owned())),
            _ => Err(BadName::Long),
        }
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        let long = "x".repeat(LONGEST + 1);
        for (text, expected) in [
            ("s1", Ok(())),
            ("eu-west_1.example", Ok(())),
            (&long[1..], Ok(())),
            ("", Err(BadName::Empty)),
            (&long, Err(BadName::Long)),
            ("a b", Err(BadName::Character(' '))),
            ("s1\n", Err(BadName::Character('\n'))),
            ("机器", Err(BadName::Character('机'))),
        ] {
            assert_eq!(
                text.parse::<ServerName>().map(|name| assert_eq!(name.as_str(), text)),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn the_name_of_any_machine_makes_a_name() {
        let long = "x".repeat(300);
        for (host, name) in
            [("web-1", "web-1"), ("(none)", "-none-"), ("", "server"), (&long, &long[..LONGEST])]
        {
            let made = ServerName::of_host(host);
            assert_eq!(made.as_str(), name);
            assert_eq!(made.to_string().parse(), Ok(made));
        }
    }
}
