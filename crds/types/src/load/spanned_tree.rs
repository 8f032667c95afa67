//! A YAML stream as trees in which every key and value knows its line and column.
//!
//! A mistake does not end the reading: a value that cannot be read is [`Value::Unknown`], and reading goes on with the
//! next document after a syntax error.

use serde_yaml::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::{Path, Problem, Segment};

/// Deepest nesting that is read; the kinds need 10.
const MAX_DEPTH: usize = 32;

/// A place in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
}

/// A mistake in a document, and where; the file is the caller's to name.
#[derive(Debug)]
pub(super) struct Fault {
    pub at: Position,
    pub path: Path,
    pub problem: Problem,
}

/// A document that holds something.
#[derive(Debug)]
pub(super) struct Document {
    /// Its value.
    pub root: Node,
    /// Syntax errors, and YAML that is not supported.
    pub faults: Vec<Fault>,
}

/// A value and where it starts.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub at: Position,
    pub value: Value,
    /// Some of its fields or items could not be read.
    pub open: bool,
}

/// A value, with YAML's types.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// It could not be read; there is a fault for it.
    Unknown,
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
    /// Of the key.
    pub at: Position,
    pub node: Node,
    /// The mapping has the key already; there is a fault for it.
    pub repeated: bool,
}

impl Node {
    pub fn new(at: Position, value: Value) -> Self {
        Node { at, value, open: false }
    }

    /// The value of `key`, if this is a mapping that has it.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// The node at the longest part of `path` that is written, where its key or item starts, and the length of that
    /// part.
    pub fn nearest(&self, path: &Path) -> (&Node, Position, usize) {
        let (mut node, mut at) = (self, self.at);
        for (length, segment) in path.0.iter().enumerate() {
            let next = match (segment, &node.value) {
                (Segment::Key(key), _) => node.entry(key).map(|entry| (&entry.node, entry.at)),
                (Segment::Index(index), Value::Seq(items)) => items.get(*index).map(|item| (item, item.at)),
                _ => None,
            };
            let Some(found) = next else { return (node, at, length) };
            (node, at) = found;
        }
        (node, at, path.0.len())
    }

    /// Where the field at `path` is; where it is not written, the nearest field around it that is.
    pub fn position_of(&self, path: &Path) -> Position {
        self.nearest(path).1
    }

    /// Marks this node and its last field or item, recursively: a syntax error may have cut them off.
    fn open_last(&mut self) {
        self.open = true;
        match &mut self.value {
            Value::Seq(items) => items.last_mut().into_iter().for_each(Node::open_last),
            Value::Map(entries) => entries.last_mut().into_iter().for_each(|entry| entry.node.open_last()),
            _ => {}
        }
    }
}

/// Reads the documents of a stream, without those that hold nothing.
pub(super) fn parse(text: &str) -> Vec<Document> {
    let mut documents = Vec::new();
    let mut rest = Some((text, 0));
    while let Some((text, skipped)) = rest {
        let mut builder = Builder::new(text, skipped);
        builder.read(&mut documents);
        rest = builder.cut.then(|| next_document(text, builder.document_line - skipped)).flatten();
        rest = rest.map(|(text, lines)| (text, skipped + lines));
    }
    documents
}

/// The rest of `text` from the first line `---` after `line` (from 1), and the number of lines before it. In YAML such
/// a line always starts a document.
fn next_document(text: &str, line: usize) -> Option<(&str, usize)> {
    let mut start = 0;
    for (number, content) in text.split_inclusive('\n').enumerate() {
        let marker = content.strip_prefix("---").is_some_and(|rest| rest.trim_start().len() < rest.len());
        if number >= line && (marker || content == "---") {
            return Some((&text[start..], number));
        }
        start += content.len();
    }
    None
}

struct Builder<'a> {
    events: Parser<'a, StrInput<'a>>,
    /// Lines of the file before what is parsed.
    skipped: usize,
    /// First line of the document, in the file.
    document_line: usize,
    faults: Vec<Fault>,
    /// A syntax error has ended the events.
    cut: bool,
}

impl<'a> Builder<'a> {
    fn new(text: &'a str, skipped: usize) -> Self {
        let events = Parser::new_from_str(text);
        Builder { events, skipped, document_line: skipped + 1, faults: Vec::new(), cut: false }
    }

    /// Adds documents up to the end or the first syntax error.
    fn read(&mut self, documents: &mut Vec<Document>) {
        loop {
            match self.next(&Path::default()) {
                Some((Event::DocumentStart(..), span)) => {
                    self.document_line = self.position(&span).line;
                    documents.extend(self.document());
                }
                Some((Event::StreamEnd, _)) => return,
                Some(_) => {}
                None => {
                    // A syntax error outside documents.
                    let faults = std::mem::take(&mut self.faults);
                    let at = faults.first().map(|fault| fault.at).unwrap_or_default();
                    if !faults.is_empty() {
                        documents.push(Document { root: Node::new(at, Value::Unknown), faults });
                    }
                    return;
                }
            }
        }
    }

