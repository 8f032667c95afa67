//! Logs go to stderr, warnings and worse; `SLUICE_LOG` asks for more. A line begins with `SLUICE_LOG_NAME`, where that is set.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

/// Starts them.
pub(super) fn start() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SLUICE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let name = std::env::var("SLUICE_LOG_NAME").ok().filter(|name| !name.is_empty());
    let lines = Lines(name.map(Arc::from));
    let format = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    format.with_writer(move || lines.clone()).with_ansi(io::stderr().is_terminal()).init();
}

/// Standard error. Every write is a whole line, as the subscriber makes it; the name says whose.
#[derive(Clone, Debug)]
struct Lines(Option<Arc<str>>);

impl Lines {
    fn named<'l>(&self, line: &'l [u8]) -> Cow<'l, [u8]> {
        match &self.0 {
            Some(name) => [name.as_bytes(), b" ", line].concat().into(),
            None => line.into(),
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
    use super::*;

    #[test]
    fn a_line_says_whose_it_is_where_that_is_known() {
        let named = |name: Option<&str>| Lines(name.map(Arc::from)).named(b"WARN worker died\n").into_owned();
        assert_eq!(named(Some("team/chat")), b"team/chat WARN worker died\n");
        assert_eq!(named(None), b"WARN worker died\n");
    }
}
