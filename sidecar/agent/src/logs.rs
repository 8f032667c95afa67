//! Whose a line of the logs is: the sidecars of `sluice up` share one terminal.

use sluice_link::lines::Lines;

use crate::args::LogFormat;

/// Lines with a name before text, in JSON in the field `tenant`; `None` = nobody needs to be told.
pub fn lines(format: LogFormat, name: Option<&str>) -> Lines {
    match (format, name) {
        (LogFormat::Json, Some(name)) => {
            let name = serde_json::Value::from(name);
            Lines::with_head(&format!("{{\"tenant\":{name},"), "{")
        }
        (_, name) => Lines::of(name),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn named(name: Option<&str>, format: LogFormat, line: &str) -> String {
        String::from_utf8(lines(format, name).headed(line.as_bytes()).into_owned()).unwrap()
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
