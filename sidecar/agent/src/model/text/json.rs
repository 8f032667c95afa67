//! `tojson` of chat templates: Python's `json.dumps(ensure_ascii=False)`, as in transformers.

use std::io::{self, Write};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// The filter, with the arguments of transformers' version.
pub fn tojson(value: &Value, ensure_ascii: Option<bool>, args: Kwargs) -> Result<String, Error> {
    let ensure_ascii = ensure_ascii.or(args.get("ensure_ascii")?).unwrap_or(false);
    let indent: Option<usize> = args.get("indent")?;
    let separators: Option<(String, String)> = separators(args.get("separators")?)?;
    let sort_keys: Option<bool> = args.get("sort_keys")?;
    args.assert_all_used()?;
    if value.is_undefined() {
        return Err(tojson_error("an undefined value is not JSON"));
    }
    // Python omits the space at the end of a line.
    let item = if indent.is_some() { "," } else { ", " };
    let (item, key) = separators.unwrap_or_else(|| (item.into(), ": ".into()));
    let style = Style { ensure_ascii, indent, item, key, depth: 0, filled: false };
    match sort_keys {
        Some(true) => dumps(&sorted(value)?, style),
        _ => dumps(value, style),
    }
}

fn tojson_error(problem: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

fn separators(given: Option<Vec<String>>) -> Result<Option<(String, String)>, Error> {
    let pair = given.map(|given| <[String; 2]>::try_from(given).map(|[item, key]| (item, key)));
    pair.transpose().map_err(|_| tojson_error("`separators` must be two strings"))
}

fn dumps(value: &Value, style: Style) -> Result<String, Error> {
    let mut out = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut out, style));
    written.map_err(|error| tojson_error(format!("cannot be written as JSON: {error}")))?;
    String::from_utf8(out).map_err(|error| tojson_error(error.to_string()))
}

/// Returns the same value with sorted keys at every depth.
fn sorted(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            keys.sort();
            let pairs = keys.into_iter().map(|key| Ok((key.clone(), sorted(&value.get_item(&key)?)?)));
            pairs.collect::<Result<Vec<_>, Error>>().map(Value::from_pairs)
        }
        ValueKind::Seq => {
            value.try_iter()?.map(|item| sorted(&item)).collect::<Result<Vec<_>, _>>().map(Value::from)
        }
        _ => Ok(value.clone()),
    }
}

/// JSON layout of Python.
struct Style {
    ensure_ascii: bool,
    /// Spaces per depth. `None` writes everything in one line.
    indent: Option<usize>,
    item: String,
    key: String,
    depth: usize,
    /// Whether the innermost list or object has an entry.
    filled: bool,
}

impl Style {
    fn open<W: Write + ?Sized>(&mut self, out: &mut W, bracket: u8) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        out.write_all(&[bracket])
    }

    fn close<W: Write + ?Sized>(&mut self, out: &mut W, bracket: u8) -> io::Result<()> {
        self.depth -= 1;
        if std::mem::replace(&mut self.filled, true) {
            self.line(out)?;
        }
        out.write_all(&[bracket])
    }

    fn entry<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item.as_bytes())?;
        }
        self.line(out)
    }

    fn line<W: Write + ?Sized>(&self, out: &mut W) -> io::Result<()> {
        match self.indent {
            Some(spaces) => write!(out, "\n{:1$}", "", spaces * self.depth),
            None => Ok(()),
        }
    }
}

impl Formatter for Style {
    fn begin_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b'[')
    }

    fn end_array<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b']')
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.entry(out, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b'{')
    }

    fn end_object<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b'}')
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.entry(out, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn write_f64<W: Write + ?Sized>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: Write + ?Sized>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        if !self.ensure_ascii {
            return out.write_all(text.as_bytes());
        }
        for unit in text.encode_utf16() {
            match u8::try_from(unit).ok().filter(|byte| matches!(byte, b' '..=b'~')) {
                Some(ascii) => out.write_all(&[ascii])?,
                None => write!(out, "\\u{unit:04x}")?,
            }
        }
        Ok(())
    }
}

/// Formats like Python's `repr`: the shortest digits, with an exponent of two digits below 0.0001 and from 1e16 on.
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').expect("`{:e}` writes an exponent");
    let exponent: i32 = exponent.parse().expect("`{:e}` writes a whole exponent");
    match exponent {
        -4..16 => format!("{value:?}"),
        _ => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}
