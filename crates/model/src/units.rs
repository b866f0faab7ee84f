//! Quantities of memory. The type carries the unit and the field is private. There are no operators: each method says how
//! it behaves at the edges.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One mebibyte in bytes.
pub const MIB: u64 = 1 << 20;

/// A quantity of memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(u64);

impl Bytes {
    /// No memory.
    pub const ZERO: Self = Self(0);
    /// The largest quantity that the type can hold.
    pub const MAX: Self = Self(u64::MAX);

    /// A quantity of `bytes` bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// A quantity of `kib` KiB, or [`Bytes::MAX`] if it does not fit.
    #[must_use]
    pub const fn from_kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1 << 10))
    }

    /// A quantity of `mib` MiB, or [`Bytes::MAX`] if it does not fit.
    #[must_use]
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(MIB))
    }

    /// The number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number of whole MiB, rounded down.
    #[must_use]
    pub const fn whole_mib(self) -> u64 {
        self.0 / MIB
    }

    /// Whether the quantity is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, or `None` if it does not fit.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference, or `None` if `other` is larger.
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    /// The sum, or [`Bytes::MAX`] if it does not fit.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, or zero if `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The distance between two quantities.
    #[must_use]
    pub const fn abs_diff(self, other: Self) -> Self {
        Self(self.0.abs_diff(other.0))
    }

    /// `self × numerator / denominator`, with an exact product, rounded down; [`Bytes::MAX`] if the result does not fit.
    ///
    /// # Panics
    /// If `denominator` is zero; that is a mistake of the caller.
    #[must_use]
    pub fn mul_div(self, numerator: u64, denominator: u64) -> Self {
        assert!(denominator != 0, "a ratio has a denominator");
        // Almost all products fit into 64 bits, and a 128-bit division takes several times as long.
        if let Some(product) = self.0.checked_mul(numerator) {
            return Self(product / denominator);
        }
        let exact = u128::from(self.0) * u128::from(numerator) / u128::from(denominator);
        Self(u64::try_from(exact).unwrap_or(u64::MAX))
    }

    /// Rounds down to a multiple of `size`.
    #[must_use]
    pub const fn round_down(self, size: PageSize) -> Self {
        Self(self.0 - self.0 % size.0)
    }

    /// Whether there is nothing to write.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) const fn is_nothing(&self) -> bool {
        self.is_zero()
    }

    /// The sum of all, or [`Bytes::MAX`] if it does not fit.
    #[must_use]
    pub fn sum(all: impl IntoIterator<Item = Self>) -> Self {
        all.into_iter().fold(Self::ZERO, Self::saturating_add)
    }
}

/// For people: `1.50 GiB`, `214 MiB`, `12 KiB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")];
        for (size, name) in UNITS {
            if self.0 < size {
                continue;
            }
            // Hundredths, rounded half up. In u128, no quantity overflows.
            let hundredths = (u128::from(self.0) * 100 + u128::from(size) / 2) / u128::from(size);
            let text = match (hundredths / 100, hundredths % 100) {
                (whole, 0) => format!("{whole} {name}"),
                (whole, _) if whole >= 100 => format!("{} {name}", (hundredths + 50) / 100),
                (whole, rest) if whole >= 10 => match (rest + 5) / 10 {
                    10 => format!("{} {name}", whole + 1),
                    tenth => format!("{whole}.{tenth} {name}"),
                },
                (whole, rest) => format!("{whole}.{rest:02} {name}"),
            };
            return f.pad(&text);
        }
        match self.0 {
            0 => f.pad("0"),
            small if small < 1 << 10 => f.pad(&format!("{small} B")),
            kib => f.pad(&format!("{} KiB", kib >> 10)),
        }
    }
}

/// Why a text is not a quantity of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseBytesError {
    /// The text does not begin with a number.
    #[error("`{0}` is not a size: write a number and a unit, as in 512 MiB or 2G")]
    NoNumber(String),
    /// An unknown unit.
    #[error("`{0}` is not a unit of memory: use B, K, M, G or T (KiB, MiB, GiB, TiB; powers of 1024)")]
    UnknownUnit(String),
    /// More than 2⁶⁴ − 1 bytes.
    #[error("`{0}` does not fit in 64 bits")]
    TooLarge(String),
    /// A number without a unit, which somebody has probably forgotten.
    #[error("`{0}` has no unit: write `{0}M` or `{0}G`, or `{0}B` if you mean bytes")]
    NoUnit(String),
}

