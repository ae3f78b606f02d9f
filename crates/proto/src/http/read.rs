//! Reads a JSON value field by field, and collects all faults instead of stopping at the first.
//!
//! `null` is the same as absent, because several callers send it for absent fields. The exceptions are fields
//! whose default would do more than their sender meant ([`Reader::refuse_null`]).
//!
//! An integer may be written as `5`, `5.0` or `"5"`: JOB's own server (Jackson) accepts these too, and the
//! parameters of a query are always texts.
//!
//! The reading code also produces the API's document: given a [`Recorder`] instead of a request it finds no
//! values, and the recorder records the fields that it asks for. So every decision about which fields are
//! read must use the reader's methods.

use super::fault::Faults;
use super::record::{FieldNeed, Recorder, Shape};
use super::typos::{KnownFields, Unread};
use serde_json::{Map, Value};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// The source of a request.
#[derive(Clone, Copy, Debug)]
pub enum RequestBody<'v> {
    Sent(&'v Value),
    /// There are no values; the requested fields are recorded.
    Recorded(&'v Recorder),
}

impl<'v> From<&'v Value> for RequestBody<'v> {
    fn from(sent: &'v Value) -> Self {
        RequestBody::Sent(sent)
    }
}

impl<'v> From<&'v Recorder> for RequestBody<'v> {
    fn from(recorder: &'v Recorder) -> Self {
        RequestBody::Recorded(recorder)
    }
}

/// One object of a request, and its JSON path.
#[derive(Debug)]
pub struct Reader<'v> {
    source: RequestSource<'v>,
    path: String,
}

