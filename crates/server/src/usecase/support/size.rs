//! The size of what a request makes the server keep, measured without making it.

use serde::Serialize;

/// Bytes of the JSON text, without keeping the text.
pub(in crate::usecase) fn json_bytes(value: &impl Serialize) -> usize {
    let mut size = ByteCounter(0);
    serde_json::to_writer(&mut size, value).expect("specs and scopes are always JSON");
    size.0
}

/// The text within its limit; a shortened text ends in `…`.
pub(in crate::usecase) fn shortened(mut text: String, most: usize) -> String {
    const END: char = '…';
    if text.len() > most {
        let end = (0..=most - END.len_utf8()).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push(END);
        text.shrink_to_fit();
    }
    text
}

struct ByteCounter(usize);

impl std::io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        for (text, shown) in
            [("1234567", "1234567"), ("12345678", "1234…"), ("12进进8", "12…"), ("进进进", "进…")]
        {
            assert_eq!(shortened(text.to_owned(), 7), shown);
        }
        assert_eq!(json_bytes(&["a", "b"]), r#"["a","b"]"#.len());
    }
}
