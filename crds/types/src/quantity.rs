//! Kubernetes quantities, in the two forms that the kinds need: bytes and CPUs.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Longest text of a quantity; bounds what CEL looks at.
const MAX_LENGTH: usize = 32;

/// Why a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text has another shape.
    #[error("`{text}` is not a {what}; examples: {example}")]
    Syntax {
        /// What was read.
        text: String,
        /// What was wanted: "size" or "CPU quantity".
        what: &'static str,
        /// Valid examples.
        example: &'static str,
    },
    /// The value does not fit in 63 bits (the API server's integers are signed).
    #[error("`{text}` is larger than 2^63 - 1")]
    TooLarge {
        /// What was read.
        text: String,
    },
}

/// A size in bytes, written as a Kubernetes quantity: `400Gi`, `64Ki`, `1.5G`, `1048576`.
///
/// The text is kept as the user wrote it, so that serialising an object does not change it. A fraction of a byte is
/// rounded up, as Kubernetes does. No sign, no exponent, no unit below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    text: Cow<'static, str>,
    bytes: u64,
}

impl Quantity {
    /// Pattern of the text in the schema.
    pub const PATTERN: &'static str = r"^[0-9]{1,19}(\.[0-9]{1,9})?([KMGTPE]i|[kMGTPE])?$";

    /// Exactly `bytes` bytes, written with the largest binary unit that divides it.
    pub fn from_bytes(bytes: u64) -> Self {
        const UNITS: [(u32, &str); 6] =
            [(60, "Ei"), (50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
        let unit = UNITS.iter().find(|(shift, _)| bytes != 0 && bytes.is_multiple_of(1 << shift));
        let text = match unit {
            Some((shift, name)) => format!("{}{name}", bytes >> shift),
            None => bytes.to_string(),
        };
        Quantity { text: text.into(), bytes }
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let syntax = || QuantityError::Syntax {
            text: text.to_owned(),
            what: "size",
            example: "`400Gi`, `64Ki`, `1.5G` or `1048576`",
        };
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor = unit_factor(&text[digits.len()..]).ok_or_else(syntax)?;
        let bytes = scaled(digits, factor, 9).ok_or_else(syntax)?;
        let bytes = u64::try_from(bytes).ok().filter(|b| i64::try_from(*b).is_ok());
        let bytes = bytes.ok_or_else(|| QuantityError::TooLarge { text: text.to_owned() })?;
        Ok(Quantity { text: text.to_owned().into(), bytes })
    }
}

/// Bytes of one unit; `None` for a suffix that is no unit of size.
fn unit_factor(suffix: &str) -> Option<u128> {
    Some(match suffix {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        "Ei" => 1 << 60,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "E" => 1_000_000_000_000_000_000,
        _ => return None,
    })
}

/// `digits` (with at most `max_decimals` decimals) times `factor`, rounded up. `None` when it is no such number.
fn scaled(digits: &str, factor: u128, max_decimals: usize) -> Option<u128> {
    let (whole, decimals) = digits.split_once('.').map_or((digits, None), |(w, d)| (w, Some(d)));
    let number = |text: &str, max: usize| -> Option<u128> {
        let good = !text.is_empty() && text.len() <= max && text.bytes().all(|b| b.is_ascii_digit());
        good.then(|| text.parse().ok()).flatten()
    };
    let whole = number(whole, 19)?;
    let Some(decimals) = decimals else { return Some(whole * factor) };
    let scale = 10_u128.pow(u32::try_from(decimals.len()).ok()?.min(19));
    Some(whole * factor + (number(decimals, max_decimals)? * factor).div_ceil(scale))
}

/// A number of CPUs, written as a Kubernetes quantity: `2`, `0.5`, `1500m`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuQuantity {
    text: String,
    millis: u64,
}

impl CpuQuantity {
    /// Pattern of the text in the schema.
    pub const PATTERN: &'static str = r"^[0-9]{1,9}(m|\.[0-9]{1,3})?$";

    /// Whole CPUs.
    pub fn from_cores(cores: u32) -> CpuQuantity {
        CpuQuantity { text: cores.to_string(), millis: u64::from(cores) * 1000 }
    }

