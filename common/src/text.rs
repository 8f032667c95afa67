//! Figures and their nouns, as messages and pages write them, and lists of numbers as Linux does.

use alloc::format;
use alloc::string::String;
use core::ops::RangeInclusive;

/// Bytes in the largest binary unit that they reach, `32 MiB`, `1.5 GiB`. Below 100 of a unit there is
/// one decimal, unless the number is whole.
pub fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let decimals = usize::from(unit != "B" && value < 100.0 && value % 1.0 != 0.0);
    format!("{value:.decimals$} {unit}")
}

/// A number of things with the noun in its number: `1 GPU`, `2 GPUs`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The ranges of a list as Linux writes it, `0-3,8`; `None` for a part of another form. An empty list has none.
pub fn ranges(list: &str) -> impl Iterator<Item = Option<RangeInclusive<u32>>> {
    list.split(',').filter(|part| !part.is_empty()).map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_use_largest_binary_unit_and_three_digits() {
        let shown = [0, 1023, 1024, 1536 << 10, 96 << 20, (400 << 20) + 1, 3 << 40].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "1.5 MiB", "96 MiB", "400 MiB", "3 TiB"]);
    }

    #[test]
    fn lists_of_linux_are_ranges() {
        assert!(ranges("0-3,8").eq([Some(0..=3), Some(8..=8)]));
        assert!(ranges("").eq([]));
        assert!(ranges("1,-,2-x").eq([Some(1..=1), None, None]));
    }

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "GPU")), ["0 GPUs", "1 GPU", "2 GPUs"]);
    }
}