#[derive(Clone, Copy, Debug)]
enum RequestSource<'v> {
    Sent(&'v Map<String, Value>),
    Recorded(&'v Recorder),
}

impl<'v> Reader<'v> {
    /// The request itself.
    pub fn root(body: impl Into<RequestBody<'v>>, faults: &mut Faults) -> Option<Reader<'v>> {
        match body.into() {
            RequestBody::Sent(value) => Reader::at(value, String::new(), faults),
            RequestBody::Recorded(recorder) => {
                Some(Reader { source: RequestSource::Recorded(recorder), path: String::new() })
            }
        }
    }

    fn at(value: &'v Value, path: String, faults: &mut Faults) -> Option<Reader<'v>> {
        match value {
            Value::Object(fields) => Some(Reader { source: RequestSource::Sent(fields), path }),
            other => {
                faults.add(path, format!("must be an object, not {}", kind_of(other)));
                None
            }
        }
    }

    /// Records the field, if there is a recorder.
    fn recorder(&self, field: &str, shape: Shape) -> Option<&'v Recorder> {
        match self.source {
            RequestSource::Sent(_) => None,
            RequestSource::Recorded(recorder) => {
                recorder.record_field(self.path(field), shape);
                Some(recorder)
            }
        }
    }

    fn record_need(&self, field: &str, need: FieldNeed) {
        if let RequestSource::Recorded(recorder) = self.source {
            recorder.need(self.path(field), need);
        }
    }

    /// The value of a field that was not sent.
    fn inner(&self, recorder: &'v Recorder, path: String) -> Reader<'v> {
        Reader { source: RequestSource::Recorded(recorder), path }
    }

    /// The JSON path of this object; empty for the request itself.
    pub fn own_path(&self) -> &str {
        &self.path
    }

    /// The JSON path of a field of this object.
    pub fn path(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    fn get(&self, field: &str) -> Option<&'v Value> {
        match self.source {
            RequestSource::Sent(fields) => fields.get(field).filter(|value| !value.is_null()),
            RequestSource::Recorded(_) => None,
        }
    }

    /// Whether the field was sent. Not recorded: a field that is only checked here is not in the document.
    pub fn has(&self, field: &str) -> bool {
        self.get(field).is_some()
    }

    pub fn is_text(&self, field: &str) -> bool {
        self.get(field).is_some_and(Value::is_string)
    }

    pub fn is_empty_list(&self, field: &str) -> bool {
        self.get(field).and_then(Value::as_array).is_some_and(Vec::is_empty)
    }

    /// The field is required, with any value.
    pub fn require(&self, field: &str, faults: &mut Faults) {
        self.record_need(field, FieldNeed::Present);
        if !self.has(field) {
            self.missing(field, faults);
        }
    }

    /// The field may be absent, but `null` is a fault: its sender failed to fill it in.
    pub fn refuse_null(&self, field: &str, faults: &mut Faults) {
        self.record_need(field, FieldNeed::NotNull);
        if let RequestSource::Sent(fields) = self.source
            && fields.get(field).is_some_and(Value::is_null)
        {
            faults.add(self.path(field), "must not be null; leave it out for the default");
        }
    }

    /// One of the fields is required and must not be an empty list. A fault names the first.
    pub fn require_one(&self, fields: &[&str], faults: &mut Faults) {
        self.either(&fields.iter().map(std::slice::from_ref).collect::<Vec<_>>());
        let (Some((first, others)), true) = (fields.split_first(), fields.iter().all(|f| self.is_bare(f)))
        else {
            return;
        };
        match self.has(first) {
            true => faults.add(self.path(first), "must not be empty"),
            false => faults.add(self.path(first), format!("is required (or {})", others.join(" or "))),
        }
    }

    /// The fields of one of these sets are required; the code that reads them reports the fault.
    pub fn either(&self, sets: &[&[&str]]) {
        if let RequestSource::Recorded(recorder) = self.source {
            let paths = |set: &&[&str]| set.iter().map(|field| self.path(field)).collect();
            recorder.group(sets.iter().map(paths).collect());
        }
    }

    /// The name under which a field with two names was sent; the first of them if under both or neither.
    pub fn name_of<'n>(&self, name: &'n str, other: &'n str) -> &'n str {
        if let RequestSource::Recorded(recorder) = self.source {
            recorder.alias(self.path(name), self.path(other));
        }
        if !self.has(name) && self.has(other) { other } else { name }
    }

    /// Other fields are faults, except those of the login.
    pub fn only(&self, known: &[&str], beside: &[&str], faults: &mut Faults) {
        match self.source {
            RequestSource::Recorded(recorder) => recorder.only(known),
            RequestSource::Sent(fields) => {
                let odd =
                    |name: &&String| !known.contains(&name.as_str()) && !beside.contains(&name.as_str());
                for name in fields.keys().filter(odd) {
                    faults.add(self.path(name), format!("is not known here; there are {}", known.join(", ")));
                }
            }
        }
    }

    /// The unknown fields in and below this object, which is at `path` in the request whose fields are
    /// `known`. That is called for a sent request only, because the fields become known by a recording.
    pub fn unread(&self, path: &str, known: fn() -> &'static KnownFields) -> Vec<Unread> {
        match self.source {
            RequestSource::Sent(fields) => known().unread(fields, path, &self.path),
            RequestSource::Recorded(_) => Vec::new(),
        }
    }

    /// Absent, or an empty list.
    fn is_bare(&self, field: &str) -> bool {
        self.get(field).is_none_or(|value| value.as_array().is_some_and(Vec::is_empty))
    }

    /// A required object.
    pub fn object(&self, field: &str, faults: &mut Faults) -> Option<Reader<'v>> {
        self.record_need(field, FieldNeed::Present);
        let found = self.optional_object(field, faults);
        if found.is_none() && !self.has(field) {
            self.missing(field, faults);
        }
        found
    }

    /// An optional object.
    pub fn optional_object(&self, field: &str, faults: &mut Faults) -> Option<Reader<'v>> {
        if let Some(recorder) = self.recorder(field, Shape::Object) {
            return Some(self.inner(recorder, self.path(field)));
        }
        self.get(field).and_then(|value| Reader::at(value, self.path(field), faults))
    }

    /// The objects of a required, non-empty list.
    pub fn required_objects(&self, field: &str, faults: &mut Faults) -> Vec<Reader<'v>> {
        self.require_filled_list(field, faults);
        self.objects(field, faults)
    }

    /// The objects of a list, each with its own faults: an element that is not an object is an `Err`. Absent
    /// is empty.
    pub fn elements(&self, field: &str, faults: &mut Faults) -> Vec<Result<Reader<'v>, Faults>> {
        if let Some(recorder) = self.recorder(field, Shape::Objects) {
            return vec![Ok(self.inner(recorder, format!("{}[]", self.path(field))))];
        }
        let at = self.path(field);
        let each = |(index, value): (usize, &'v Value)| {
            let mut own = Faults::default();
            Reader::at(value, format!("{at}[{index}]"), &mut own).ok_or(own)
        };
        self.list(field, faults).iter().enumerate().map(each).collect()
    }

    /// The field as it appears in a result key: a string or number as it was sent, anything else as an empty
    /// string.
    pub fn shown(&self, field: &str) -> String {
        match self.get(field) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(_) | None => String::new(),
        }
    }

    /// The objects of a list; absent is empty.
    pub fn objects(&self, field: &str, faults: &mut Faults) -> Vec<Reader<'v>> {
        if let Some(recorder) = self.recorder(field, Shape::Objects) {
            return vec![self.inner(recorder, format!("{}[]", self.path(field)))];
        }
        let values = self.list(field, faults);
        let at = self.path(field);
        values
            .iter()
            .enumerate()
            .filter_map(|(index, value)| Reader::at(value, format!("{at}[{index}]"), faults))
            .collect()
    }

    /// The texts of a required, non-empty list, with their JSON paths.
    pub fn required_texts(&self, field: &str, faults: &mut Faults) -> Vec<(String, &'v str)> {
        self.require_filled_list(field, faults);
        self.texts(field, faults)
    }

    /// The strings of a list with their paths; an element that is not a string is an `Err`. Absent is empty.
    pub fn each_text(&self, field: &str, faults: &mut Faults) -> Vec<(String, Result<&'v str, String>)> {
        self.recorder(field, Shape::Texts);
        let at = self.path(field);
        let each = |(index, value): (usize, &'v Value)| {
            let text = value.as_str().ok_or_else(|| format!("must be a string, not {}", kind_of(value)));
            (format!("{at}[{index}]"), text)
        };
        self.list(field, faults).iter().enumerate().map(each).collect()
    }

    /// The texts of a list with their JSON paths; absent is empty.
    pub fn texts(&self, field: &str, faults: &mut Faults) -> Vec<(String, &'v str)> {
        let mut texts = Vec::new();
        for (path, text) in self.each_text(field, faults) {
            match text {
                Ok(text) => texts.push((path, text)),
                Err(reason) => faults.add(path, reason),
            }
        }
        texts
    }

    /// The integers of a required, non-empty list.
    pub fn required_integers(
        &self,
        field: &str,
        range: RangeInclusive<i64>,
        faults: &mut Faults,
    ) -> Vec<i64> {
        self.recorder(field, Shape::Integers(range.clone()));
        self.require_filled_list(field, faults);
        let mut numbers = Vec::new();
        for (index, value) in self.list(field, faults).iter().enumerate() {
            match exact_integer(value).filter(|number| range.contains(number)) {
                Some(number) => numbers.push(number),
                None => {
                    let reason = format!("must be an integer from {} to {}", range.start(), range.end());
                    faults.add(format!("{}[{index}]", self.path(field)), reason);
                }
            }
        }
        numbers
    }

    pub fn require_filled_list(&self, field: &str, faults: &mut Faults) {
        self.record_need(field, FieldNeed::Filled);
        if self.is_bare(field) {
            faults.add(self.path(field), "is required and must not be empty");
        }
    }

    /// A list of more elements is a fault. Returns whether it may be read: each element of it may cost more
    /// than it takes to send.
    pub fn at_most(&self, field: &str, most: usize, faults: &mut Faults) -> bool {
        let length = self.get(field).and_then(Value::as_array).map_or(0, Vec::len);
        if length > most {
            let reason = format!("has {length} elements, at most {most} are allowed in one call");
            faults.add(self.path(field), reason);
        }
        length <= most
    }

    fn list(&self, field: &str, faults: &mut Faults) -> &'v [Value] {
        match self.get(field) {
            None => &[],
            Some(Value::Array(values)) => values,
            Some(other) => {
                faults.add(self.path(field), format!("must be an array, not {}", kind_of(other)));
                &[]
            }
        }
    }

    pub fn missing(&self, field: &str, faults: &mut Faults) {
        faults.add(self.path(field), "is required");
    }

    /// A text of at most `longest` characters; absent is empty.
    pub fn text(&self, field: &str, longest: usize, faults: &mut Faults) -> String {
        self.recorder(field, Shape::Text { longest });
        match self.get(field) {
            None => String::new(),
            Some(Value::String(text)) => {
                let length = text.chars().count();
                if length > longest {
                    faults.add(
                        self.path(field),
                        format!("has {length} characters, at most {longest} are allowed"),
                    );
                }
                if text.contains('\0') {
                    faults.add(self.path(field), "contains a NUL character");
                }
                text.clone()
            }
            Some(other) => {
                faults.add(self.path(field), format!("must be a string, not {}", kind_of(other)));
                String::new()
            }
        }
    }

    /// A text or a whole number, as a text; absent is empty.
    pub fn text_or_integer(&self, field: &str, longest: usize, faults: &mut Faults) -> String {
        if self.recorder(field, Shape::TextOrInteger { longest }).is_some() {
            return String::new();
        }
        match self.get(field) {
            Some(Value::Number(number)) if number.is_i64() || number.is_u64() => number.to_string(),
            None | Some(Value::String(_)) => self.text(field, longest, faults),
            Some(other) => {
                faults
                    .add(self.path(field), format!("must be a string or an integer, not {}", kind_of(other)));
                String::new()
            }
        }
    }

    /// A required, non-empty text.
    pub fn required_text(&self, field: &str, longest: usize, faults: &mut Faults) -> String {
        self.recorder(field, Shape::Text { longest });
        self.record_need(field, FieldNeed::Filled);
        match self.get(field) {
            None => {
                self.missing(field, faults);
                String::new()
            }
            Some(Value::String(text)) if text.trim().is_empty() => {
                faults.add(self.path(field), "must not be empty");
                String::new()
            }
            Some(_) => self.text(field, longest, faults),
        }
    }

    /// A whole number, also as a text; absent is `None`.
    pub fn integer(&self, field: &str, range: RangeInclusive<i64>, faults: &mut Faults) -> Option<i64> {
        if let Some(recorder) = self.recorder(field, Shape::Integer(range.clone())) {
            return recorder.given(field);
        }
        let number = self.whole(field, faults)?;
        self.in_range(field, number, range, faults)
    }

    /// A number from a fixed set; absent is `None`. The caller refuses a number that is not in `known`.
    pub fn choice(&self, field: &str, known: &'static [i64], faults: &mut Faults) -> Option<i64> {
        if let Some(recorder) = self.recorder(field, Shape::Choice(known)) {
            return recorder.given(field);
        }
        self.whole(field, faults)
    }

    /// True or false; absent is false.
    pub fn flag(&self, field: &str, faults: &mut Faults) -> bool {
        self.recorder(field, Shape::Flag);
        match self.get(field) {
            None => false,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                faults.add(self.path(field), "must be true or false");
                false
            }
        }
    }

    /// As [`Reader::flag`]; in the query of a url it is a text.
    pub fn query_flag(&self, field: &str, faults: &mut Faults) -> bool {
        match self.get(field).and_then(Value::as_str) {
            Some("true") => true,
            Some("false") => false,
            Some(_) | None => self.flag(field, faults),
        }
    }

    fn whole(&self, field: &str, faults: &mut Faults) -> Option<i64> {
        let value = self.get(field)?;
        let number = exact_integer(value);
        if number.is_none() {
            faults.add(self.path(field), format!("must be an integer, not {}", written(value)));
        }
        number
    }

    /// A number, also as a text; absent is `None`.
    pub fn number(&self, field: &str, range: RangeInclusive<f64>, faults: &mut Faults) -> Option<f64> {
        self.recorder(field, Shape::Number(range.clone()));
        let value = self.get(field)?;
        let Some(number) = number_of(value) else {
            faults.add(self.path(field), format!("must be a number, not {}", written(value)));
            return None;
        };
        self.in_range(field, number, range, faults)
    }

    fn in_range<N: PartialOrd + Display>(
        &self,
        field: &str,
        number: N,
        range: RangeInclusive<N>,
        faults: &mut Faults,
    ) -> Option<N> {
        if range.contains(&number) {
            return Some(number);
        }
        faults
            .add(self.path(field), format!("is {number}, must be from {} to {}", range.start(), range.end()));
        None
    }

    /// The fields of an object of texts. Numbers and booleans are taken as their text: callers label with
    /// ids.
    pub fn labels(&self, field: &str, faults: &mut Faults) -> Vec<(String, String)> {
        if self.recorder(field, Shape::Labels).is_some() {
            return Vec::new();
        }
        let Some(labels) = self.optional_object(field, faults) else { return Vec::new() };
        let RequestSource::Sent(fields) = labels.source else { return Vec::new() };
        let mut read = Vec::new();
        for (name, value) in fields {
            match value {
                Value::String(text) => read.push((name.clone(), text.clone())),
                Value::Number(number) => read.push((name.clone(), number.to_string())),
                Value::Bool(yes) => read.push((name.clone(), yes.to_string())),
                Value::Null => read.push((name.clone(), String::new())),
                Value::Array(_) | Value::Object(_) => {
                    faults.add(labels.path(name), format!("must be a string, not {}", kind_of(value)));
                }
            }
        }
        read
    }
}

/// An integer as callers write it: `5`, `5.0` or `"5"`.
fn exact_integer(value: &Value) -> Option<i64> {
    /// Up to 2^53 a floating-point number is exactly the integer that was written.
    const LARGEST_EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::String(text) => text.trim().parse().ok(),
        Value::Number(number) => number.as_i64().or_else(|| {
            let float = number.as_f64().filter(|float| float.abs() <= LARGEST_EXACT)?;
            // Only an integer is displayed without a fraction.
            float.to_string().parse().ok()
        }),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
        other => other.as_f64(),
    }
}

/// The value as a fault shows it.
fn written(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("{text:?}"),
        other => kind_of(other).to_owned(),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
