//! Lines of logs that say whose they are: sidecars and engines of several tenants share one terminal.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;

/// Standard error. Every write is a whole line, as a subscriber makes it, and begins with the same head.
#[derive(Clone, Debug)]
pub struct Lines {
    head: Arc<[u8]>,
    /// What the head stands in place of: how lines begin that have it.
    instead: &'static [u8],
}

impl Lines {
    /// Lines of text, after a name; `None` = as they are.
    pub fn of(name: Option<&str>) -> Lines {
        let head = name.map(|name| format!("{name} ")).unwrap_or_default();
        Lines::with_head(&head, "")
    }

    /// Lines that begin with `instead`, with `head` in its place. Others stay as they are.
    pub fn with_head(head: &str, instead: &'static str) -> Lines {
        Lines { head: head.as_bytes().into(), instead: instead.as_bytes() }
    }

    /// The line as it is written.
    pub fn headed<'l>(&self, line: &'l [u8]) -> Cow<'l, [u8]> {
        match line.strip_prefix(self.instead) {
            Some(rest) if !self.head.is_empty() => [&*self.head, rest].concat().into(),
            _ => line.into(),
        }
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // In one piece, so that lines of others do not come between.
        io::stderr().write_all(&self.headed(line)).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whose_it_is_where_that_is_known() {
        let headed = |name: Option<&str>| Lines::of(name).headed(b"WARN worker died\n").into_owned();
        assert_eq!(headed(Some("team/chat")), b"team/chat WARN worker died\n");
        assert_eq!(headed(None), b"WARN worker died\n");
    }

    #[test]
    fn a_line_that_does_not_begin_so_stays_as_it_is() {
        let lines = Lines::with_head("{\"tenant\":\"chat\",", "{");
        assert_eq!(&*lines.headed(b"{\"level\":1}\n"), b"{\"tenant\":\"chat\",\"level\":1}\n");
        assert_eq!(&*lines.headed(b"no JSON\n"), b"no JSON\n");
    }
}
