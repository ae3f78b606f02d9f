//! Random secrets and their hashes. They are long and random, so a plain hash is enough; passwords that
//! people choose would need a slow hash.

use procfleet_proto::link::token::hex;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the kernel gives random bytes");
    bytes
}

pub(crate) fn random_text() -> String {
    hex(&random::<24>())
}

pub(crate) fn hash(secret: &[u8]) -> [u8; 32] {
    digest(&SHA256, secret).as_ref().try_into().expect("SHA-256 has 32 bytes")
}
