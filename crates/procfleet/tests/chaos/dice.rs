//! Choices that the same seed makes again.

#[derive(Clone, Debug)]
pub(crate) struct Dice(fastrand::Rng);

impl Dice {
    /// Different for every game of one seed.
    pub(crate) fn new(seed: u64, game: &str) -> Dice {
        let mixed = game.bytes().fold(seed ^ 0x9E37_79B9_7F4A_7C15, |state, byte| {
            (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        Dice(fastrand::Rng::with_seed(mixed))
    }

    /// An index below `count`.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        self.0.usize(..count)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0.u64(..limit)
    }
}
