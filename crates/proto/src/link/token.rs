//! The join token: `pf1-ID-SECRET-PIN`, all hexadecimal.
//!
//! The pin is the SHA-256 of the CA's certificate, so a new host authenticates the server before it sends the
//! secret.

use std::fmt;
use std::str::FromStr;

const PREFIX: &str = "pf1";

#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub id: [u8; 6],
    pub secret: [u8; 20],
    pub ca_pin: [u8; 32],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a join token: expected pf1-ID-SECRET-PIN, as `procfleet token create` prints it")]
pub struct BadToken;

impl JoinToken {
    /// The part that may be shown and logged.
    pub fn public_id(&self) -> String {
        hex(&self.id)
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}-{}-{}-{}", hex(&self.id), hex(&self.secret), hex(&self.ca_pin))
    }
}

/// The secret stays out of logs.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({})", self.public_id())
    }
}

impl FromStr for JoinToken {
    type Err = BadToken;
    fn from_str(text: &str) -> Result<Self, BadToken> {
        let parts: Vec<&str> = text.trim().split('-').collect();
        let [PREFIX, id, secret, pin] = parts[..] else { return Err(BadToken) };
        Ok(JoinToken { id: unhex(id)?, secret: unhex(secret)?, ca_pin: unhex(pin)? })
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Result<[u8; N], BadToken> {
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>().ok_or(BadToken)?;
    if digits.len() != 2 * N {
        return Err(BadToken);
    }
    Ok(std::array::from_fn(|place| digits[2 * place] << 4 | digits[2 * place + 1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_what_it_prints_and_hides_its_secret() {
        let token = JoinToken { id: [1; 6], secret: [0xab; 20], ca_pin: [3; 32] };
        assert_eq!(token.to_string().parse(), Ok(token.clone()));
        assert!(!format!("{token:?}").contains("ab"));
        for bad in ["", "pf1", "pf1-01-02-03", "pf2-010101010101-ab-03", &token.to_string()[..100]] {
            assert_eq!(bad.parse::<JoinToken>(), Err(BadToken), "{bad}");
        }
    }
}
