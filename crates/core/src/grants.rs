//! The rights of an app, and the decision whether they cover a request.
//!
//! A grant names a value of one dimension: a business, a namespace, an operation or an OS account. The
//! default is to deny. `*` is every value of its dimension.
//!
//! A request may name its businesses; if one of them is not granted, the whole request is denied. Whether a
//! host belongs to the businesses of the app and of the request is decided for each host and becomes the
//! outcome of that host, so callers use [`Rights::businesses_within`].

pub use crate::grant_scope::GrantScope;
use crate::id::BusinessId;
use crate::op::OpKind;
use crate::request::Request;
use crate::spec::Spec;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// The wildcard of a dimension.
const EVERYTHING: &str = "*";
const LONGEST_NAME: usize = 256;

/// The rights of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rights {
    /// All rights, including the management of apps, tokens and businesses. They cannot be revoked.
    Administrator,
    Granted(Grants),
}

/// The grants of an app. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    pub businesses: GrantScope<BusinessId>,
    pub namespaces: GrantScope<Pattern>,
    pub ops: GrantScope<OpKind>,
    pub accounts: GrantScope<String>,
}

/// A namespace, or all whose names begin alike: `web*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    Exactly(String),
    BeginsWith(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    Business,
    Namespace,
    Op,
    Account,
}

/// Something that a request would use, and its app may not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denial {
    Business(BusinessId),
    Namespace(String),
    Op(&'static str),
    Account(String),
    /// Only the host knows which account the op would use.
    UnnamedAccount {
        proc: String,
    },
    /// The limits of a process group end processes of every account in the namespace.
    EveryAccount,
}

/// Why a text is not a valid grant. The reason is for the author of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadGrant(String);

/// A revoked right is still covered by another grant: `web1` by `web*`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is still granted by {by:?}; revoke that one")]
pub struct StillGranted {
    pub what: String,
    pub by: String,
}

/// Everything that the requests need and the rights do not cover, without duplicates. Empty: the requests are
/// allowed. `within` are the businesses that the requests name, or `All` if they name none.
pub fn denials(rights: &Rights, requests: &[Request], within: &GrantScope<BusinessId>) -> Vec<Denial> {
    let Rights::Granted(grants) = rights else { return Vec::new() };
    let mut denied = BTreeSet::new();
    if let GrantScope::Only(named) = within {
        denied
            .extend(named.iter().filter(|one| !grants.businesses.allows(one)).copied().map(Denial::Business));
    }
    for request in requests {
        if !grants.namespaces.matches(&request.proc.namespace) {
            denied.insert(Denial::Namespace(request.proc.namespace.clone()));
        }
        if request.refused.is_some() {
            // A rejected request is never carried out, and its operation or account may be unknown.
            continue;
        }
        if !grants.ops.allows(&request.kind) {
            denied.insert(Denial::Op(request.kind.verb()));
        }
        if grants.accounts == GrantScope::All {
            continue;
        }
        if request.kind == OpKind::Group {
            denied.insert(Denial::EveryAccount);
            continue;
        }
        // A query may leave the account out even where it has a spec, and a change of other fields keeps the
        // stored one: which account it is, only the host knows.
        let says_account =
            |spec: &&Spec| spec.change.is_empty() || spec.change.iter().any(|name| name == "user");
        let spec = request.spec.as_ref().filter(says_account);
        match spec.map(|spec| &spec.identity.user).filter(|user| !user.is_empty()) {
            Some(user) if grants.accounts.allows(user) => {}
            Some(user) => {
                denied.insert(Denial::Account(user.clone()));
            }
            None => {
                denied.insert(Denial::UnnamedAccount { proc: request.proc.to_string() });
            }
        }
    }
    denied.into_iter().collect()
}

