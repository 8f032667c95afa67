//! Bytes for people.

use std::fmt;

/// Bytes, written with one digit behind the point and the largest binary unit that they reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let text = match UNITS.into_iter().find(|(shift, _)| self.0 >> shift > 0) {
            Some((shift, unit)) => format!("{:.1} {unit}", self.0 as f64 / (1_u64 << shift) as f64),
            None => format!("{} B", self.0),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn the_unit_is_the_largest_that_is_reached() {
        let sizes = [0, 1023, 1024, 3 << 29, 1 << 40].map(|bytes| Size(bytes).to_string());
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 GiB", "1.0 TiB"]);
    }
}