/// `512 MiB`, `512M`, `1.5G`, `4096`. Units are powers of 1024. Decimal units are refused, because people read them both ways.
/// A fraction is rounded down to whole bytes.
impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(ParseBytesError::NoNumber(text.to_owned()));
        }
        let shift = match unit.trim() {
            "" | "B" | "b" => 0,
            "K" | "k" | "KiB" => 10,
            "M" | "m" | "MiB" => 20,
            "G" | "g" | "GiB" => 30,
            "T" | "t" | "TiB" => 40,
            other => return Err(ParseBytesError::UnknownUnit(other.to_owned())),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.len() > 9 || fraction.contains('.') {
            return Err(ParseBytesError::NoNumber(text.to_owned()));
        }
        let too_large = || ParseBytesError::TooLarge(text.to_owned());
        let whole: u128 = whole.parse().map_err(|_| too_large())?;
        let numerator: u128 =
            if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| too_large())? };
        let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| too_large())?);
        let exact = whole.checked_mul(1 << shift).ok_or_else(too_large)? + (numerator << shift) / scale;
        u64::try_from(exact).map(Self).map_err(|_| too_large())
    }
}

impl Bytes {
    /// A size with its unit, as the operator writes it. Zero needs none.
    ///
    /// # Errors
    /// If the text is no size, or a number without a unit.
    pub fn with_unit(text: &str) -> Result<Self, ParseBytesError> {
        let size: Self = text.parse()?;
        let has_unit = text.trim().ends_with(|last: char| last.is_ascii_alphabetic());
        if has_unit || size.is_zero() {
            Ok(size)
        } else {
            Err(ParseBytesError::NoUnit(text.trim().to_owned()))
        }
    }

    /// The same for a text that may be something else: `None` if it does not begin like a size, or is a share.
    #[must_use]
    pub fn if_size(text: &str) -> Option<Result<Self, ParseBytesError>> {
        let begins = text.starts_with(|c: char| c.is_ascii_digit()) && !text.ends_with('%');
        begins.then(|| Self::with_unit(text))
    }
}

/// The size of a page in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct PageSize(u64);

impl TryFrom<u64> for PageSize {
    type Error = &'static str;

    fn try_from(bytes: u64) -> Result<Self, Self::Error> {
        Self::new(bytes).ok_or("a page size must be a power of two")
    }
}

impl From<PageSize> for u64 {
    fn from(size: PageSize) -> Self {
        size.0
    }
}

/// The page of every balloon, independent of the guest's own page size (`VIRTIO_BALLOON_PFN_SHIFT` is 12).
pub const PAGE_4K: PageSize = PageSize(4096);

impl PageSize {
    /// A page of `bytes` bytes; `None` if that is not a power of two.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() { Some(Self(bytes)) } else { None }
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0)
    }
}

/// A count of pages. Only a [`PageSize`] converts it to [`Bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pages(u64);

impl Pages {
    /// `count` pages.
    #[must_use]
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The number of pages.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The size of these pages, or [`Bytes::MAX`] if it does not fit.
    #[must_use]
    pub const fn to_bytes(self, size: PageSize) -> Bytes {
        Bytes(self.0.saturating_mul(size.0))
    }

    /// The growth since an earlier value of the same counter; zero if the counter went back (it was reset).
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

/// A part of a whole, in hundredths of a percent: `5%` is 500.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "u16", try_from = "u16")]
pub struct Share(u16);

/// Why a number is not a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} hundredths of a percent are more than 100 %")]
pub struct ShareAboveAll(u16);

impl TryFrom<u16> for Share {
    type Error = ShareAboveAll;

    fn try_from(points: u16) -> Result<Self, Self::Error> {
        if points <= Self::WHOLE { Ok(Self(points)) } else { Err(ShareAboveAll(points)) }
    }
}

impl From<Share> for u16 {
    fn from(share: Share) -> Self {
        share.0
    }
}

impl Share {
    const WHOLE: u16 = 10_000;

    /// `percent` percent; `None` above 100.
    #[must_use]
    pub const fn percent(percent: u8) -> Option<Self> {
        if percent <= 100 { Some(Self(percent as u16 * 100)) } else { None }
    }

    /// Hundredths of a percent; `None` above 10,000.
    #[must_use]
    pub const fn from_basis_points(basis_points: u16) -> Option<Self> {
        if basis_points <= Self::WHOLE { Some(Self(basis_points)) } else { None }
    }