    fn document(&mut self) -> Option<Document> {
        let here = Path::default();
        let line = Position { line: self.document_line, column: 1 };
        let mut root = match self.next(&here) {
            Some((event, span)) => self.node(event, &span, &here, None),
            None => Node::new(line, Value::Unknown),
        };
        // Read its end: a syntax error there belongs to this document.
        if !self.cut {
            self.next(&here);
        }
        if self.cut {
            root.open_last();
        }
        let faults = std::mem::take(&mut self.faults);
        (!matches!(root.value, Value::Null) || !faults.is_empty()).then_some(Document { root, faults })
    }

    fn position(&self, span: &Span) -> Position {
        Position { line: span.start.line() + self.skipped, column: span.start.col() + 1 }
    }

    fn fault(&mut self, at: Position, path: &Path, problem: Problem) {
        self.faults.push(Fault { at, path: path.clone(), problem });
    }

    fn unsupported(&mut self, at: Position, path: &Path, what: &str) {
        self.fault(at, path, Problem::Unsupported(what.to_owned()));
    }

    /// The next event that is no comment; `None` after a syntax error.
    fn next(&mut self, path: &Path) -> Option<(Event<'a>, Span)> {
        if self.cut {
            return None;
        }
        let next = self.events.by_ref().find(|event| !matches!(event, Ok((Event::Comment(..), _))));
        match next {
            Some(Ok(event)) => Some(event),
            Some(Err(error)) => {
                self.syntax(&error, path);
                None
            }
            None => panic!("the parser ends a stream with its end event"),
        }
    }

    fn syntax(&mut self, error: &ScanError, path: &Path) {
        self.cut = true;
        let marker = error.marker();
        let at = Position { line: marker.line() + self.skipped, column: marker.col() + 1 };
        self.fault(at, path, Problem::Syntax(error.info().to_string()));
    }

    /// The node that `event` starts. Its faults are at `key`, the position of its key, if it has one.
    fn node(&mut self, event: Event<'a>, span: &Span, path: &Path, key: Option<Position>) -> Node {
        let start = self.position(span);
        let at = key.unwrap_or(start);
        let (tag, anchor) = match &event {
            Event::Scalar(_, _, anchor, tag)
            | Event::SequenceStart(_, anchor, tag)
            | Event::MappingStart(_, anchor, tag) => (tag.is_some(), *anchor != 0),
            _ => (false, true),
        };
        if path.0.len() > MAX_DEPTH {
            self.unsupported(at, path, "nested too deeply");
            self.skip(&event);
            return Node::new(start, Value::Unknown);
        }
        if tag {
            self.unsupported(at, path, "tags are not supported");
        }
        if anchor {
            self.unsupported(at, path, "anchors and aliases are not supported");
        }
        match event {
            Event::Scalar(text, style, ..) if !tag => Node::new(start, self.scalar(&text, style, at, path)),
            Event::SequenceStart(..) => Node::new(start, Value::Seq(self.sequence(path))),
            Event::MappingStart(..) => self.mapping(start, path),
            _ => Node::new(start, Value::Unknown),
        }
    }

    /// Skips the rest of the node that `event` starts.
    fn skip(&mut self, event: &Event<'a>) {
        let depth = |event: &Event<'a>| match event {
            Event::SequenceStart(..) | Event::MappingStart(..) => 1,
            Event::SequenceEnd | Event::MappingEnd => -1,
            _ => 0,
        };
        let mut open = depth(event);
        while open > 0 {
            let Some((event, _)) = self.next(&Path::default()) else { return };
            open += depth(&event);
        }
    }

    fn sequence(&mut self, path: &Path) -> Vec<Node> {
        let mut items = Vec::new();
        loop {
            let path = path.index(items.len());
            match self.next(&path) {
                None | Some((Event::SequenceEnd, _)) => return items,
                Some((event, span)) => items.push(self.node(event, &span, &path, None)),
            }
        }
    }

    fn mapping(&mut self, at: Position, path: &Path) -> Node {
        let (mut entries, mut open): (Vec<Entry>, _) = (Vec::new(), false);
        while let Some((event, span)) = self.next(path) {
            let at = self.position(&span);
            let key = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, _, 0, None) => text.into_owned(),
                event => {
                    self.unsupported(at, path, "a key must be a plain or quoted word");
                    self.skip(&event);
                    if let Some((value, _)) = self.next(path) {
                        self.skip(&value);
                    }
                    open = true;
                    continue;
                }
            };
            let path = path.key(&key);
            let first = entries.iter().find(|entry| entry.key == key).map(|entry| entry.at.line);
            if let Some(first_line) = first {
                self.fault(at, &path, Problem::DuplicateKey { first_line });
            }
            let Some((event, span)) = self.next(&path) else { break };
            let node = self.node(event, &span, &path, Some(at));
            entries.push(Entry { key, at, node, repeated: first.is_some() });
        }
        Node { at, value: Value::Map(entries), open }
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, at: Position, path: &Path) -> Value {
        if style != ScalarStyle::Plain {
            return Value::Str(text.to_owned());
        }
        plain(text).unwrap_or_else(|| {
            let what = "is read differently by YAML 1.1 and YAML 1.2: put it in quotes, or write `true`, \
                        `false` or a decimal number";
            self.unsupported(at, path, &format!("`{text}` {what}"));
            Value::Unknown
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
