//! One id type per kind of thing. Each is parsed at the edge and trusted inside.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Why a text is not an id. The reason is meant for the person who wrote the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadId(String);

/// Why a name cannot be that of a namespace or a proc. The text never repeats the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    #[error("has {bytes} bytes, at most {most} are allowed")]
    TooLong { bytes: usize, most: usize },
    #[error("contains a control character")]
    ControlCharacter,
}

/// Maximum number of instances of one proc on one host.
pub const MAX_INSTANCES: u32 = 64;

/// The prefix of task ids in GSE.
const TASK_PREFIX: &str = "GSETASK:";

/// One accepted API call: shown to clients as `GSETASK:YYYYMMDDHHMMSS:N`.
///
/// `number` alone is unique within one store; the stamp makes the id unique across stores too, so that an
/// agent's journal can never mistake a new op for an old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// `YYYYMMDDHHMMSS` in UTC, read as a number.
    pub stamp: u64,
    pub number: u64,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TASK_PREFIX}{:014}:{}", self.stamp, self.number)
    }
}

impl FromStr for TaskId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId("not a task id: expected GSETASK:YYYYMMDDHHMMSS:N".to_owned());
        let (stamp, number) =
            text.strip_prefix(TASK_PREFIX).and_then(|t| t.split_once(':')).ok_or_else(bad)?;
        if stamp.len() != 14 {
            return Err(bad());
        }
        Ok(TaskId { stamp: digits(stamp).ok_or_else(bad)?, number: digits(number).ok_or_else(bad)? })
    }
}

/// The id of one operation on one process at one host, in the store, on the link, in the agent's journal and
/// in logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    pub task: TaskId,
    /// The index of the op in its task.
    pub index: u32,
}

impl OpId {
    /// More than any index in a task: one call creates at most 100,000 ops.
    const PART: u32 = 1 << 20;

    /// The part of this op that concerns one instance of its proc. No op of any task has such an id, so an
    /// agent can journal parts beside ops.
    #[must_use]
    pub fn part(self, instance: u32) -> OpId {
        let (whole, _) = self.whole();
        OpId { index: whole.index + instance.min(MAX_INSTANCES) * Self::PART, ..self }
    }

    /// The op that this is a part of, and the instance; or the op itself, if it is not a part.
    pub fn whole(self) -> (OpId, Option<u32>) {
        let instance = self.index / Self::PART;
        (OpId { index: self.index % Self::PART, ..self }, (instance > 0).then_some(instance))
    }
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:014}-{}-{}", self.task.stamp, self.task.number, self.index)
    }
}

impl FromStr for OpId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId("not an op id: expected YYYYMMDDHHMMSS-N-I".to_owned());
        let mut parts = text.split('-');
        let (Some(stamp), Some(number), Some(index), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        let task = TaskId { stamp: digits(stamp).ok_or_else(bad)?, number: digits(number).ok_or_else(bad)? };
        let index = digits(index).and_then(|n| u32::try_from(n).ok()).ok_or_else(bad)?;
        Ok(OpId { task, index })
    }
}

fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

macro_rules! serde_as_text {
    ($($id:ty),*) => {$(
        impl Serialize for $id {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $id {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
serde_as_text!(TaskId, OpId, AgentId);

/// The program on one host. It stays the same when the host's addresses change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(String);

impl AgentId {
    /// The maximum length in GSE.
    pub const MAX_LEN: usize = 64;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for AgentId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        if text.is_empty() {
            return Err(BadId("is empty".to_owned()));
        }
        if text.len() > Self::MAX_LEN {
            return Err(BadId(format!(
                "has {} characters, at most {} are allowed",
                text.len(),
                Self::MAX_LEN
            )));
        }
        if let Some(odd) = text.chars().find(|c| !c.is_ascii_alphanumeric() && !"-_.:".contains(*c)) {
            return Err(BadId(format!("contains {odd:?}; letters, digits and -_.: are allowed")));
        }
        Ok(AgentId(text.to_owned()))
    }
}

/// A cloud area. 0 is the directly reachable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CloudId(pub u32);

impl fmt::Display for CloudId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A business, the owner of hosts. Every agent belongs to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BusinessId(pub u32);

impl BusinessId {
    /// The default business of agents. It exists from the first start on.
    pub const DEFAULT: BusinessId = BusinessId(1);
}

impl fmt::Display for BusinessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for BusinessId {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let number = digits(text).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        number.map(BusinessId).ok_or_else(|| BadId("not a business: expected a number from 1 on".to_owned()))
    }
}

/// A host as clients name it; the inventory resolves it to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Host {
    pub cloud: CloudId,
    pub ip: IpAddr,
}

impl Host {
    /// The canonical address of a host: `::ffff:10.0.0.1` is `10.0.0.1`. An address that no host can have is
    /// refused.
    pub fn address(ip: IpAddr) -> Result<IpAddr, BadId> {
        let ip = ip.to_canonical();
        let kind = match ip {
            IpAddr::V4(ip) if ip.is_broadcast() => "the broadcast address",
            ip if ip.is_unspecified() => "the unspecified address",
            ip if ip.is_multicast() => "a multicast address",
            IpAddr::V4(ip) if ip.octets()[0] == 0 => "an address of 0.0.0.0/8",
            IpAddr::V4(ip) if ip.octets()[0] >= 240 => "a reserved address of 240.0.0.0/4",
            ip => return Ok(ip),
        };
        Err(BadId(format!("{ip} cannot be the address of a host: it is {kind}")))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.cloud, self.ip)
    }
}

impl FromStr for Host {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId("not a host: expected CLOUD_ID:IP, such as 0:127.0.0.1".to_owned());
        let (cloud, ip) = text.split_once(':').ok_or_else(bad)?;
        let cloud = digits(cloud).and_then(|n| u32::try_from(n).ok()).ok_or_else(bad)?;
        Ok(Host { cloud: CloudId(cloud), ip: ip.parse().map_err(|_| bad())? })
    }
}

