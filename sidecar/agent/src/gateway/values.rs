//! Deserializes the values of a request, with errors in terms of JSON: string, number, integer, array, object.
//!
//! Works for every serde type. A number without a fraction is an integer in any notation: 2.0 is 2.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Expected, IntoDeserializer, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Number, Value};

use super::error::ApiError;

/// Most characters of an invalid string that an error shows.
const SHOWN_CHARACTERS: usize = 40;
/// Above this, a float does not represent every integer exactly. No parameter needs a larger integer.
const EXACT_INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// Deserializes a value.
///
/// # Errors
/// 400 that names the parameter, the position of the fault in it, the expected type and the value found.
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, ApiError> {
    let mut track = serde_path_to_error::Track::new();
    T::deserialize(serde_path_to_error::Deserializer::new(ValueDeserializer(value), &mut track)).map_err(
        |wrong| {
            let path = track.path().to_string();
            match wrong {
                ValueError::Missing(param) => ApiError::invalid_param(param, format!("`{param}` is missing")),
                ValueError::Unknown { field, known } => {
                    let holder =
                        path.strip_suffix(&field).map_or(&*path, |holder| holder.trim_end_matches('.'));
                    let param = path.split(['.', '[']).next().unwrap_or_default();
                    ApiError::invalid_param(
                        param,
                        format!("`{holder}` has no field `{field}`; it may have {known}"),
                    )
                }
                ValueError::Value(problem) if path == "." => {
                    ApiError::bad_request(format!("the body {problem}"))
                }
                ValueError::Value(problem) => {
                    let param = path.split(['.', '[']).next().unwrap_or_default();
                    ApiError::invalid_param(param, format!("`{path}` {problem}"))
                }
            }
        },
    )
}

/// Deserializes one parameter; null means absent.
///
/// # Errors
/// As [`read`].
pub fn read_field<T: DeserializeOwned>(name: &str, value: Value) -> Result<Option<T>, ApiError> {
    let mut track = serde_path_to_error::Track::new();
    let read = Option::<T>::deserialize(serde_path_to_error::Deserializer::new(
        ValueDeserializer(value),
        &mut track,
    ));
    read.map_err(|wrong| {
        let path = track.path().to_string();
        let within = if path == "." { "" } else { &path };
        ApiError::invalid_param(name, format!("`{name}{within}` {wrong}"))
    })
}

/// Formats a value for an error.
pub fn display_value(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => display_text(text),
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
    }
}

fn display_text(text: &str) -> String {
    let short: String = text.chars().take(SHOWN_CHARACTERS).collect();
    let rest = if short.len() < text.len() { "..." } else { "" };
    format!("the string {short:?}{rest}")
}

/// Returns the integer that equals `number`.
pub fn as_integer(number: &Number) -> Option<i64> {
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= EXACT_INTEGER_MAX);
    number.as_i64().or_else(|| float.map(|float| float as i64))
}

/// Whether two values are equal; numbers compare by value, not by notation.
pub fn json_eq(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            a == b || (as_integer(a).is_some() && as_integer(a) == as_integer(b))
        }
        (a, b) => a == b,
    }
}

/// Why a value cannot be deserialized.
#[derive(Debug)]
enum ValueError {
    /// The fault, as text that follows the parameter's name.
    Value(String),
    /// A required field is missing.
    Missing(&'static str),
    /// A field is unknown.
    Unknown {
        /// Its name.
        field: String,
        /// The known fields.
        known: String,
    },
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueError::Value(problem) => f.write_str(problem),
            ValueError::Missing(field) => write!(f, "has no `{field}`"),
            ValueError::Unknown { field, known } => write!(f, "has no field `{field}`; it may have {known}"),
        }
    }
}

impl std::error::Error for ValueError {}

impl de::Error for ValueError {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        ValueError::Value(problem.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        ValueError::Value(format!(
            "must be {}, not {}",
            json_type_name(&wanted.to_string()),
            describe_unexpected(found)
        ))
    }

