//! Messages as bytes that stay the same for ever.
//!
//! `golden/NAME.hex` is what the first version with this message sent. A peer of that version must always be
//! understood, so a file is never changed; a new message or field gets a new file.

use procfleet_proto::link::token::hex;
use std::path::PathBuf;

/// The bytes of the golden file, which must be equal to what is sent now.
pub(crate) fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.hex"));
    let Ok(text) = std::fs::read_to_string(&path) else {
        panic!(
            "{name} has no golden file; if the message is new, add {} with:
{}",
            path.display(),
            hex(bytes)
        );
    };
    assert_eq!(text.trim(), hex(bytes), "{name}: what we send has changed");
    let digits = text.trim().as_bytes();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("hex"))
        .collect()
}
