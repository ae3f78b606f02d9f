//! The mark of a proc: environment variables by which a process is known to come from a run of it.
//!
//! `PROCFLEET_PROC` names the agent and the proc, and every user of the host can know and set it. So the
//! agent adds `PROCFLEET_PROOF`, an HMAC over that name, the account of the run and its beginning, made with
//! a secret that only the agent can read. A process cannot make a proof, it can only inherit one: an account
//! that reads the proof of one of its own processes can pass for that run of that account, and for nothing
//! else.
//!
//! Processes that an agent of an earlier version has started have no proof. They count only where their
//! account is that of the spec, and where they run no setuid program, which any account may have started.

use crate::exec::procfs::{self, MarkClaim};
use crate::exec::user;
use procfleet_core::BootTime;
use ring::{hmac, rand};
use rustix::process::geteuid;
use std::fmt;
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

/// The file with the secret, in the agent's private folder.
const SECRET: &str = ".mark-secret";
const SECRET_BYTES: usize = 32;

/// Makes and checks proofs.
#[derive(Clone)]
pub(in crate::exec) struct MarkSecret(Arc<hmac::Key>);

impl fmt::Debug for MarkSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkSecret")
    }
}

impl MarkSecret {
    /// The secret in this folder; a new one where there is none.
    pub(in crate::exec) fn open(folder: &Path) -> io::Result<MarkSecret> {
        let path = folder.join(SECRET);
        let secret = match fs::read(&path) {
            Ok(known) if known.len() == SECRET_BYTES => known,
            // A new secret would make strangers of all running processes.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {
                let new: [u8; SECRET_BYTES] = rand::generate(&rand::SystemRandom::new())
                    .map_err(|_| io::Error::other("the system gives no random numbers"))?
                    .expose();
                procfleet_sqlite::replace_file(&path, new)?;
                new.to_vec()
            }
        };
        Ok(MarkSecret(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &secret))))
    }

    /// `UID-HEX`.
    fn proof(&self, name: &str, uid: u32, began: BootTime) -> String {
        let tag = hmac::sign(&self.0, &signed(name.as_bytes(), uid, Some(began.0)));
        let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{uid}-{hex}")
    }

    /// The account of the run that the process comes from, if it has a proof of that.
    fn proven_account(&self, claim: &MarkClaim) -> Option<u32> {
        let (uid, hex) = str::from_utf8(claim.proof.as_deref()?).ok()?.split_once('-')?;
        let uid = uid.parse().ok()?;
        let digits =
            hex.as_bytes().chunks(2).map(|two| u8::from_str_radix(str::from_utf8(two).ok()?, 16).ok());
        let tag: Vec<u8> = digits.collect::<Option<_>>()?;
        let message = signed(&claim.name, uid, claim.run.map(NonZeroU64::get));
        hmac::verify(&self.0, &message, &tag).is_ok().then_some(uid)
    }
}

fn signed(name: &[u8], uid: u32, began: Option<u64>) -> Vec<u8> {
    [format!("{uid}/{}/", began.unwrap_or(0)).as_bytes(), name].concat()
}

/// The mark of one proc, or of its probes.
#[derive(Clone, Debug)]
pub(in crate::exec) struct ProcMark {
    /// INSTANCE/KEY, as in the environment.
    name: Box<str>,
    secret: MarkSecret,
    /// The account of the spec that was last used.
    user: String,
}

impl ProcMark {
    pub(in crate::exec) fn new(name: String, secret: MarkSecret) -> ProcMark {
        ProcMark { name: name.into_boxed_str(), secret, user: String::new() }
    }

    /// Sets the account that the proc's spec names.
    pub(in crate::exec) fn set_account(&mut self, user: &str) {
        if self.user != user {
            user.clone_into(&mut self.user);
        }
    }

    pub(in crate::exec) fn name(&self) -> &str {
        &self.name
    }

    /// The agent that the mark names.
    pub(in crate::exec) fn instance(&self) -> &str {
        self.name.split_once('/').map_or(&self.name, |(instance, _)| instance)
    }

    /// The proof for a run as this account.
    pub(in crate::exec) fn proof(&self, uid: u32, began: BootTime) -> String {
        self.secret.proof(&self.name, uid, began)
    }

    /// Whether a run of the proc has started this process, under any account.
    pub(in crate::exec) fn is_borne_by(&self, pid: u32, claim: &MarkClaim) -> bool {
        let is_old = || {
            let is_ours = |[real, _]: [u32; 2]| real == 0 || real == geteuid().as_raw();
            (procfs::owners(pid).is_some_and(is_ours) && !procfs::is_setuid(pid))
                || user::runs_as(&self.user, pid)
        };
        claim.name == self.name.as_bytes() && (self.secret.proven_account(claim).is_some() || is_old())
    }

    /// Whether a run of the proc as the account of its spec has started this process, or the process runs as
    /// that account.
    pub(in crate::exec) fn identifies(&self, pid: u32, claim: &MarkClaim) -> bool {
        claim.name == self.name.as_bytes()
            && (self.secret.proven_account(claim).is_some_and(|uid| Some(uid) == user::uid_of(&self.user))
                || user::runs_as(&self.user, pid))
    }

    /// When the command began that has started the process, if that is proven.
    pub(in crate::exec) fn proven_run(&self, pid: u32) -> Option<NonZeroU64> {
        let claim = procfs::mark_claim(pid)?;
        self.secret.proven_account(&claim)?;
        claim.run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, proof: &str, run: u64) -> MarkClaim {
        MarkClaim {
            name: name.as_bytes().to_vec(),
            proof: Some(proof.as_bytes().to_vec()),
            run: NonZeroU64::new(run),
        }
    }

    #[test]
    fn a_proof_holds_for_its_proc_account_and_run_alone() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let secret = MarkSecret::open(folder.path()).expect("a new secret");
        let proof = secret.proof("agent/web:nginx", 33, BootTime(812));
        let again = MarkSecret::open(folder.path()).expect("the secret that is there");
        assert_eq!(again.proven_account(&claim("agent/web:nginx", &proof, 812)), Some(33));
        let as_root = proof.replacen("33-", "0-", 1);
        for (name, proof, run) in [
            ("agent/web:shop", &*proof, 812),
            ("agent/web:nginx", &as_root, 812),
            ("agent/web:nginx", &proof, 813),
            ("agent/web:nginx", &proof, 0),
            ("agent/web:nginx", &proof[..proof.len() - 2], 812),
            ("agent/web:nginx", "33-", 812),
            ("agent/web:nginx", "33-zz", 812),
            ("agent/web:nginx", "", 812),
        ] {
            assert_eq!(again.proven_account(&claim(name, proof, run)), None, "{name} {proof} {run}");
        }
        let elsewhere = tempfile::tempdir().expect("a temp dir");
        let other = MarkSecret::open(elsewhere.path()).expect("a new secret");
        assert_eq!(other.proven_account(&claim("agent/web:nginx", &proof, 812)), None, "another agent's");
    }

    #[test]
    fn the_secret_is_the_agents_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temp dir");
        MarkSecret::open(folder.path()).expect("a new secret");
        let mode = fs::metadata(folder.path().join(SECRET)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
