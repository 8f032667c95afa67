//! Prefix that names the tenant in log lines: the sidecars of `sluice up` share one terminal.

use sluice_link::log_prefix::LogPrefix;

/// Returns the prefix that adds the tenant's name to each line: before the text, or in the JSON field `tenant`. `None`
/// adds nothing.
pub fn line_prefix(format: LogFormat, name: Option<&str>) -> LogPrefix {
    match (format, name) {
        (LogFormat::Json, Some(name)) => {
            let name = serde_json::Value::from(name);
            LogPrefix::with_prefix(&format!("{{\"tenant\":{name},"), "{")
        }
        (_, name) => LogPrefix::for_tenant(name),
    }
}

/// Form of the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For collectors.
    Json,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn prefixed(name: Option<&str>, format: LogFormat, line: &str) -> String {
        String::from_utf8(line_prefix(format, name).prefixed(line.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn text_and_json_lines_have_tenant_name() {
        let text = prefixed(Some("team/chat"), LogFormat::Text, "INFO draining\n");
        assert_eq!(text, "team/chat INFO draining\n");
        let line = json!({"level": "INFO", "fields": {"message": "draining"}}).to_string() + "\n";
        let read: Value = serde_json::from_str(&prefixed(Some("team/chat"), LogFormat::Json, &line)).unwrap();
        assert_eq!(read, json!({"tenant": "team/chat", "level": "INFO", "fields": {"message": "draining"}}));
    }

    #[test]
    fn unnamed_lines_are_unchanged() {
        for format in [LogFormat::Text, LogFormat::Json] {
            assert_eq!(prefixed(None, format, "{\"level\":\"INFO\"}\n"), "{\"level\":\"INFO\"}\n");
        }
    }
}
