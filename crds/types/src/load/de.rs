//! A serde deserializer over the tree, whose errors know the path.

use std::fmt;

use serde::de::{
    self, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
    value::StrDeserializer,
};
use serde::forward_to_deserialize_any;

use super::spanned_tree::{Entry, Node, Value};
use super::{Path, Problem, Segment};

/// What went wrong; the path is filled in on the way out.
#[derive(Debug)]
pub(super) struct DeError {
    pub problem: Problem,
    /// Innermost step first.
    reversed_path: Vec<Segment>,
}

impl DeError {
    pub fn new(problem: Problem) -> Self {
        DeError { problem, reversed_path: Vec::new() }
    }

    /// An error about the field `key` of what is being read.
    pub fn about(problem: Problem, key: &str) -> Self {
        DeError { problem, reversed_path: vec![Segment::Key(key.to_owned())] }
    }

    /// Steps out of `segment`.
    fn inside(mut self, segment: Segment) -> Self {
        self.reversed_path.push(segment);
        self
    }

    /// The field, from the root.
    pub fn path(&self) -> Path {
        Path(self.reversed_path.iter().rev().cloned().collect())
    }
}

impl fmt::Display for DeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path(), self.problem)
    }
}

impl std::error::Error for DeError {}

impl de::Error for DeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        DeError::new(Problem::Value(message.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let (found, expected) = (found_words(found), expected_words(expected));
        DeError::new(Problem::WrongType { found, expected, advice: None })
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let (found, expected) = (found_words(found), expected_words(expected));
        DeError::new(Problem::Value(format!("value out of range: found {found}, expected {expected}")))
    }

    fn unknown_variant(found: &str, expected: &'static [&'static str]) -> Self {
        let expected = expected.iter().map(ToString::to_string).collect();
        DeError::new(Problem::UnknownValue { found: found.to_owned(), expected, suggestion: None })
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let expected = expected.iter().map(ToString::to_string).collect();
        DeError::about(Problem::UnknownField { expected, suggestions: Vec::new(), other_kind: None }, field)
    }

    fn missing_field(field: &'static str) -> Self {
        DeError::about(Problem::MissingField, field)
    }
}

/// Serde's name of a value, in words of YAML.
pub(super) fn found_words(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Unit => "null".to_owned(),
        other => other.to_string(),
    }
}

/// Serde's name of a type, in words of YAML.
fn expected_words(expected: &dyn de::Expected) -> String {
    match expected.to_string().as_str() {
        "i32" => "an integer of 32 bits".to_owned(),
        other => other.to_owned(),
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = DeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        match &self.value {
            Value::Unknown => Err(de::Error::custom("the value could not be read")),
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Int(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Str(text) => visitor.visit_borrowed_str(text),
            Value::Seq(items) => visitor.visit_seq(Items { items: items.iter().enumerate() }),
            Value::Map(entries) => visitor.visit_map(Fields { rest: entries, value: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DeError> {
        visitor.visit_newtype_struct(self)
    }

    /// Derived structs would also take a sequence, field by field; a manifest never means that.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        match self.value {
            Value::Map(_) => self.deserialize_any(visitor),
            _ => Err(de::Error::invalid_type(self.unexpected(), &"a mapping")),
        }
    }

    /// Enumerations of the kinds have unit variants alone: a string.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        let Value::Str(text) = &self.value else {
            let one_of = format!("one of {}", super::list(variants));
            return Err(de::Error::invalid_type(self.unexpected(), &one_of.as_str()));
        };
        let inner: StrDeserializer<'_, DeError> = text.as_str().into_deserializer();
        inner.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

impl Node {
    /// The value, as an error names it.
    pub fn unexpected(&self) -> Unexpected<'_> {
        match &self.value {
            Value::Unknown => Unexpected::Other("an unreadable value"),
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Int(value) => Unexpected::Signed(*value),
            Value::Float(value) => Unexpected::Float(*value),
            Value::Str(text) => Unexpected::Str(text),
            Value::Seq(_) => Unexpected::Seq,
            Value::Map(_) => Unexpected::Map,
        }
    }
}

struct Items<'de> {
    items: std::iter::Enumerate<std::slice::Iter<'de, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = DeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DeError> {
        let Some((index, item)) = self.items.next() else { return Ok(None) };
        let value = seed.deserialize(item);
        value.map(Some).map_err(|error| error.inside(Segment::Index(index)))
    }
}

struct Fields<'de> {
    rest: &'de [Entry],
    value: Option<&'de Entry>,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = DeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DeError> {
        let Some((entry, rest)) = self.rest.split_first() else { return Ok(None) };
        (self.value, self.rest) = (Some(entry), rest);
        let key: StrDeserializer<'_, DeError> = entry.key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DeError> {
        let entry = self.value.take().expect("serde asks for a value after its key");
        let value = seed.deserialize(&entry.node);
        value.map_err(|error| error.inside(Segment::Key(entry.key.clone())))
    }
}