    /// Hundredths of a percent, 0 to 10,000.
    #[must_use]
    pub const fn basis_points(self) -> u16 {
        self.0
    }

    /// This part of `whole`, rounded down.
    #[must_use]
    pub fn of(self, whole: Bytes) -> Bytes {
        whole.mul_div(u64::from(self.0), u64::from(Self::WHOLE))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 100 {
            0 => f.pad(&format!("{}%", self.0 / 100)),
            rest => f.pad(&format!("{}.{rest:02}%", self.0 / 100)),
        }
    }
}

/// Why a text is not a share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a share: write a percentage from 0% to 100%, as in 5% or 2.5%")]
pub struct ParseShareError(String);

/// `5%`, `2.5%`, `0.25 %`.
impl FromStr for Share {
    type Err = ParseShareError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseShareError(text.to_owned());
        let number = text.trim().strip_suffix('%').ok_or_else(wrong)?.trim_end();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.len() > 2 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong());
        }
        let whole: u16 = whole.parse().map_err(|_| wrong())?;
        let hundredths: u16 = format!("{fraction:0<2}").parse().map_err(|_| wrong())?;
        let points = whole.checked_mul(100).and_then(|p| p.checked_add(hundredths)).ok_or_else(wrong)?;
        if points > Self::WHOLE { Err(wrong()) } else { Ok(Self(points)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512 MiB", 512 << 20),
            ("512M", 512 << 20),
            ("1.5G", 3 << 29),
            (" 2 GiB ", 2 << 30),
            ("0.5K", 512),
            ("1T", 1 << 40),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes::new(bytes)), "{text}");
        }
    }

    #[test]
    fn an_operator_names_the_unit() {
        assert_eq!(Bytes::with_unit(" 5 MiB "), Ok(Bytes::from_mib(5)));
        assert_eq!(Bytes::with_unit("0"), Ok(Bytes::ZERO));
        assert_eq!(Bytes::with_unit("512B"), Ok(Bytes::new(512)));
        assert_eq!(
            Bytes::with_unit("5").unwrap_err().to_string(),
            "`5` has no unit: write `5M` or `5G`, or `5B` if you mean bytes"
        );
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_hint() {
        for text in ["", "MiB", "5 PiB", "1..5G", "-1", "1.5.2G", ".5G", "99999999999T"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!(
            "5 Mo".parse::<Bytes>().unwrap_err().to_string(),
            "`Mo` is not a unit of memory: use B, K, M, G or T (KiB, MiB, GiB, TiB; powers of 1024)"
        );
    }

    #[test]
    fn sizes_print_for_people() {
        for (bytes, text) in [
            (0, "0"),
            (512, "512 B"),
            (12 << 10, "12 KiB"),
            (214 << 20, "214 MiB"),
            ((1 << 30) + (1 << 29), "1.50 GiB"),
            ((1 << 30) + (256 << 20), "1.25 GiB"),
            (24 << 30, "24 GiB"),
            ((24 << 30) - (1 << 20), "24 GiB"),
            ((23 << 30) + (512 << 20), "23.5 GiB"),
        ] {
            assert_eq!(Bytes::new(bytes).to_string(), text);
        }
    }

    #[test]
    fn shares_read_and_take_their_part() {
        assert_eq!("5%".parse::<Share>(), Ok(Share(500)));
        assert_eq!("2.5 %".parse::<Share>(), Ok(Share(250)));
        assert_eq!("100%".parse::<Share>(), Ok(Share(10_000)));
        for text in ["101%", "5", "%", "-1%", "1.234%", "5.x%"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
        assert_eq!(Share(500).of(Bytes::from_mib(2000)), Bytes::from_mib(100));
        assert_eq!(serde_json::to_string(&Share(10_000)).unwrap(), "10000");
        assert_eq!(serde_json::from_str::<Share>("10000").unwrap(), Share(10_000));
        assert!(serde_json::from_str::<Share>("10001").is_err(), "a journal is no better than a file");
    }

    proptest! {
        #[test]
        fn printed_mib_read_back(mib in 0_u64..1_000_000) {
            let bytes = Bytes::from_mib(mib);
            prop_assert_eq!(format!("{}M", bytes.whole_mib()).parse::<Bytes>(), Ok(bytes));
        }

        #[test]
        fn mul_div_never_exceeds_the_whole(bytes: u64, part in 0_u64..=1000) {
            prop_assert!(Bytes::new(bytes).mul_div(part, 1000) <= Bytes::new(bytes));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,24}") {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<Share>();
        }
    }
}
