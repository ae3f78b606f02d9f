//! Random secrets and their hashes. Ours are long and random, so a plain hash is enough; what people choose would need
//! more.

use procfleet_proto::link::token::hex;
use sha2::{Digest, Sha256};

pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
    bytes
}

pub(crate) fn random_text() -> String {
    hex(&random::<24>())
}

pub(crate) fn hash(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}
