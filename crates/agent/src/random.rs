//! Random numbers for `core`'s decisions.

use procfleet_core::server_choice::Draw;
use ring::rand::{SecureRandom, SystemRandom};

/// A random number from the kernel. If none can be read, the largest: pauses then have their full length.
pub(crate) fn draw() -> Draw {
    let mut bytes = [0; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => Draw(u32::from_le_bytes(bytes)),
        Err(_) => Draw(u32::MAX),
    }
}
