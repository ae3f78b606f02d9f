//! Selects agents by addresses, ranges, globs, agent ids and labels, as people write them.
//!
//! Address and id terms are alternatives: an agent must match one of them, if there are any. Label terms are
//! conditions: an agent must match all of them. So `10.0.0.0/24 10.1.0.7 role=web` selects the web servers of
//! the block and the address, and `role=web` alone selects all web servers.

use crate::id::{AgentId, CloudId, Host};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The properties of an agent that terms are compared with.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub host: Host,
    pub agent: &'a AgentId,
    pub labels: &'a BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// `KEY=VALUE`; the value may be a glob.
    Label {
        key: String,
        value: String,
    },
    /// `IP`, `IP-IP`, `IP/BITS`, each with or without a `CLOUD:` prefix. Without the prefix it matches every
    /// cloud area.
    Addresses {
        cloud: Option<CloudId>,
        first: IpAddr,
        last: IpAddr,
    },
    /// With `*` or `?`, compared with `CLOUD:IP`, with `IP` and with the agent's id.
    Glob(String),
    Agent(AgentId),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadTerm(String);

impl Term {
    pub fn matches(&self, candidate: &Candidate<'_>) -> bool {
        match self {
            Term::Label { key, value } => candidate.labels.get(key).is_some_and(|own| glob(value, own)),
            Term::Addresses { cloud, first, last } => {
                cloud.is_none_or(|cloud| cloud == candidate.host.cloud)
                    && first.is_ipv4() == candidate.host.ip.is_ipv4()
                    && (first..=last).contains(&&candidate.host.ip)
            }
            Term::Glob(pattern) => {
                let Host { ip, .. } = candidate.host;
                glob(pattern, candidate.agent.as_str())
                    || glob(pattern, &ip.to_string())
                    || glob(pattern, &candidate.host.to_string())
            }
            Term::Agent(agent) => candidate.agent == agent,
        }
    }

    fn is_label(&self) -> bool {
        matches!(self, Term::Label { .. })
    }
}

/// Whether the terms select this agent. Without terms every agent is selected.
pub fn selects(terms: &[Term], candidate: &Candidate<'_>) -> bool {
    let mut target_terms = terms.iter().filter(|term| !term.is_label()).peekable();
    let is_target = target_terms.peek().is_none() || target_terms.any(|term| term.matches(candidate));
    is_target && terms.iter().filter(|term| term.is_label()).all(|term| term.matches(candidate))
}

impl FromStr for Term {
    type Err = BadTerm;
    fn from_str(text: &str) -> Result<Term, BadTerm> {
        let bad = |reason: &str| BadTerm(format!("{text:?} {reason}"));
        if let Some((key, value)) = text.split_once('=') {
            return match check_label(key, value, Stars::Allowed) {
                Ok(()) => Ok(Term::Label { key: key.to_owned(), value: value.to_owned() }),
                Err(reason) => Err(bad(&reason)),
            };
        }
        if text.contains(['*', '?']) {
            let odd = text.chars().find(|c| !c.is_ascii_alphanumeric() && !"*?:.-_".contains(*c));
            return match odd {
                Some(odd) => Err(bad(&format!("contains {odd:?}, which no host and no agent has"))),
                None => Ok(Term::Glob(text.to_owned())),
            };
        }
        let (cloud, address) = match text.split_once(':') {
            Some((cloud, rest))
                if !cloud.is_empty()
                    && cloud.bytes().all(|byte| byte.is_ascii_digit())
                    // An IPv6 address may begin with digits, too.
                    && addresses(text).is_none() =>
            {
                let cloud = cloud.parse().map_err(|_| bad("has a cloud area that is too large"))?;
                (Some(CloudId(cloud)), rest)
            }
            _ => (None, text),
        };
        match addresses(address) {
            Some(Ok((first, last))) => Ok(Term::Addresses { cloud, first, last }),
            Some(Err(reason)) => Err(bad(reason)),
            None if cloud.is_some() => Err(bad("is no host, no range of addresses and no CIDR block")),
            None => text.parse().map(Term::Agent).map_err(|_| {
                bad(
                    "is no address, range (10.0.0.1-10.0.0.50), block (10.0.0.0/24), glob (10.0.*), agent id or label \
                     (KEY=VALUE)",
                )
            }),
        }
    }
}

/// `None`: it does not look like addresses.
fn addresses(text: &str) -> Option<Result<(IpAddr, IpAddr), &'static str>> {
    if let Some((base, bits)) = text.split_once('/') {
        let base: IpAddr = base.parse().ok()?;
        return Some(block(base, bits));
    }
    if let Ok(one) = text.parse() {
        return Some(Ok((one, one)));
    }
    let (first, last) = text.split_once('-')?;
    let (first, last): (IpAddr, IpAddr) = (first.parse().ok()?, last.parse().ok()?);
    Some(match (first, last) {
        (first, last) if first.is_ipv4() != last.is_ipv4() => Err("goes from one kind of address to another"),
        (first, last) if first > last => Err("ends before it begins"),
        (first, last) => Ok((first, last)),
    })
}