/// Everything that reading the output of a process needs and the rights do not cover. Only the host knows the
/// account of the process, so the host gets [`Rights::accounts`].
pub fn reading_denials(rights: &Rights, namespace: &str) -> Vec<Denial> {
    let Rights::Granted(grants) = rights else { return Vec::new() };
    let mut denied = Vec::new();
    if !grants.namespaces.matches(namespace) {
        denied.push(Denial::Namespace(namespace.to_owned()));
    }
    if !grants.ops.allows(&OpKind::Query) {
        denied.push(Denial::Op(OpKind::Query.verb()));
    }
    denied
}

impl Rights {
    /// Whether hosts of this business may be used and seen.
    pub fn businesses(&self) -> &GrantScope<BusinessId> {
        match self {
            Rights::Administrator => &GrantScope::All,
            Rights::Granted(grants) => &grants.businesses,
        }
    }

    /// The OS accounts whose processes may be used.
    pub fn accounts(&self) -> &GrantScope<String> {
        match self {
            Rights::Administrator => &GrantScope::All,
            Rights::Granted(grants) => &grants.accounts,
        }
    }

    /// The businesses whose hosts a request may use that names these businesses.
    pub fn businesses_within(&self, named: &GrantScope<BusinessId>) -> GrantScope<BusinessId> {
        match (self.businesses(), named) {
            (all, GrantScope::All) => all.clone(),
            (GrantScope::All, some) => some.clone(),
            (GrantScope::Only(granted), GrantScope::Only(named)) => GrantScope::Only(granted & named),
        }
    }

    pub fn allows_namespace(&self, namespace: &str) -> bool {
        match self {
            Rights::Administrator => true,
            Rights::Granted(grants) => grants.namespaces.matches(namespace),
        }
    }
}

