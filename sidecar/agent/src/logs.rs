//! Lines of logs that say whose they are: the sidecars of `sluice up` share one terminal.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;

use crate::args::LogFormat;

/// Standard error. Every write is a whole line, as the subscriber makes it.
#[derive(Clone, Debug)]
pub struct Lines {
    /// Form of the lines.
    pub format: LogFormat,
    /// Whose they are; `None` = nobody needs to be told.
    pub name: Option<Arc<str>>,
}

impl Lines {
    /// The name before a line of text; in JSON, the field `tenant`.
    fn named<'l>(&self, line: &'l [u8]) -> Cow<'l, [u8]> {
        match (&self.name, self.format, line.strip_prefix(b"{")) {
            (Some(name), LogFormat::Text, _) => [name.as_bytes(), b" ", line].concat().into(),
            (Some(name), LogFormat::Json, Some(fields)) => {
                let name = serde_json::Value::from(&**name);
                [format!("{{\"tenant\":{name},").as_bytes(), fields].concat().into()
            }
            _ => line.into(),
        }
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // In one piece, so that lines of others do not come between.
        io::stderr().write_all(&self.named(line)).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn named(name: Option<&str>, format: LogFormat, line: &str) -> String {
        let lines = Lines { format, name: name.map(Arc::from) };
        String::from_utf8(lines.named(line.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn a_line_says_whose_it_is_in_both_forms() {
        let text = named(Some("team/chat"), LogFormat::Text, "INFO draining\n");
        assert_eq!(text, "team/chat INFO draining\n");
        let line = json!({"level": "INFO", "fields": {"message": "draining"}}).to_string() + "\n";
        let read: Value = serde_json::from_str(&named(Some("team/chat"), LogFormat::Json, &line)).unwrap();
        assert_eq!(read, json!({"tenant": "team/chat", "level": "INFO", "fields": {"message": "draining"}}));
    }

    #[test]
    fn where_nobody_gave_a_name_lines_stay_as_they_are() {
        for format in [LogFormat::Text, LogFormat::Json] {
            assert_eq!(named(None, format, "{\"level\":\"INFO\"}\n"), "{\"level\":\"INFO\"}\n");
        }
    }
}
