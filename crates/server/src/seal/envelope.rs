//! The envelope of a sealed value. Pure: keys and nonces are arguments.
//!
//! ```text
//! version (1 byte: 1) | key id (8 bytes) | nonce (12 bytes) | ciphertext and tag of AES-256-GCM
//! additional data: store id (16 bytes) | purpose | 0 | SHA-256 of the CA's certificate (32 bytes)
//! ```
//!
//! The key id is the beginning of the SHA-256 of the key. It tells which key opens the value, before one of
//! them is tried. The additional data makes it impossible to open a value that was moved to another row or
//! store.

use crate::secret;
use procfleet_proto::link::token::hex;
use procfleet_store::StoreId;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::fmt;

pub(super) const KEY_LEN: usize = 32;
const VERSION: u8 = 1;
const ID_LEN: usize = 8;
const HEAD_LEN: usize = 1 + ID_LEN + NONCE_LEN;

/// A name of a seal key that reveals nothing about the key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SealKeyId([u8; ID_LEN]);

/// A key that seals and opens.
pub(super) struct SealKey {
    pub(super) id: SealKeyId,
    key: LessSafeKey,
}

/// What a sealed value is, and where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SealContext<'a> {
    pub(super) store: StoreId,
    pub(super) purpose: &'a str,
    /// The SHA-256 of the certificate of the CA.
    pub(super) ca: [u8; 32],
}

/// Why a sealed value cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenFault {
    #[error("it is sealed under key {0}")]
    NoKey(SealKeyId),
    #[error("it is sealed in a way (version {0}) that this program does not know")]
    UnknownVersion(u8),
    #[error("it is too short to be a sealed value")]
    TooShort,
    #[error("it was altered, or belongs to another CA or store")]
    Altered,
}

impl SealKey {
    pub(super) fn new(bytes: &[u8; KEY_LEN]) -> SealKey {
        let id = *secret::hash(bytes).first_chunk().expect("a SHA-256 is longer than its beginning");
        let key = UnboundKey::new(&AES_256_GCM, bytes).expect("32 bytes are a key of AES-256");
        SealKey { id: SealKeyId(id), key: LessSafeKey::new(key) }
    }
}

/// `nonce` must be random: the same one twice under one key would reveal the key stream.
pub(super) fn seal(key: &SealKey, nonce: [u8; NONCE_LEN], context: SealContext<'_>, value: &[u8]) -> Vec<u8> {
    let mut sealed = value.to_vec();
    key.key
        .seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(context.bytes()),
            &mut sealed,
        )
        .expect("a private key is much shorter than the limit of AES-GCM");
    [&[VERSION], key.id.0.as_slice(), &nonce, &sealed].concat()
}

/// Opens a value with the key that it names.
pub(super) fn open(keys: &[SealKey], context: SealContext<'_>, sealed: &[u8]) -> Result<Vec<u8>, OpenFault> {
    let id = key_id(sealed)?;
    let key = keys.iter().find(|key| key.id == id).ok_or(OpenFault::NoKey(id))?;
    let (head, rest) = sealed.split_at_checked(HEAD_LEN).ok_or(OpenFault::TooShort)?;
    let nonce = Nonce::try_assume_unique_for_key(&head[1 + ID_LEN..]).map_err(|_| OpenFault::TooShort)?;
    let mut rest = rest.to_vec();
    let value = key
        .key
        .open_in_place(nonce, Aad::from(context.bytes()), &mut rest)
        .map_err(|_| OpenFault::Altered)?;
    Ok(value.to_vec())
}

/// The key under which a value is sealed.
pub(super) fn key_id(sealed: &[u8]) -> Result<SealKeyId, OpenFault> {
    match sealed {
        [VERSION, rest @ ..] => rest.first_chunk().map(|id| SealKeyId(*id)).ok_or(OpenFault::TooShort),
        [version, ..] => Err(OpenFault::UnknownVersion(*version)),
        [] => Err(OpenFault::TooShort),
    }
}

impl SealContext<'_> {
    /// All parts but one have a fixed length, so no two contexts have the same bytes.
    fn bytes(&self) -> Vec<u8> {
        [self.store.0.as_slice(), self.purpose.as_bytes(), &[0], &self.ca].concat()
    }
}