/// A process as its callers name it, on one agent. Without a name it means the whole namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcKey {
    pub namespace: String,
    pub name: String,
}

impl ProcKey {
    /// The namespace of all processes of JOB's APIs, which have no namespaces.
    pub const JOB_NAMESPACE: &str = "job";

    /// Maximum bytes of a namespace or a name in the store and on the link, with the number of an instance
    /// (`#64`). PostgreSQL refuses index entries of more than 2,704 bytes, and an entry has both texts.
    pub const LONGEST: usize = 1_088;
    /// Maximum bytes without the number of an instance.
    pub const LONGEST_WHOLE: usize = Self::LONGEST - "#64".len();

    /// Checks the namespace and the name, and says which of the two is wrong.
    pub fn check(&self) -> Result<(), (&'static str, NameFault)> {
        ProcKey::check_name(&self.namespace).map_err(|fault| ("namespace", fault))?;
        ProcKey::check_name(&self.whole().0.name).map_err(|fault| ("name", fault))
    }

    /// Whether servers accept states and events of this proc.
    pub fn is_reportable(&self) -> bool {
        self.namespace.len() <= Self::LONGEST && self.name.len() <= Self::LONGEST
    }

    fn check_name(name: &str) -> Result<(), NameFault> {
        if name.len() > Self::LONGEST_WHOLE {
            return Err(NameFault::TooLong { bytes: name.len(), most: Self::LONGEST_WHOLE });
        }
        if name.chars().any(char::is_control) { Err(NameFault::ControlCharacter) } else { Ok(()) }
    }

    /// A process as JOB's callers name it.
    pub fn of_job(name: String) -> ProcKey {
        ProcKey { namespace: ProcKey::JOB_NAMESPACE.to_owned(), name }
    }

    /// The key of one of its instances: the first has the proc's own, the others are called `name#2`,
    /// `name#3` and so on.
    #[must_use]
    pub fn instance(&self, number: u32) -> ProcKey {
        match number {
            0 | 1 => self.clone(),
            more => ProcKey { namespace: self.namespace.clone(), name: format!("{}#{more}", self.name) },
        }
    }

    /// The proc of which this is an instance, and which one it is. A name without a number is the first
    /// instance.
    pub fn whole(&self) -> (ProcKey, u32) {
        let numbered = self.name.rsplit_once('#').and_then(|(name, number)| {
            // Leading zeros are not accepted, so that each instance has exactly one key.
            let plain = !number.starts_with('0') && !name.is_empty();
            let number = u32::try_from(digits(number).filter(|_| plain)?).ok()?;
            (2..=MAX_INSTANCES).contains(&number).then_some((name, number))
        });
        match numbered {
            Some((name, number)) => {
                (ProcKey { namespace: self.namespace.clone(), name: name.to_owned() }, number)
            }
            None => (self.clone(), 1),
        }
    }
}

impl fmt::Display for ProcKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => f.write_str(&self.namespace),
            name => write!(f, "{}:{name}", self.namespace),
        }
    }
}

