//! Choices that the same seed makes again.

/// xorshift64.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Different for every game of one seed.
    pub(crate) fn new(seed: u64, game: &str) -> Dice {
        let mixed = game.bytes().fold(seed ^ 0x9E37_79B9_7F4A_7C15, |state, byte| {
            (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        let mut dice = Dice(mixed | 1);
        (0..8).for_each(|_| _ = dice.below(2));
        dice
    }

    /// An index below this number.
    pub(crate) fn index(&mut self, many: usize) -> usize {
        usize::try_from(self.below(many as u64)).unwrap_or_default()
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}
