//! All faults of a request, each with its JSON path, and warnings about an accepted request.

use procfleet_core::code::Code;
use procfleet_core::request::Refusal;
use std::fmt;

/// Maximum number of faults in a message.
const SHOWN: usize = 50;
/// Maximum length of a path and of a reason. Both may quote the request.
const LONGEST: usize = 600;

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
    /// A target that cannot exist: an empty or invalid address or agent id.
    BadTarget(String),
    Other(String),
}

/// At least one fault, where it is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct Faults {
    list: Vec<Fault>,
    warnings: Warnings,
}

/// Notes on an accepted call, each with its path: fields without effect, and rejected elements of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings(Vec<(String, String)>);

impl Faults {
    /// A request with a single fault.
    pub fn one(path: impl Into<String>, reason: impl Into<String>) -> Faults {
        let mut faults = Faults::default();
        faults.add(path, reason);
        faults
    }

    pub fn add(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.list.push(Fault { path: cut(path.into()), reason: Reason::Other(cut(reason.into())) });
    }

    pub fn add_unknown_op(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.list.push(Fault { path: cut(path.into()), reason: Reason::UnknownOp(cut(reason.into())) });
    }

    pub fn add_bad_target(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.list.push(Fault { path: cut(path.into()), reason: Reason::BadTarget(cut(reason.into())) });
    }

    /// Appends all faults and warnings of `others`.
    pub fn absorb(&mut self, others: Faults) {
        self.list.extend(others.list);
        self.warnings.0.extend(others.warnings.0);
    }

    /// Appends the faults of one rejected element as warnings.
    pub fn absorb_as_warnings(&mut self, others: &Faults) {
        for fault in &others.list {
            self.warn(fault.path.clone(), format!("refused for itself: {}", fault.reason));
        }
        self.warnings.0.extend(others.warnings.0.iter().cloned());
    }

    /// Adds a warning: the request is valid, but its sender may expect another effect.
    pub fn warn(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.warnings.0.push((cut(path.into()), cut(reason.into())));
    }

    pub fn take_warnings(&mut self) -> Warnings {
        std::mem::take(&mut self.warnings)
    }

    /// Both results, or the faults of either.
    pub fn of_both<A, B>(one: Result<A, Faults>, other: Result<B, Faults>) -> Result<(A, B), Faults> {
        match (one, other) {
            (Ok(one), Ok(other)) => Ok((one, other)),
            (Err(faults), Ok(_)) | (Ok(_), Err(faults)) => Err(faults),
            (Err(mut faults), Err(others)) => {
                faults.list.extend(others.list);
                Err(faults)
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn list(&self) -> &[Fault] {
        &self.list
    }

    /// The error code and message for one rejected element.
    pub fn refusal(&self) -> Refusal {
        let only = |meant: fn(&Reason) -> bool| self.list.iter().all(|fault| meant(&fault.reason));
        let code = match () {
            () if only(|reason| matches!(reason, Reason::UnknownOp(_))) => Code::UnknownOp,
            () if only(|reason| matches!(reason, Reason::BadTarget(_))) => Code::NoAgent,
            () => Code::BadRequest,
        };
        Refusal { code, reason: self.to_string() }
    }

    /// Whether an unknown operation is the only fault: GSE has a code for that.
    pub fn only_unknown_op(&self) -> bool {
        self.list.iter().all(|fault| matches!(fault.reason, Reason::UnknownOp(_)))
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, fault) in self.list.iter().take(SHOWN).enumerate() {
            if place > 0 {
                f.write_str("; ")?;
            }
            if !fault.path.is_empty() {
                write!(f, "{}: ", fault.path)?;
            }
            fault.reason.fmt(f)?;
        }
        match self.list.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more faults"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::UnknownOp(reason) | Reason::BadTarget(reason) | Reason::Other(reason) => {
                f.write_str(reason)
            }
        }
    }
}

fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Maximum number of warnings in a message; the others are most likely the same for other processes.
const WARNED: usize = 5;

/// The text after `success`; empty without warnings.
impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, reason) in self.0.iter().take(WARNED) {
            write!(f, "; warning: {path}: {reason}")?;
        }
        match self.0.len().saturating_sub(WARNED) {
            0 => Ok(()),
            more => write!(f, "; and {more} more warnings"),
        }
    }
}