/// The fencing token of a session. It grows with every connect of an agent. An op carries the epoch of the
/// session that sent it, and an agent ignores an op of an older session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// The kernel's name for this boot of the host. A pid means nothing in another boot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: FromStr<Err = BadId> + fmt::Display + PartialEq + fmt::Debug>(text: &str) {
        let id: T = text.parse().expect("a good id");
        assert_eq!(id.to_string(), text);
    }

    #[test]
    fn ids_read_back_what_they_print() {
        round_trip::<TaskId>("GSETASK:20190813145456:8");
        round_trip::<OpId>("20190813145456-8-0");
        round_trip::<AgentId>("0200000007525400f355781710390005465c");
        round_trip::<AgentId>("0:127.0.0.1");
        round_trip::<BusinessId>("7");
        round_trip::<Host>("0:127.0.0.1");
        round_trip::<Host>("3:fe80::1");
    }

    #[test]
    fn invalid_ids_are_refused() {
        for text in
            ["", "GSETASK:", "GSETASK:2019:8", "GSETASK:20190813145456:", "GSETASK:20190813145456:-1", "gse"]
        {
            assert!(text.parse::<TaskId>().is_err(), "{text}");
        }
        for text in ["", "1", "1-2", "1-2-3-4", "1-2-99999999999", "a-b-c"] {
            assert!(text.parse::<OpId>().is_err(), "{text}");
        }
        for text in ["", "a b", "\u{e9}", &"x".repeat(65)] {
            assert!(text.parse::<AgentId>().is_err(), "{text}");
        }
        for text in ["", "0", "-1", "x", "4294967296"] {
            assert!(text.parse::<BusinessId>().is_err(), "{text}");
        }
        for text in ["", "127.0.0.1", "0:", "x:127.0.0.1", "0:host", "-1:127.0.0.1"] {
            assert!(text.parse::<Host>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_number_behind_the_name_is_an_instance() {
        let key = |name: &str| ProcKey { namespace: "web".to_owned(), name: name.to_owned() };
        for (name, whole, number) in [
            ("nginx", "nginx", 1),
            ("nginx#2", "nginx", 2),
            ("nginx#64", "nginx", 64),
            ("a#b#3", "a#b", 3),
            ("nginx#1", "nginx#1", 1),
            ("nginx#65", "nginx#65", 1),
            ("nginx#02", "nginx#02", 1),
            ("nginx#+2", "nginx#+2", 1),
            ("nginx#", "nginx#", 1),
            ("#2", "#2", 1),
        ] {
            assert_eq!(key(name).whole(), (key(whole), number), "{name}");
            assert_eq!(key(whole).instance(number), key(name), "{name}");
        }
    }

    #[test]
    fn a_name_is_short_enough_with_the_number_of_any_instance_and_has_no_control_characters() {
        let long = |bytes: usize| "n".repeat(bytes);
        let too_long = |bytes| Err(NameFault::TooLong { bytes, most: 1_085 });
        for (name, expected) in [
            (long(1_085), Ok(())),
            (format!("{}#64", long(1_085)), Ok(())),
            (long(1_086), too_long(1_086)),
            (format!("{}#64", long(1_086)), too_long(1_086)),
            ("ä".repeat(543), too_long(1_086)),
            ("two\nlines".to_owned(), Err(NameFault::ControlCharacter)),
            ("nul\0".to_owned(), Err(NameFault::ControlCharacter)),
            (String::new(), Ok(())),
        ] {
            let key = ProcKey { namespace: "web".to_owned(), name: name.clone() };
            assert_eq!(key.check(), expected.map_err(|fault| ("name", fault)), "{name}");
            if key.check().is_ok() {
                assert!(key.whole().0.instance(MAX_INSTANCES).name.len() <= ProcKey::LONGEST);
            }
            let key = ProcKey { namespace: long(1_086), name };
            assert_eq!(key.check(), too_long(1_086).map_err(|fault| ("namespace", fault)));
        }
    }

    #[test]
    fn the_id_of_a_part_differs_from_every_op_and_names_its_op() {
        let task = TaskId { stamp: 20_190_813_145_456, number: 8 };
        for index in [0, 1, 99_999, OpId::PART - 1] {
            let op = OpId { task, index };
            assert_eq!(op.whole(), (op, None));
            let parts: Vec<OpId> = (1..=MAX_INSTANCES).map(|instance| op.part(instance)).collect();
            for (instance, part) in (1..).zip(&parts) {
                assert_eq!(part.whole(), (op, Some(instance)));
                assert_eq!(part.part(2), op.part(2));
                assert!(part.index >= OpId::PART);
                round_trip::<OpId>(&part.to_string());
            }
        }
    }

    #[test]
    fn addresses_that_no_host_can_have() {
        let address = |text: &str| Host::address(text.parse().expect("an address")).map(|ip| ip.to_string());
        for (text, kept) in [
            ("10.0.0.1", "10.0.0.1"),
            ("127.0.0.1", "127.0.0.1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("fe80::1", "fe80::1"),
        ] {
            assert_eq!(address(text).expect("a host's"), kept);
        }
        for text in [
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "::ffff:0.0.0.0",
            "0.0.0.5",
            "240.0.0.1",
        ] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
