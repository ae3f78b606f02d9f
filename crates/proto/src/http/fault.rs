//! Everything that is wrong with a request, each with its place.

use std::fmt;

/// More than this and the list no longer helps anybody.
const SHOWN: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `spec.identity.user`, `hosts[3].ip`; empty for the request as a whole.
    pub path: String,
    pub reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No operation has this number.
    UnknownOp(String),
    Other(String),
}

/// At least one fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct Faults(Vec<Fault>);

impl Faults {
    pub fn add(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.0.push(Fault { path: path.into(), reason: Reason::Other(reason.into()) });
    }

    pub fn add_unknown_op(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.0.push(Fault { path: path.into(), reason: Reason::UnknownOp(reason.into()) });
    }

    /// Both, or what is wrong with either of them.
    pub fn of_both<A, B>(one: Result<A, Faults>, other: Result<B, Faults>) -> Result<(A, B), Faults> {
        match (one, other) {
            (Ok(one), Ok(other)) => Ok((one, other)),
            (Err(faults), Ok(_)) | (Ok(_), Err(faults)) => Err(faults),
            (Err(Faults(mut faults)), Err(Faults(others))) => {
                faults.extend(others);
                Err(Faults(faults))
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn list(&self) -> &[Fault] {
        &self.0
    }

    /// Whether an unknown operation is all that is wrong: GSE has a code for that.
    pub fn only_unknown_op(&self) -> bool {
        self.0.iter().all(|fault| matches!(fault.reason, Reason::UnknownOp(_)))
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, fault) in self.0.iter().take(SHOWN).enumerate() {
            if place > 0 {
                f.write_str("; ")?;
            }
            if !fault.path.is_empty() {
                write!(f, "{}: ", fault.path)?;
            }
            match &fault.reason {
                Reason::UnknownOp(reason) | Reason::Other(reason) => f.write_str(reason)?,
            }
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more faults"),
        }
    }
}
