//! Estimates the memory of parsed JSON by its text, so that a body can be refused before it is parsed: the
//! lists of `[[[[` take 150 times the memory of their text.
//!
//! The estimate is an upper bound for `serde_json::Value` with `preserve_order`, apart from the copy that one
//! list or object makes while it grows.

use serde_json::Value;

/// serde_json parses no deeper.
const DEEPEST: usize = 128;
/// Overhead of an allocation in bytes, rounding included.
const ALLOCATION: usize = 32;
/// A member of an object: hash, name and value.
const MEMBER: usize = size_of::<u64>() + size_of::<String>() + size_of::<Value>();

#[derive(Clone, Copy)]
enum Container {
    List,
    Object,
}

/// Bytes of memory, for text that need not be JSON: the parser stops where it is not.
pub(super) fn parsed_size(json: &[u8]) -> usize {
    let mut size = 0;
    let mut open: Vec<(Container, usize)> = Vec::new();
    let mut before = b' ';
    let mut rest = json.iter();
    while let Some(&byte) = rest.next() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => continue,
            b'"' => size += ALLOCATION + text_length(&mut rest),
            b'[' | b'{' if open.len() == DEEPEST => break,
            b'[' => open.push((Container::List, 1)),
            b'{' => open.push((Container::Object, 1)),
            b',' => open.iter_mut().next_back().into_iter().for_each(|(_, count)| *count += 1),
            b']' | b'}' => match open.pop() {
                // An empty list or object allocates nothing.
                Some(_) if matches!(before, b'[' | b'{') => {}
                Some((container, count)) => size += container.size(count),
                None => break,
            },
            _ => {}
        }
        before = byte;
    }
    size + open.into_iter().map(|(container, count)| container.size(count)).sum::<usize>()
}

/// An object of so many texts, without their lengths.
pub(super) fn size_of_texts(count: usize) -> usize {
    Container::Object.size(count) + 2 * ALLOCATION * count
}

impl Container {
    /// With the capacities that `Vec`, and `IndexMap` with its table of indexes, choose.
    fn size(self, count: usize) -> usize {
        match self {
            Container::List => ALLOCATION + count.max(4).next_power_of_two() * size_of::<Value>(),
            Container::Object => {
                let buckets = (count * 8).div_ceil(7).max(4).next_power_of_two();
                let capacity = if buckets == 4 { 3 } else { buckets / 8 * 7 };
                2 * ALLOCATION + capacity * MEMBER + buckets * (size_of::<usize>() + 1)
            }
        }
    }
}

/// Reads to the end of a text and returns its length.
fn text_length(rest: &mut std::slice::Iter<'_, u8>) -> usize {
    let begin = rest.len();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => break,
            b'\\' => drop(rest.next()),
            _ => {}
        }
    }
    begin - rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("it is there");
        pages
            .split(' ')
            .nth(1)
            .and_then(|pages| pages.parse().ok())
            .map(|pages: usize| pages * 4096)
            .expect("a number")
    }

    #[test]
    fn parsing_takes_no_more_than_the_estimate() {
        /// For other tests of this process.
        const OTHERS: usize = 64 << 20;
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        let deep_objects = format!("{}1{}", "{\"\":".repeat(100), "}".repeat(100));
        for element in [
            deep.as_str(),
            deep_objects.as_str(),
            "1",
            "[]",
            "[[1,2,3,4,5]]",
            "\"\"",
            "\"a text\"",
            r#"{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8}"#,
            r#"{"ip":"10.0.0.1","bk_cloud_id":0,"bk_supplier_id":0}"#,
        ] {
            let count = (2 << 20) / element.len();
            let text = format!("[{}]", vec![element; count].join(" ,"));
            let before = resident();
            let value: Value = serde_json::from_str(&text).expect("JSON");
            let grown = resident().saturating_sub(before);
            let estimate = parsed_size(text.as_bytes());
            assert!(grown <= estimate + OTHERS, "{grown} and not {estimate} for lists of {element}");
            drop(value);
        }
    }

    #[test]
    fn the_estimate_counts_what_stores_a_value() {
        let list = Container::List.size(4);
        let object = Container::Object.size(1);
        for (json, expected) in [
            ("", 0),
            ("1", 0),
            ("[]", 0),
            (" { } ", 0),
            ("[1,2, 3,4]", list),
            ("[1,2,3,4,5]", Container::List.size(8)),
            ("[[],[]]", list),
            ("[[1],[1]]", 3 * list),
            ("{\"a\":1}", object + ALLOCATION + 2),
            ("{\"[{,\\\"\":[1]}", object + list + ALLOCATION + 6),
            // Not JSON: the parser has stored this when it finds out.
            ("[[1", 2 * list),
            ("]]", 0),
            ("[\"a", list + ALLOCATION + 1),
        ] {
            assert_eq!(parsed_size(json.as_bytes()), expected, "{json}");
        }
        assert_eq!(parsed_size("[".repeat(1_000_000).as_bytes()), DEEPEST * list);
    }
}
