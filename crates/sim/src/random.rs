//! Numbers that look random and are the same for the same seed, so that a run can be had again.

/// SplitMix64: small, quick and even enough to roll dice with.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, agent: usize) -> Random {
        let mut random = Random(seed ^ (agent as u64).wrapping_mul(0xa076_1d64_78bd_642f));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to just below 1.
    pub(crate) fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability, in per cent.
    pub(crate) fn percent(&mut self, percent: f64) -> bool {
        percent > 0.0 && self.part() * 100.0 < percent
    }

    /// One of the numbers from `least` to `most`.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + (self.part() * (most.saturating_sub(least) + 1) as f64) as u64
    }

    pub(crate) fn bytes(&mut self) -> u64 {
        self.next()
    }
}