    fn invalid_value(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        de::Error::invalid_type(found, wanted)
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        let known: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
        ValueError::Unknown { field: field.to_owned(), known: known.join(", ") }
    }

    fn missing_field(field: &'static str) -> Self {
        ValueError::Missing(field)
    }
}

/// Returns an expected type in terms of JSON.
fn json_type_name(wanted: &str) -> String {
    let integer =
        |low: &dyn fmt::Display, high: &dyn fmt::Display| format!("an integer from {low} to {high}");
    match wanted {
        "u8" => integer(&u8::MIN, &u8::MAX),
        "u16" => integer(&u16::MIN, &u16::MAX),
        "u32" => integer(&u32::MIN, &u32::MAX),
        "i32" => integer(&i32::MIN, &i32::MAX),
        "u64" | "usize" | "i64" => "an integer".into(),
        "f32" | "f64" => "a number".into(),
        "a sequence" => "an array".into(),
        "a map" => "an object".into(),
        "unit" => "null".into(),
        wanted if wanted.starts_with("struct ") => "an object".into(),
        wanted => wanted.into(),
    }
}

fn describe_unexpected(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Float(number) => Value::from(number).to_string(),
        Unexpected::Char(one) => display_text(one.encode_utf8(&mut [0; 4])),
        Unexpected::Str(text) => display_text(text),
        Unexpected::Unit | Unexpected::Option => "null".into(),
        Unexpected::Seq => "an array".into(),
        Unexpected::Map => "an object".into(),
        other => other.to_string(),
    }
}

/// A value to deserialize.
struct ValueDeserializer(Value);

impl<'de> IntoDeserializer<'de, ValueError> for ValueDeserializer {
    type Deserializer = ValueDeserializer;

    fn into_deserializer(self) -> ValueDeserializer {
        self
    }
}

impl ValueDeserializer {
    /// Deserializes for a visitor that expects an integer.
    fn integer<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match &self.0 {
            Value::Number(number) if !number.is_u64() => match as_integer(number) {
                Some(integer) => ValueDeserializer(integer.into()).deserialize_any(visitor),
                None => self.deserialize_any(visitor),
            },
            _ => self.deserialize_any(visitor),
        }
    }
}