impl fmt::Display for SealKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for SealKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealKeyId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: SealContext<'_> = SealContext { store: StoreId([1; 16]), purpose: "test", ca: [2; 32] };
    const VALUE: &[u8] = b"a private key";
    /// Made by another implementation of AES-256-GCM.
    const GOLDEN: &str = "a52f57bca74667b51a74212ad70d491271f84244c8d28b306110091e28";

    fn key(mark: u8) -> SealKey {
        SealKey::new(&[mark; KEY_LEN])
    }

    fn sealed() -> Vec<u8> {
        seal(&key(1), [9; NONCE_LEN], CONTEXT, VALUE)
    }

    /// The format is stored: this value must be readable forever.
    #[test]
    fn the_envelope_has_this_form() {
        let sealed = sealed();
        let (head, rest) = sealed.split_at(HEAD_LEN);
        // SHA-256 of 32 bytes 0x01 begins with 72cd6e8422c407fb.
        assert_eq!(hex(head), "0172cd6e8422c407fb090909090909090909090909");
        assert_eq!(rest.len(), VALUE.len() + 16);
        assert_eq!(hex(rest), GOLDEN);
        assert_eq!(key_id(&sealed), Ok(key(1).id));
        assert_eq!(key(1).id.to_string(), "72cd6e8422c407fb");
    }

    #[test]
    fn a_value_is_opened_by_its_key_in_its_place_and_unchanged_only() {
        let (ours, both) = (vec![key(1)], vec![key(2), key(1)]);
        let missing = OpenFault::NoKey(key(1).id);
        let flipped = |at: usize| {
            let mut bytes = sealed();
            bytes[at] ^= 1;
            bytes
        };
        let cut = |length: usize| sealed()[..length].to_vec();
        let other_store = SealContext { store: StoreId([3; 16]), ..CONTEXT };
        let other_ca = SealContext { ca: [3; 32], ..CONTEXT };
        let other_purpose = SealContext { purpose: "tes", ..CONTEXT };
        let end = sealed().len() - 1;
        let mut other_id = flipped(1);
        other_id.truncate(9);
        let unknown = OpenFault::NoKey(key_id(&other_id).expect("an id"));
        type Row<'a> = (&'a str, &'a [SealKey], SealContext<'a>, Vec<u8>, Result<&'a [u8], OpenFault>);
        let rows: Vec<Row<'_>> = vec![
            ("its key", &ours, CONTEXT, sealed(), Ok(VALUE)),
            ("its key among others", &both, CONTEXT, sealed(), Ok(VALUE)),
            ("another key", &both[..1], CONTEXT, sealed(), Err(missing)),
            ("no key", &[], CONTEXT, sealed(), Err(missing)),
            ("another store", &ours, other_store, sealed(), Err(OpenFault::Altered)),
            ("another CA", &ours, other_ca, sealed(), Err(OpenFault::Altered)),
            ("another purpose", &ours, other_purpose, sealed(), Err(OpenFault::Altered)),
            ("another version", &ours, CONTEXT, flipped(0), Err(OpenFault::UnknownVersion(0))),
            ("a later version", &ours, CONTEXT, vec![2; 60], Err(OpenFault::UnknownVersion(2))),
            ("a flipped bit of the key id", &ours, CONTEXT, flipped(1), Err(unknown)),
            ("a flipped bit of the nonce", &ours, CONTEXT, flipped(9), Err(OpenFault::Altered)),
            ("a flipped bit of the value", &ours, CONTEXT, flipped(HEAD_LEN), Err(OpenFault::Altered)),
            ("a flipped bit of the tag", &ours, CONTEXT, flipped(end), Err(OpenFault::Altered)),
            ("nothing", &ours, CONTEXT, Vec::new(), Err(OpenFault::TooShort)),
            ("a cut key id", &ours, CONTEXT, cut(8), Err(OpenFault::TooShort)),
            ("a cut nonce", &ours, CONTEXT, cut(HEAD_LEN - 1), Err(OpenFault::TooShort)),
            ("no value", &ours, CONTEXT, cut(HEAD_LEN), Err(OpenFault::Altered)),
            ("a cut tag", &ours, CONTEXT, cut(end), Err(OpenFault::Altered)),
        ];
        for (what, keys, context, bytes, expected) in rows {
            let opened = open(keys, context, &bytes);
            assert_eq!(opened.as_deref().map_err(|fault| *fault), expected, "{what}");
        }
    }

    #[test]
    fn each_bit_counts() {
        for at in 0..sealed().len() {
            for bit in 0..8 {
                let mut bytes = sealed();
                bytes[at] ^= 1 << bit;
                assert!(open(&[key(1)], CONTEXT, &bytes).is_err(), "byte {at}, bit {bit}");
            }
        }
    }
}
