//! Pseudo-random numbers that are the same for the same seed, so that a run can be repeated.

use procfleet_core::server_choice::Draw;

#[derive(Clone, Debug)]
pub(crate) struct Random(fastrand::Rng);

impl Random {
    /// Different for every agent of one seed.
    pub(crate) fn new(seed: u64, agent: usize) -> Random {
        Random(fastrand::Rng::with_seed(seed ^ (agent as u64).wrapping_mul(0xa076_1d64_78bd_642f)))
    }

    /// From 0 to just below 1.
    pub(crate) fn part(&mut self) -> f64 {
        self.0.f64()
    }

    /// True with this probability, in per cent.
    pub(crate) fn percent(&mut self, percent: f64) -> bool {
        percent > 0.0 && self.part() * 100.0 < percent
    }

    /// One of the numbers from `least` to `most`.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        self.0.u64(least..=most.max(least))
    }

    pub(crate) fn draw(&mut self) -> Draw {
        Draw(self.0.u32(..))
    }

    pub(crate) fn bytes(&mut self) -> u64 {
        self.0.u64(..)
    }
}