fn block(base: IpAddr, bits: &str) -> Result<(IpAddr, IpAddr), &'static str> {
    const BITS: &str = "has no good number of bits: from 0 to 32, or to 128 for IPv6";
    let bits: u32 = bits.parse().map_err(|_| BITS)?;
    match base {
        IpAddr::V4(base) if bits <= 32 => {
            let hosts = u32::MAX.checked_shr(bits).unwrap_or(0);
            let first = u32::from(base) & !hosts;
            Ok((Ipv4Addr::from(first).into(), Ipv4Addr::from(first | hosts).into()))
        }
        IpAddr::V6(base) if bits <= 128 => {
            let hosts = u128::MAX.checked_shr(bits).unwrap_or(0);
            let first = u128::from(base) & !hosts;
            Ok((Ipv6Addr::from(first).into(), Ipv6Addr::from(first | hosts).into()))
        }
        IpAddr::V4(_) | IpAddr::V6(_) => Err(BITS),
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Term::Label { key, value } => write!(f, "{key}={value}"),
            Term::Addresses { cloud, first, last } => {
                if let Some(cloud) = cloud {
                    write!(f, "{cloud}:")?;
                }
                match first == last {
                    true => write!(f, "{first}"),
                    false => write!(f, "{first}-{last}"),
                }
            }
            Term::Glob(pattern) => f.write_str(pattern),
            Term::Agent(agent) => agent.fmt(f),
        }
    }
}

const LONGEST_LABEL: usize = 63;

/// Whether a label's value may be a glob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stars {
    Allowed,
    Refused,
}

/// Checks that an agent may have this label.
pub fn good_label(key: &str, value: &str) -> Result<(), String> {
    check_label(key, value, Stars::Refused)
}

fn check_label(key: &str, value: &str, stars: Stars) -> Result<(), String> {
    let fits = |what: &str, text: &str, more: &str| {
        if text.chars().count() > LONGEST_LABEL {
            return Err(format!("has a {what} of more than {LONGEST_LABEL} characters"));
        }
        match text.chars().find(|c| !c.is_alphanumeric() && !more.contains(*c)) {
            Some(odd) => Err(format!("has a {what} with {odd:?}; letters, digits and {more} are allowed")),
            None => Ok(()),
        }
    };
    if key.is_empty() {
        return Err("has no key".to_owned());
    }
    fits("key", key, "-_./")?;
    match stars {
        Stars::Allowed => fits("value", value, "-_./:@*?"),
        Stars::Refused => fits("value", value, "-_./:@"),
    }
}

/// `*` is any text, `?` any character.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // The position of the last star, and the length of the text that it matches.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => (p, t) = (p + 1, t + 1),
            Some(_) | None => match star {
                None => return false,
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, t) = (at + 1, taken + 1);
                }
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(terms: &[&str], host: &str, labels: &[(&str, &str)]) -> bool {
        let terms: Vec<Term> = terms.iter().map(|term| term.parse().expect(term)).collect();
        let agent: AgentId = "02ab34".parse().expect("an id");
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        selects(&terms, &Candidate { host: host.parse().expect(host), agent: &agent, labels: &labels })
    }

    #[test]
    fn terms_select_the_expected_agents() {
        let web = [("role", "web-1"), ("dc", "east")];
        for (terms, host, expected) in [
            (&[][..], "0:10.0.0.1", true),
            (&["10.0.0.1"], "3:10.0.0.1", true),
            (&["0:10.0.0.1"], "3:10.0.0.1", false),
            (&["10.0.0.1-10.0.0.50"], "0:10.0.0.50", true),
            (&["10.0.0.1-10.0.0.50"], "0:10.0.0.51", false),
            (&["3:10.0.0.9-10.0.0.10"], "3:10.0.0.10", true),
            (&["10.0.0.77/24"], "0:10.0.0.1", true),
            (&["10.0.0.0/24"], "0:10.0.1.0", false),
            (&["0.0.0.0/0"], "0:10.0.1.0", true),
            (&["10.0.0.1/32"], "0:10.0.0.1", true),
            (&["::/0"], "0:10.0.0.1", false),
            (&["fe80::/64"], "0:fe80::7", true),
            (&["0:fe80::1-fe80::9"], "0:fe80::7", true),
            (&["10.0.*"], "0:10.0.9.9", true),
            (&["0:10.?.0.1"], "0:10.5.0.1", true),
            (&["02*"], "0:10.0.0.1", true),
            (&["02ab34"], "0:10.0.0.1", true),
            (&["02ab3"], "0:10.0.0.1", false),
            (&["role=web*"], "0:10.0.0.1", true),
            (&["role=web"], "0:10.0.0.1", false),
            (&["role=*", "dc=east"], "0:10.0.0.1", true),
            (&["role=*", "dc=west"], "0:10.0.0.1", false),
            (&["10.9.9.9", "10.0.0.1"], "0:10.0.0.1", true),
            (&["10.9.9.9", "role=web*"], "0:10.0.0.1", false),
            (&["10.0.0.1", "role=web*"], "0:10.0.0.1", true),
            (&["*"], "7:10.0.0.1", true),
        ] {
            assert_eq!(meant(terms, host, &web), expected, "{terms:?} {host}");
        }
    }

    #[test]
    fn an_invalid_term_is_refused_with_a_reason() {
        for (text, words) in [
            ("", "is no address"),
            ("10.0.0.1-10.0.0.0", "ends before it begins"),
            ("10.0.0.1-::1", "one kind of address to another"),
            ("10.0.0.0/33", "number of bits"),
            ("10.0.0.0/x", "number of bits"),
            ("0:10.0.0", "is no host"),
            ("99999999999:10.0.0.1", "too large"),
            ("=x", "has no key"),
            ("a b=x", "has a key with ' '"),
            ("a=x,y", "has a value with ','"),
            ("10.0.*;", "contains ';'"),
        ] {
            let error = text.parse::<Term>().expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!(good_label("role", "web*").is_err(), "an agent's label is no glob");
        assert!(good_label("机房", "东一").is_ok());
    }

    #[test]
    fn terms_are_written_as_they_are_read() {
        for text in ["role=web*", "10.0.0.1", "3:10.0.0.1-10.0.0.9", "10.0.*", "02ab34"] {
            assert_eq!(text.parse::<Term>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbb", false),
            ("*a*b", "xaxxb", true),
            ("?", "", false),
            ("a?", "ab", true),
            ("**", "x", true),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }
}