    /// Thousandths of a CPU.
    pub fn millis(&self) -> u64 {
        self.millis
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for CpuQuantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (digits, factor) = match text.strip_suffix('m') {
            Some(digits) if !digits.contains('.') => (digits, 1),
            _ => (text, 1000),
        };
        let whole_length = digits.split('.').next().map_or(0, str::len);
        let millis = scaled(digits, factor, 3).filter(|_| whole_length <= 9);
        let millis = millis.and_then(|m| u64::try_from(m).ok()).ok_or_else(|| QuantityError::Syntax {
            text: text.to_owned(),
            what: "CPU quantity",
            example: "`2`, `0.5` or `1500m`",
        })?;
        Ok(CpuQuantity { text: text.to_owned(), millis })
    }
}

macro_rules! quantity_impls {
    ($name:ident, $title:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = deserializer.deserialize_any(TextVisitor)?;
                text.parse().map_err(de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                $title.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "x-kubernetes-int-or-string": true,
                    "pattern": $name::PATTERN,
                    "maxLength": MAX_LENGTH,
                })
            }
        }
    };
}

quantity_impls!(Quantity, "Quantity");
quantity_impls!(CpuQuantity, "CpuQuantity");

/// Reads a quantity's text: a string, or a bare integer.
struct TextVisitor;

impl de::Visitor<'_> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity (a string, or an integer)")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> u64 {
        text.parse::<Quantity>().unwrap().bytes()
    }

    #[test]
    fn binary_and_decimal_units_are_exact() {
        assert_eq!(bytes("96Mi"), 96 << 20);
        assert_eq!(bytes("64Ki"), 65_536);
        assert_eq!(bytes("400Gi"), 400 << 30);
        assert_eq!(bytes("3k"), 3_000);
        assert_eq!(bytes("2E"), 2_000_000_000_000_000_000);
        assert_eq!(bytes("17"), 17);
        assert_eq!(bytes("0"), 0);
    }

    #[test]
    fn fractions_are_rounded_up_to_a_byte() {
        assert_eq!(bytes("1.5Gi"), 3 << 29);
        assert_eq!(bytes("0.1"), 1);
        assert_eq!(bytes("1.0000001Ki"), 1025);
    }

    #[test]
    fn invalid_size_is_refused() {
        let bad =
            ["", "Mi", "-1", "+1", "1e3", "5m", "1.", ".5", "1 Gi", "1gi", "1KiB", "0x10", "1.0.0", "١"];
        for text in bad {
            assert!(matches!(text.parse::<Quantity>(), Err(QuantityError::Syntax { .. })), "{text}");
        }
        for text in ["8Ei", "9223372036854775808", "9999999999999999999Ei"] {
            assert!(matches!(text.parse::<Quantity>(), Err(QuantityError::TooLarge { .. })), "{text}");
        }
        assert_eq!(bytes("9223372036854775807"), i64::MAX as u64);
    }

    #[test]
    fn a_byte_count_is_written_with_the_largest_exact_unit() {
        for (bytes, text) in [(0, "0"), (1, "1"), (1 << 20, "1Mi"), (96 << 20, "96Mi"), (1536, "1536")] {
            assert_eq!(Quantity::from_bytes(bytes).as_str(), text);
            assert_eq!(text.parse::<Quantity>().unwrap(), Quantity::from_bytes(bytes));
        }
    }

    #[test]
    fn cpus_are_read_in_thousandths() {
        let millis = |text: &str| text.parse::<CpuQuantity>().unwrap().millis();
        assert_eq!([millis("2"), millis("0.5"), millis("1500m"), millis("0.125")], [2000, 500, 1500, 125]);
        for text in ["", "m", "0.5m", "1.2345", "-1", "2Gi", "1234567890"] {
            assert!(text.parse::<CpuQuantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn json_takes_a_string_or_an_integer_and_writes_what_was_read() {
        let read: Quantity = serde_json::from_str("\"1.5Gi\"").unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), "\"1.5Gi\"");
        let read: Quantity = serde_json::from_str("1048576").unwrap();
        assert_eq!(read.bytes(), 1 << 20);
        assert!(serde_json::from_str::<Quantity>("1.5").is_err());
        assert!(serde_json::from_str::<Quantity>("-1").is_err());
    }
}
