//! The file of a seal key: 64 hexadecimal digits and a newline, readable by its owner only.
//!
//! `openssl rand -hex 32` makes the same form.

use super::envelope::{KEY_LEN, SealKey};
use crate::secret;
use procfleet_proto::link::token::hex;
use rustix::fs::OFlags;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

const OPEN_TO_OTHERS: u32 = 0o077;
/// More than a key needs. A large file is not read as a whole.
const MOST: u64 = 1_024;

/// Why a file is not used as a seal key. The texts contain nothing of its content.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileFault {
    #[error("it does not exist")]
    Missing,
    #[error("it cannot be read or written")]
    File(#[source] io::Error),
    #[error("it is no regular file")]
    NoFile,
    #[error(
        "others may read or write it (mode {0:04o}). Make it private with chmod 600; if it was open for long, use another key"
    )]
    Open(u32),
    #[error("it belongs to the account with uid {0}, and not to this server's account or root")]
    AnotherAccounts(u32),
    #[error("it does not contain 64 hexadecimal digits")]
    NoKey,
}

pub(super) fn read(path: &Path) -> Result<SealKey, KeyFileFault> {
    // Opening a named pipe would wait for its writer.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a flag of open(2) is an int");
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(KeyFileFault::Missing),
        Err(error) => return Err(KeyFileFault::File(error)),
    };
    check(&file.metadata().map_err(KeyFileFault::File)?, rustix::process::geteuid().as_raw())?;
    let mut text = Vec::new();
    file.take(MOST).read_to_end(&mut text).map_err(KeyFileFault::File)?;
    Ok(SealKey::new(&parse(&text).ok_or(KeyFileFault::NoKey)?))
}

/// Creates the file with a new key. Never overwrites one: it may be the only copy of its key.
pub(super) fn make(path: &Path) -> Result<SealKey, KeyFileFault> {
    let key: [u8; KEY_LEN] = secret::random();
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(format!("{}\n", hex(&key)).as_bytes())?;
        file.sync_all()?;
        // The name must be as durable as what is sealed under the key.
        match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) => File::open(folder)?.sync_all(),
            None => File::open(".")?.sync_all(),
        }
    };
    write().map_err(KeyFileFault::File)?;
    Ok(SealKey::new(&key))
}

fn check(about: &Metadata, us: u32) -> Result<(), KeyFileFault> {
    if !about.is_file() {
        return Err(KeyFileFault::NoFile);
    }
    if about.uid() != us && about.uid() != 0 {
        return Err(KeyFileFault::AnotherAccounts(about.uid()));
    }
    match about.mode() & OPEN_TO_OTHERS {
        0 => Ok(()),
        _ => Err(KeyFileFault::Open(about.mode() & 0o7777)),
    }
}

fn parse(text: &[u8]) -> Option<[u8; KEY_LEN]> {
    let digits = text.trim_ascii();
    let mut key = [0; KEY_LEN];
    if digits.len() != 2 * KEY_LEN {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |letter: u8| char::from(letter).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_file_has_64_hexadecimal_digits() {
        let digits = "0123456789abcdefABCDEF00".repeat(2) + "fedcba9876543210";
        let key = parse(digits.as_bytes()).expect("64 digits");
        assert_eq!(hex(&key), digits.to_lowercase());
        for (text, usable) in [
            (format!("{digits}\n"), true),
            (format!(" {digits}\r\n\n"), true),
            (digits[1..].to_owned(), false),
            (format!("{digits}0"), false),
            (format!("{digits}\n{digits}\n"), false),
            (format!("g{}", &digits[1..]), false),
            (format!("é{}", &digits[2..]), false),
            (String::new(), false),
        ] {
            assert_eq!(parse(text.as_bytes()), usable.then_some(key), "{text:?}");
        }
    }

    #[test]
    fn a_key_file_is_private_and_never_overwritten() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("seal.key");
        assert!(matches!(read(&path), Err(KeyFileFault::Missing)));
        let made = make(&path).expect("made");
        assert_eq!(read(&path).expect("read").id, made.id);
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert!(matches!(make(&path), Err(KeyFileFault::File(_))));
        for open in [0o644, 0o640, 0o620, 0o602, 0o601, 0o610] {
            std::fs::set_permissions(&path, Permissions::from_mode(open)).expect("our own");
            let refused = read(&path).err();
            assert!(matches!(refused, Some(KeyFileFault::Open(mode)) if mode == open), "{refused:?}");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o400)).expect("our own");
        assert_eq!(read(&path).expect("read").id, made.id);
        assert!(matches!(read(folder.path()), Err(KeyFileFault::NoFile)));
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("our own");
        std::fs::write(&path, "secret").expect("our own");
        let refused = read(&path).expect_err("no key");
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }

    #[test]
    fn a_key_file_of_another_account_is_refused() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("seal.key");
        make(&path).expect("made");
        let about = std::fs::metadata(&path).expect("there");
        check(&about, about.uid()).expect("our own");
        match about.uid() {
            0 => check(&about, 7).expect("root's is as good"),
            uid => {
                assert!(
                    matches!(check(&about, uid + 1), Err(KeyFileFault::AnotherAccounts(of)) if of == uid)
                );
            }
        }
    }
}
