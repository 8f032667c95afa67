//! A YAML stream as a tree in which every key and value knows its line.

use serde_yaml::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use super::{LoadError, Path, Problem, Segment};

/// Deepest nesting that is read; the kinds need 10.
const MAX_DEPTH: usize = 32;

/// A document that holds something.
#[derive(Clone, Debug)]
pub(super) struct Document {
    /// From 1; documents that hold nothing count.
    pub number: usize,
    /// Its value.
    pub root: Node,
}

/// A value and the line on which it starts.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub line: usize,
    pub value: Value,
}

/// A value, with YAML's types.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Seq(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key of a mapping and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub key: String,
    pub line: usize,
    pub node: Node,
}

impl Node {
    /// The value of `key`, if this is a mapping that has it.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// Line of the field at `path`; where it is not written, that of the nearest field around it that is.
    pub fn line_of(&self, path: &Path) -> usize {
        let (mut node, mut line) = (self, self.line);
        for segment in &path.0 {
            let next = match (segment, &node.value) {
                (Segment::Key(key), _) => node.entry(key).map(|entry| (&entry.node, entry.line)),
                (Segment::Index(index), Value::Seq(items)) => items.get(*index).map(|item| (item, item.line)),
                _ => None,
            };
            let Some(found) = next else { break };
            (node, line) = found;
        }
        line
    }
}

/// An error inside a stream; the file is the caller's to name.
pub(super) struct TreeError {
    document: usize,
    line: usize,
    path: Path,
    problem: Problem,
}

impl TreeError {
    pub fn in_file(self, file_name: &str) -> LoadError {
        let TreeError { document, line, path, problem } = self;
        LoadError { file: file_name.to_owned(), document, line, path, problem }
    }
}

/// Reads the documents of a stream, without those that hold nothing.
pub(super) fn parse(text: &str) -> Result<Vec<Document>, TreeError> {
    let mut builder = Builder { events: Parser::new_from_str(text), document: 0 };
    let mut documents = Vec::new();
    loop {
        match builder.next(&Path::default())? {
            (Event::DocumentStart(..), _) => {
                builder.document += 1;
                let (event, span) = builder.next(&Path::default())?;
                let root = builder.node(event, span, &Path::default())?;
                if !matches!(root.value, Value::Null) {
                    documents.push(Document { number: builder.document, root });
                }
            }
            (Event::StreamEnd, _) => return Ok(documents),
            _ => {}
        }
    }
}

struct Builder<'a> {
    events: Parser<'a, serde_yaml::granit_parser::StrInput<'a>>,
    document: usize,
}

impl<'a> Builder<'a> {
    fn error(&self, line: usize, path: &Path, problem: Problem) -> TreeError {
        TreeError { document: self.document.max(1), line, path: path.clone(), problem }
    }

    fn unsupported(&self, line: usize, path: &Path, what: &str) -> TreeError {
        self.error(line, path, Problem::Unsupported(what.to_owned()))
    }

    /// The next event that is no comment.
    fn next(&mut self, path: &Path) -> Result<(Event<'a>, Span), TreeError> {
        let next = self.events.by_ref().find(|event| !matches!(event, Ok((Event::Comment(..), _))));
        match next {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.syntax(&error, path)),
            None => panic!("the parser ends a stream with its end event"),
        }
    }

    fn syntax(&self, error: &ScanError, path: &Path) -> TreeError {
        self.error(error.marker().line(), path, Problem::Syntax(error.info().to_string()))
    }

    fn node(&mut self, event: Event<'a>, span: Span, path: &Path) -> Result<Node, TreeError> {
        let line = span.start.line();
        if path.0.len() > MAX_DEPTH {
            return Err(self.unsupported(line, path, "nested too deeply"));
        }
        let value = match event {
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, _, Some(_))
            | Event::MappingStart(_, _, Some(_)) => {
                return Err(self.unsupported(line, path, "tags are not supported"));
            }
            Event::Scalar(text, style, 0, None) => self.scalar(&text, style, line, path)?,
            Event::SequenceStart(_, 0, None) => Value::Seq(self.sequence(path)?),
            Event::MappingStart(_, 0, None) => Value::Map(self.mapping(path)?),
            _ => return Err(self.unsupported(line, path, "anchors and aliases are not supported")),
        };
        Ok(Node { line, value })
    }

    fn sequence(&mut self, path: &Path) -> Result<Vec<Node>, TreeError> {
        let mut items = Vec::new();
        loop {
            let path = path.index(items.len());
            let (event, span) = self.next(&path)?;
            if matches!(event, Event::SequenceEnd) {
                return Ok(items);
            }
            items.push(self.node(event, span, &path)?);
        }
    }

    fn mapping(&mut self, path: &Path) -> Result<Vec<Entry>, TreeError> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (event, span) = self.next(path)?;
            let line = span.start.line();
            let key = match event {
                Event::MappingEnd => return Ok(entries),
                Event::Scalar(text, _, 0, None) => text.into_owned(),
                _ => return Err(self.unsupported(line, path, "a key must be a plain or quoted word")),
            };
            let path = path.key(&key);
            if let Some(first) = entries.iter().find(|entry| entry.key == key) {
                return Err(self.error(line, &path, Problem::DuplicateKey { first_line: first.line }));
            }
            let (event, span) = self.next(&path)?;
            entries.push(Entry { key, line, node: self.node(event, span, &path)? });
        }
    }

    fn scalar(&self, text: &str, style: ScalarStyle, line: usize, path: &Path) -> Result<Value, TreeError> {
        if style != ScalarStyle::Plain {
            return Ok(Value::Str(text.to_owned()));
        }
        plain(text).ok_or_else(|| {
            let what = format!(
                "`{text}` means different things to different YAML readers: quote it or write it plainly"
            );
            self.error(line, path, Problem::Unsupported(what))
        })
    }
}

/// A plain scalar as both YAML 1.1 and 1.2 read it; `None` where they differ (`on`, `012`, `1_000`).
fn plain(text: &str) -> Option<Value> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Some(Value::Null),
        "true" | "True" | "TRUE" => return Some(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Some(Value::Bool(false)),
        _ => {}
    }
    if crate::rules::is_yaml11_boolean(text) {
        return None;
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !unsigned.starts_with(|c: char| c.is_ascii_digit()) {
        return Some(Value::Str(text.to_owned()));
    }
    let digits_only = unsigned.bytes().all(|b| b.is_ascii_digit());
    if digits_only && (unsigned == "0" || !unsigned.starts_with('0')) {
        // Beyond 64 bits an integer becomes a float, as in JSON.
        return Some(
            text.parse().map_or_else(|_| Value::Float(text.parse().unwrap_or(f64::MAX)), Value::Int),
        );
    }
    let radix = ["0x", "0X", "0o", "0O", "0b", "0B"].iter().any(|prefix| unsigned.starts_with(prefix));
    if digits_only || radix || unsigned.bytes().all(|b| b.is_ascii_digit() || b == b'_' || b == b':') {
        return None;
    }
    Some(text.parse().map_or_else(|_| Value::Str(text.to_owned()), Value::Float))
}