impl Grants {
    pub fn everything() -> Grants {
        Grants {
            businesses: GrantScope::All,
            namespaces: GrantScope::All,
            ops: GrantScope::All,
            accounts: GrantScope::All,
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == Grants::default()
    }

    /// Reads one grant from its text.
    pub fn add(&mut self, dimension: Dimension, text: &str) -> Result<(), BadGrant> {
        if text == EVERYTHING {
            match dimension {
                Dimension::Business => self.businesses = GrantScope::All,
                Dimension::Namespace => self.namespaces = GrantScope::All,
                Dimension::Op => self.ops = GrantScope::All,
                Dimension::Account => self.accounts = GrantScope::All,
            }
            return Ok(());
        }
        match dimension {
            Dimension::Business => {
                let business = text.parse::<BusinessId>();
                self.businesses.insert(business.map_err(|bad| BadGrant(bad.to_string()))?);
            }
            Dimension::Namespace => self.namespaces.insert(text.parse()?),
            Dimension::Op => {
                let kind = OpKind::ALL.into_iter().find(|kind| kind.verb() == text);
                let known = || OpKind::ALL.map(OpKind::verb).join(", ");
                let unknown = || BadGrant(format!("{text:?} is no operation; there are {} and *", known()));
                self.ops.insert(kind.ok_or_else(unknown)?);
            }
            Dimension::Account => self.accounts.insert(name(text)?.to_owned()),
        }
        Ok(())
    }

    /// Each grant as its text.
    pub fn words(&self) -> Vec<(Dimension, String)> {
        fn each<T: Ord>(scope: &GrantScope<T>, text: impl Fn(&T) -> String) -> Vec<String> {
            match scope {
                GrantScope::All => vec![EVERYTHING.to_owned()],
                GrantScope::Only(some) => some.iter().map(text).collect(),
            }
        }
        let of = |dimension: Dimension| match dimension {
            Dimension::Business => each(&self.businesses, ToString::to_string),
            Dimension::Namespace => each(&self.namespaces, ToString::to_string),
            Dimension::Op => each(&self.ops, |kind| kind.verb().to_owned()),
            Dimension::Account => each(&self.accounts, Clone::clone),
        };
        Dimension::ALL.into_iter().flat_map(|dim| of(dim).into_iter().map(move |text| (dim, text))).collect()
    }

    /// These grants and `more`.
    pub fn with(self, more: Grants) -> Grants {
        Grants {
            businesses: self.businesses.with(more.businesses),
            namespaces: self.namespaces.with(more.namespaces),
            ops: self.ops.with(more.ops),
            accounts: self.accounts.with(more.accounts),
        }
    }

    /// These grants without `less`. Revoking a missing grant has no effect; a right that stays covered is an
    /// error.
    pub fn without(self, less: &Grants) -> Result<Grants, Vec<StillGranted>> {
        let rest = Grants {
            businesses: self.businesses.without(&less.businesses),
            namespaces: self.namespaces.without(&less.namespaces),
            ops: self.ops.without(&less.ops),
            accounts: self.accounts.without(&less.accounts),
        };
        let remaining = rest.words();
        let still: Vec<StillGranted> = less
            .words()
            .into_iter()
            .filter_map(|(dimension, text)| {
                let covers = |(of, by): &&(Dimension, String)| *of == dimension && covers(by, &text);
                let (_, by) = remaining.iter().find(covers)?;
                Some(StillGranted { what: format!("{dimension} {text:?}"), by: by.clone() })
            })
            .collect();
        if still.is_empty() { Ok(rest) } else { Err(still) }
    }
}

/// Whether one grant covers another one. Only namespaces have patterns with a prefix.
fn covers(by: &str, text: &str) -> bool {
    by == text || by.strip_suffix('*').is_some_and(|begin| text.starts_with(begin))
}

impl GrantScope<Pattern> {
    pub fn matches(&self, namespace: &str) -> bool {
        match self {
            GrantScope::All => true,
            GrantScope::Only(patterns) => patterns.iter().any(|pattern| match pattern {
                Pattern::Exactly(name) => name == namespace,
                Pattern::BeginsWith(begin) => namespace.starts_with(begin.as_str()),
            }),
        }
    }
}

impl FromStr for Pattern {
    type Err = BadGrant;
    fn from_str(text: &str) -> Result<Self, BadGrant> {
        let name = name(text)?;
        match name.strip_suffix('*') {
            Some(begin) if !begin.contains('*') => Ok(Pattern::BeginsWith(begin.to_owned())),
            None if !name.contains('*') => Ok(Pattern::Exactly(name.to_owned())),
            Some(_) | None => Err(BadGrant("may have a * only at its end".to_owned())),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Exactly(name) => f.write_str(name),
            Pattern::BeginsWith(begin) => write!(f, "{begin}*"),
        }
    }
}

fn name(text: &str) -> Result<&str, BadGrant> {
    match text {
        "" => Err(BadGrant("is empty".to_owned())),
        text if text.chars().any(char::is_control) => {
            Err(BadGrant("contains a control character".to_owned()))
        }
        text if text.chars().count() > LONGEST_NAME => {
            Err(BadGrant(format!("has more than {LONGEST_NAME} characters")))
        }
        text => Ok(text),
    }
}

impl Dimension {
    pub const ALL: [Dimension; 4] =
        [Dimension::Business, Dimension::Namespace, Dimension::Op, Dimension::Account];

    pub fn word(self) -> &'static str {
        match self {
            Dimension::Business => "business",
            Dimension::Namespace => "namespace",
            Dimension::Op => "op",
            Dimension::Account => "account",
        }
    }

    pub fn from_word(word: &str) -> Option<Dimension> {
        Dimension::ALL.into_iter().find(|dimension| dimension.word() == word)
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Denial::Business(business) => write!(f, "business {business}"),
            Denial::Namespace(namespace) => write!(f, "namespace {namespace:?}"),
            Denial::Op(verb) => write!(f, "op {verb}"),
            Denial::Account(account) => write!(f, "account {account:?}"),
            Denial::UnnamedAccount { proc } => write!(
                f,
                "the account that the host has stored for {proc} (without spec.identity.user only an app with all accounts \
                 may operate)"
            ),
            Denial::EveryAccount => f.write_str(
                "all accounts (the limits of a process group end processes of every account in the namespace)",
            ),
        }
    }
}
