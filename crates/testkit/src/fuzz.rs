//! Fuzzing: valid inputs, changed at random. A seed always makes the same inputs.

use serde_json::{Map, Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Set by `scripts/fuzz`: the duration of each target, and the seed.
const SECONDS: &str = "PROCFLEET_FUZZ_SECONDS";
const SEED: &str = "PROCFLEET_FUZZ_SEED";
/// How much of an input that broke something is shown.
const SHOWN: usize = 4_000;

/// Duration and random state of a fuzz target.
#[derive(Debug)]
pub struct Fuzz {
    random: Random,
    cases: u64,
    until: Option<Instant>,
}

impl Fuzz {
    /// A fixed number of cases, always the same ones; or as many as fit into `PROCFLEET_FUZZ_SECONDS`.
    pub fn cases(cases: u64) -> Fuzz {
        let seconds = setting(SECONDS).and_then(|text| text.parse().ok()).map(Duration::from_secs);
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos().into();
        let seed = match (setting(SEED).and_then(|text| text.parse().ok()), seconds) {
            (Some(seed), _) => seed,
            (None, Some(_)) => now(),
            (None, None) => 1,
        };
        Fuzz {
            random: Random(fastrand::Rng::with_seed(seed)),
            cases,
            until: seconds.map(|seconds| Instant::now() + seconds),
        }
    }

    pub fn bytes(self, good: &[Vec<u8>], check: impl Fn(&[u8])) {
        let show = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.run(|random| mutated_bytes(random, good), show, |bytes| check(bytes));
    }

    pub fn text(self, good: &[&str], check: impl Fn(&str)) {
        let good: Vec<Vec<u8>> = good.iter().map(|text| text.as_bytes().to_vec()).collect();
        let input = |random: &mut Random| {
            let mut text = String::from_utf8_lossy(&mutated_bytes(random, &good)).into_owned();
            if random.below(4) == 0 {
                text.push_str(random.choose(&[
                    "\u{0}",
                    "é",
                    "\u{202e}",
                    "\n",
                    " ",
                    "𝟙",
                    "٣",
                    "-",
                    "9".repeat(400).as_str(),
                ]));
            }
            text
        };
        self.run(input, |text| format!("{text:?}"), |text| check(text));
    }

    /// Each case is a changed valid input, with the index of that input.
    pub fn json(self, good: &[Value], check: impl Fn(usize, &Value)) {
        let input = |random: &mut Random| {
            let index = random.below(good.len());
            let mut value = good[index].clone();
            for _ in 0..=random.below(4) {
                mutate(random, &mut value, good);
            }
            (index, value)
        };
        self.run(input, |(index, value)| format!("{index}: {value}"), |(index, value)| check(*index, value));
    }

    fn run<I>(mut self, input: impl Fn(&mut Random) -> I, show: impl Fn(&I) -> String, check: impl Fn(&I)) {
        let mut done = 0;
        while self.until.map_or(done < self.cases, |until| Instant::now() < until) {
            let seed = self.random.0.get_seed();
            let case = input(&mut self.random);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&case))) {
                let shown: String = show(&case).chars().take(SHOWN).collect();
                eprintln!("after {done} cases, with {SEED}={seed}: {shown}");
                resume_unwind(panic);
            }
            done += 1;
        }
        if self.until.is_some() {
            println!("{done} cases");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a test harness has no arguments of its own")]
fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The same numbers for the same seed.
#[derive(Debug)]
struct Random(fastrand::Rng);

impl Random {
    /// 0 where there is nothing to choose from.
    fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end.max(1))
    }

    fn byte(&mut self) -> u8 {
        self.0.u8(..)
    }

    fn choose<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

fn mutated_bytes(random: &mut Random, good: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = good[random.below(good.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(16)).min(bytes.len());
        match random.below(9) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => bytes.insert(at, random.byte()),
            3 => drop(bytes.splice(at..at, [0xff; 9])),
            4 => {
                let part = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, part.repeat(1 + random.below(40))));
            }
            5 => {
                let other = &good[random.below(good.len())];
                let from = random.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            6 if at < bytes.len() => {
                bytes[at] = random.choose(&[&0, &1, &0x7f, &0x80, &0xff, &b'9', &b'-']).to_owned()
            }
            7 => bytes = (0..random.below(200)).map(|_| random.byte()).collect(),
            _ if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ => bytes.push(random.byte()),
        }
    }
    bytes
}

/// Changes one part of it.
fn mutate(random: &mut Random, value: &mut Value, good: &[Value]) {
    match value {
        Value::Object(fields) if !fields.is_empty() && random.below(5) > 0 => {
            let key = fields.keys().nth(random.below(fields.len())).cloned().unwrap_or_default();
            match random.below(8) {
                0 => drop(fields.shift_remove(&key)),
                1 => {
                    let moved = fields.shift_remove(&key).unwrap_or_default();
                    fields
                        .insert(format!("{key}{}", random.choose(&["x", "", " ", "\u{0}", "_list"])), moved);
                }
                _ => mutate(random, &mut fields[&key], good),
            }
        }
        Value::Array(items) if !items.is_empty() && random.below(5) > 0 => {
            let at = random.below(items.len());
            match random.below(6) {
                0 => drop(items.remove(at)),
                1 => items.resize(items.len() + random.below(100), items[at].clone()),
                _ => mutate(random, &mut items[at], good),
            }
        }
        Value::String(text) if random.below(2) == 0 => {
            let changed = mutated_bytes(random, &[text.clone().into_bytes()]);
            *text = String::from_utf8_lossy(&changed).into_owned();
        }
        other => *other = odd(random, other.clone(), good),
    }
}

fn odd(random: &mut Random, old: Value, good: &[Value]) -> Value {
    match random.below(22) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(0),
        3 => json!(-1),
        4 => json!(i64::MIN),
        5 => json!(u64::MAX),
        6 => json!(0.5),
        7 => json!(-1e308),
        8 => json!(""),
        9 => json!("0"),
        10 => json!(" 7 "),
        11 => json!("\u{0}"),
        12 => json!("运".repeat(random.below(5_000))),
        13 => json!("x".repeat(random.below(20_000))),
        14 => json!([]),
        15 => json!({}),
        16 => json!([old]),
        17 => json!({"ip": old}),
        18 => (0..random.below(120)).fold(old, |inner, _| json!([inner])),
        19 => Value::Array(vec![old; random.below(200)]),
        20 => good[random.below(good.len())].clone(),
        _ => json!(random.below(100_000)),
    }
}

/// A copy in which the fields of every object are in the opposite order.
pub fn reversed(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(reversed).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().rev().map(|(name, value)| (name.clone(), reversed(value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}
