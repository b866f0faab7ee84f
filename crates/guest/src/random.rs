//! Random numbers from a seed, the same on every machine (`SplitMix64`; Steele, Lea and Flood, OOPSLA 2014).

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another stream, which depends only on `number` and on the state of this one.
    #[must_use]
    pub const fn fork(&self, number: u64) -> Self {
        let mut stream = Self(self.0 ^ number.wrapping_mul(0xA076_1D64_78BD_642F));
        stream.next();
        stream
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included; `low` if they are in the wrong order.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        if high <= low {
            return low;
        }
        match (high - low).checked_add(1) {
            Some(span) => low + self.next() % span,
            None => self.next(),
        }
    }

    /// True in `part` out of `of` cases.
    pub const fn chance(&mut self, part: u64, of: u64) -> bool {
        self.next() % of < part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_stream() {
        // The first numbers of SplitMix64 for the seed 1234567, as printed by other implementations.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_stay_within_their_bounds() {
        let mut random = Random::new(1);
        for _ in 0..1_000 {
            assert!((3..=5).contains(&random.between(3, 5)));
        }
        assert_eq!(random.between(7, 7), 7);
        assert_eq!(random.between(7, 3), 7);
        random.between(0, u64::MAX);
    }
}
