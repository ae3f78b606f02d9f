//! Looks at every state that can be reached, the nearest first, so that a counterexample is a shortest one.
//!
//! Visited states are kept as fingerprints of 128 bits, with the step and the state that led there; a trace
//! is made by walking back.

use crate::Fleet;
use crate::properties::Property;
use crate::step::Step;
use crate::world::World;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Above it, a configuration is too large for a test.
const MOST_STATES: usize = 20_000_000;

#[derive(Debug)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    /// Number of steps of the longest shortest path.
    pub(crate) depth: usize,
    /// Servers and the time never go round in a circle, so without further faults they come to rest.
    pub(crate) rests: bool,
    pub(crate) found: Option<Counterexample>,
}

#[derive(Debug)]
pub(crate) struct Counterexample {
    pub(crate) breaks: Property,
    /// A state to begin with, and the steps from there.
    pub(crate) start: World,
    pub(crate) steps: Vec<Step>,
}

/// Explores all states, or up to the first counterexample.
pub(crate) fn explore(fleet: &Fleet) -> Explored {
    let mut seen: HashMap<u128, u32, BuildHasherDefault<Identity>> = HashMap::default();
    let mut origins = Origins::default();
    // From which state to which something happens by itself, in the order of the first.
    let mut certain: Vec<(u32, u32)> = Vec::new();
    let starts = fleet.starts();
    let mut nearest: Vec<(u32, World)> = Vec::new();
    for world in &starts {
        let at = origins.add(index(nearest.len()), None);
        seen.insert(fingerprint(world), at);
        nearest.push((at, world.clone()));
    }
    let (mut depth, mut steps) = (0, Vec::new());
    while !nearest.is_empty() {
        let mut next = Vec::new();
        for (at, world) in nearest {
            let mut broken = fleet.broken(&world);
            steps.clear();
            fleet.steps(&world, &mut steps);
            let mut is_at_rest = true;
            for step in steps.iter().copied() {
                let Some(after) = fleet.next(&world, step) else { continue };
                let to = *seen.entry(fingerprint(&after)).or_insert_with(|| {
                    let to = origins.add(at, Some(step));
                    next.push((to, after));
                    to
                });
                if step.is_certain() {
                    is_at_rest = false;
                    certain.push((at, to));
                }
            }
            if is_at_rest {
                broken = broken.or_else(|| fleet.broken_at_rest(&world));
            }
            if let Some(breaks) = broken {
                let (start, steps) = origins.path(at);
                let found = Some(Counterexample { breaks, start: starts[start].clone(), steps });
                return Explored { states: origins.0.len(), depth, rests: true, found };
            }
        }
        nearest = next;
        depth += usize::from(!nearest.is_empty());
    }
    let rests = has_no_circle(origins.0.len(), &certain);
    Explored { states: origins.0.len(), depth, rests, found: None }
}

/// From which state each state was reached first, and how. Those to begin with have no step.
#[derive(Default)]
struct Origins(Vec<(u32, Option<Step>)>);

impl Origins {
    fn add(&mut self, from: u32, step: Option<Step>) -> u32 {
        assert!(self.0.len() < MOST_STATES, "the exploration is not complete");
        self.0.push((from, step));
        index(self.0.len() - 1)
    }

    /// The state that a path begins with, and its steps.
    fn path(&self, mut at: u32) -> (usize, Vec<Step>) {
        let mut steps = Vec::new();
        while let (from, Some(step)) = self.0[at as usize] {
            steps.push(step);
            at = from;
        }
        steps.reverse();
        (at as usize, steps)
    }
}

/// Takes away states that no other leads to, until none is left. `edges` are ordered by where they begin.
fn has_no_circle(states: usize, edges: &[(u32, u32)]) -> bool {
    let mut incoming = vec![0_u32; states];
    for (_, to) in edges {
        incoming[*to as usize] += 1;
    }
    let mut free: Vec<u32> = (0..index(states)).filter(|state| incoming[*state as usize] == 0).collect();
    let mut taken = 0;
    while let Some(state) = free.pop() {
        taken += 1;
        let first = edges.partition_point(|(from, _)| *from < state);
        for (_, to) in edges[first..].iter().take_while(|(from, _)| *from == state) {
            incoming[*to as usize] -= 1;
            if incoming[*to as usize] == 0 {
                free.push(*to);
            }
        }
    }
    taken == states
}

fn index(number: usize) -> u32 {
    u32::try_from(number).expect("at most MOST_STATES")
}

fn fingerprint(world: &World) -> u128 {
    let mut hasher = Fingerprint { low: 0x243f_6a88_85a3_08d3, high: 0x1319_8a2e_0370_7344 };
    world.hash(&mut hasher);
    u128::from(hasher.low) << 64 | u128::from(hasher.high)
}

/// Two independent hashes by multiplication.
struct Fingerprint {
    low: u64,
    high: u64,
}

impl Fingerprint {
    fn mix(state: u64, word: u64, factor: u64) -> u64 {
        let product = u128::from(state ^ word) * u128::from(factor);
        (product as u64) ^ ((product >> 64) as u64).wrapping_add(state.rotate_left(23))
    }
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.low = Fingerprint::mix(self.low, word, 0xa076_1d64_78bd_642f);
        self.high = Fingerprint::mix(self.high, word, 0xe703_7ed1_a0b4_28db);
    }

    fn finish(&self) -> u64 {
        self.low
    }
}

/// For numbers that are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed");
    }

    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = fingerprint as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