macro_rules! integers {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
            self.integer(visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for ValueDeserializer {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_string(text),
            Value::Array(items) => {
                visitor.visit_seq(SeqDeserializer::new(items.into_iter().map(ValueDeserializer)))
            }
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(name, value)| (name, ValueDeserializer(value)));
                visitor.visit_map(MapDeserializer::new(fields))
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        visitor.visit_newtype_struct(self)
    }

    integers! {
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_i8 deserialize_i16
        deserialize_i32 deserialize_i64
    }

    serde::forward_to_deserialize_any! {
        bool i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct enum
        identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default, deny_unknown_fields)]
    struct Every {
        flag: bool,
        small: u8,
        count: u32,
        signed: i32,
        large: u64,
        seed: i64,
        ratio: f32,
        text: String,
        maybe: Option<u32>,
        list: Vec<u32>,
        nested: Vec<Vec<u32>>,
        map: BTreeMap<String, f32>,
        inner: Option<Box<Every>>,
    }

    fn message(body: Value) -> String {
        let error = read::<Every>(body.clone()).expect_err(&body.to_string()).body();
        error["error"]["message"].as_str().expect("a message").to_owned()
    }

    #[test]
    fn integral_floats_deserialize_as_integers() {
        let whole = json!({"small": 2.0, "count": 4.0, "signed": -3.0, "large": 1e15, "seed": -7.0, "ratio": 2.0,
            "maybe": 5.0, "list": [1.0, 2], "nested": [[3.0]], "map": {"a": 1, "b": 1.5}, "inner": {"count": 0.0}});
        let read: Every = read(whole).unwrap();
        let map = BTreeMap::from([("a".to_owned(), 1.0), ("b".to_owned(), 1.5)]);
        let inner = Some(Box::default());
        let (list, nested, maybe) = (vec![1, 2], vec![vec![3]], Some(5));
        let text = String::new();
        let large = 1_000_000_000_000_000;
        assert_eq!(
            read,
            Every {
                flag: false,
                small: 2,
                count: 4,
                signed: -3,
                large,
                seed: -7,
                ratio: 2.0,
                text,
                maybe,
                list,
                nested,
                map,
                inner
            }
        );
        let largest: Every = super::read(json!({"large": u64::MAX, "seed": i64::MIN})).unwrap();
        assert_eq!(
            (largest.large, largest.seed),
            (u64::MAX, i64::MIN),
            "what is an integer already stays exact"
        );
    }

    #[test]
    fn errors_name_json_types_and_position() {
        let u32_words = "an integer from 0 to 4294967295";
        for (body, words) in [
            (json!({"flag": "yes"}), "`flag` must be a boolean, not the string \"yes\"".to_owned()),
            (json!({"flag": 1}), "`flag` must be a boolean, not 1".into()),
            (json!({"count": "5"}), format!("`count` must be {u32_words}, not the string \"5\"")),
            (json!({"count": -1}), format!("`count` must be {u32_words}, not -1")),
            (json!({"count": 1.5}), format!("`count` must be {u32_words}, not 1.5")),
            (json!({"count": 1e300}), format!("`count` must be {u32_words}, not 1e+300")),
            (json!({"maybe": 4_294_967_296_u64}), format!("`maybe` must be {u32_words}, not 4294967296")),
            (json!({"maybe": []}), format!("`maybe` must be {u32_words}, not an array")),
            (json!({"small": 256}), "`small` must be an integer from 0 to 255, not 256".into()),
            (json!({"ratio": "hot"}), "`ratio` must be a number, not the string \"hot\"".into()),
            (json!({"ratio": true}), "`ratio` must be a number, not true".into()),
            (json!({"text": 7}), "`text` must be a string, not 7".into()),
            (json!({"text": {}}), "`text` must be a string, not an object".into()),
            (json!({"list": 7}), "`list` must be an array, not 7".into()),
            (json!({"list": [1, null]}), format!("`list[1]` must be {u32_words}, not null")),
            (
                json!({"nested": [[1], [2, "x"]]}),
                format!("`nested[1][1]` must be {u32_words}, not the string \"x\""),
            ),
            (json!({"map": {"a": "b"}}), "`map.a` must be a number, not the string \"b\"".into()),
            (json!({"map": [1]}), "`map` must be an object, not an array".into()),
            (json!({"inner": {"count": false}}), format!("`inner.count` must be {u32_words}, not false")),
        ] {
            assert_eq!(message(body.clone()), words, "{body}");
        }
        let long = message(json!({"count": "é".repeat(1000)}));
        assert!(long.contains(&format!("\"{}\"...", "é".repeat(40))) && long.len() < 200, "{long}");
        let unknown = message(json!({"inner": {"x": 1}}));
        assert!(unknown.starts_with("`inner` has no field `x`; it may have `flag`, "), "{unknown}");
    }

    #[test]
    fn json_eq_ignores_number_notation() {
        assert!(
            json_eq(&json!(1), &json!(1.0))
                && json_eq(&json!(0.5), &json!(0.5))
                && json_eq(&json!("a"), &json!("a"))
        );
        assert!(
            !json_eq(&json!(1), &json!(1.5))
                && !json_eq(&json!(0.5), &json!(0.25))
                && !json_eq(&json!(1), &json!("1"))
        );
        assert!(!json_eq(&json!(1), &json!(true)) && !json_eq(&json!(9.1e15), &json!(9.2e15)));
    }
}
