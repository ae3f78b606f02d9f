//! Checks JSON of strangers without building a tree, which may need 150 times the memory of the text.

use serde::Deserializer;
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Accepts JSON that callers' parsers accept, too: nested at most `levels` deep, with numbers that fit a
/// double. serde's `IgnoredAny` accepts any depth and any number.
pub(crate) fn check(text: &[u8], levels: u8) -> Result<(), serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    Nesting { levels }.deserialize(&mut parser)?;
    parser.end()
}

/// Reads one value that is nested at most this deep.
#[derive(Clone, Copy)]
struct Nesting {
    levels: u8,
}

impl Nesting {
    fn deeper<E: de::Error>(self) -> Result<Nesting, E> {
        let levels = self.levels.checked_sub(1).ok_or_else(|| E::custom("nested too deep"))?;
        Ok(Nesting { levels })
    }
}

impl<'de> DeserializeSeed<'de> for Nesting {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Nesting {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inside = self.deeper()?;
        while items.next_element_seed(inside)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let inside = self.deeper()?;
        while fields.next_key_seed(inside)?.is_some() {
            fields.next_value_seed(inside)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_callers_could_not_parse_is_refused() {
        for (text, is_accepted) in [
            ("null", true),
            (" {\"a\": [1, -2, 3.5, true, \"b\\n\", {}]}\n", true),
            ("[[[]]]", true),
            ("[[[[]]]]", false),
            ("{\"a\":{\"a\":{\"a\":{}}}}", false),
            ("{\"a\": 1e400}", false),
            ("[\"\\ud800\"]", false),
            ("[\"\\ud83d\\ude00\"]", true),
            ("{1: 2}", false),
            ("1 2", false),
            ("", false),
        ] {
            assert_eq!(check(text.as_bytes(), 3).is_ok(), is_accepted, "{text}");
        }
    }
}
