//! Texts for systemd unit files.

/// A word of `ExecStart=`, quoted and escaped where systemd needs it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.:[]@+".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => {
            let escaped =
                word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
            format!("\"{escaped}\"")
        }
    }
}
