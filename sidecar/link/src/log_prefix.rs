//! Log lines that begin with the tenant's name: sidecars and engines of several tenants share one terminal.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;

/// Writes to standard error. Each write is one whole line, as the log subscriber makes it, and gets the same prefix.
#[derive(Clone, Debug)]
pub struct LogPrefix {
    prefix: Arc<[u8]>,
    /// Start of a line that the prefix replaces. A line without it gets no prefix.
    replaced: &'static [u8],
}

impl LogPrefix {
    /// Prefixes lines of text with the tenant's name; `None` = no prefix.
    pub fn for_tenant(name: Option<&str>) -> LogPrefix {
        let head = name.map(|name| format!("{name} ")).unwrap_or_default();
        LogPrefix::with_prefix(&head, "")
    }

    /// Replaces the leading `instead` of a line with `head`. Other lines are unchanged.
    pub fn with_prefix(head: &str, instead: &'static str) -> LogPrefix {
        LogPrefix { prefix: head.as_bytes().into(), replaced: instead.as_bytes() }
    }

    /// Returns the line with its prefix.
    pub fn prefixed<'l>(&self, line: &'l [u8]) -> Cow<'l, [u8]> {
        match line.strip_prefix(self.replaced) {
            Some(rest) if !self.prefix.is_empty() => [&*self.prefix, rest].concat().into(),
            _ => line.into(),
        }
    }
}

impl Write for LogPrefix {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // One write, so that lines of other processes do not interleave.
        io::stderr().write_all(&self.prefixed(line)).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_starts_with_tenant_name() {
        let headed =
            |name: Option<&str>| LogPrefix::for_tenant(name).prefixed(b"WARN worker died\n").into_owned();
        assert_eq!(headed(Some("team/chat")), b"team/chat WARN worker died\n");
        assert_eq!(headed(None), b"WARN worker died\n");
    }

    #[test]
    fn line_without_replaced_start_is_unchanged() {
        let lines = LogPrefix::with_prefix("{\"tenant\":\"chat\",", "{");
        assert_eq!(&*lines.prefixed(b"{\"level\":1}\n"), b"{\"tenant\":\"chat\",\"level\":1}\n");
        assert_eq!(&*lines.prefixed(b"no JSON\n"), b"no JSON\n");
    }
}
