//! Lines of a chat: prompts of one line or several, and commands. Pure.

use super::settings::{self, Setting};

/// What `/help` prints.
pub const HELP_TEXT: &str = "\
/clear             forget the conversation
/set               show temperature, top_p, top_k, max_tokens and seed
/set NAME          show one of them
/set NAME VALUE    set it
/set NAME default  go back to its default
/model             list the models
/model NAME        go on with another model
/bye               end; so does Ctrl-D
\"\"\"                begins and ends a prompt of several lines
Ctrl-C             stops an answer";

/// In place of a value: no value of the user's.
const DEFAULT_VALUE: &str = "default";

/// What begins and ends a prompt of several lines.
const MULTILINE_FENCE: &str = "\"\"\"";

/// Puts lines together.
#[derive(Debug, Default)]
pub struct LineAssembler {
    open: Option<String>,
}

/// What a line did.
#[derive(Debug, PartialEq, Eq)]
pub enum Assembled {
    /// The prompt is not complete: more lines follow.
    Open,
    /// The text is whole.
    Complete(String),
}

impl LineAssembler {
    /// Whether a prompt is incomplete.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Takes a line.
    pub fn push(&mut self, line: &str) -> Assembled {
        let (begun, rest) = match (self.open.take(), line.trim_start().strip_prefix(MULTILINE_FENCE)) {
            (Some(begun), _) => (begun + "\n", line),
            (None, Some(rest)) => (String::new(), rest),
            (None, None) => return Assembled::Complete(line.to_owned()),
        };
        match rest.trim_end().strip_suffix(MULTILINE_FENCE) {
            Some(last) => {
                let text = begun + last;
                // A prompt, whatever it begins with; the lines of the fences themselves are no part of it.
                Assembled::Complete(format!("{MULTILINE_FENCE}{}", text.trim_matches('\n')))
            }
            None => {
                self.open = Some(begun + rest);
                Assembled::Open
            }
        }
    }
}

/// What the user wants.
#[derive(Debug, PartialEq)]
pub enum ChatCommand<'a> {
    /// An answer to this.
    Prompt(&'a str),
    /// The list of commands.
    Help,
    /// A new conversation.
    Clear,
    /// The settings.
    ShowSettings,
    /// The one of this name.
    ShowSetting(&'static str),
    /// Another value for one.
    Set(Setting),
    /// The default for the one of this name.
    Unset(&'static str),
    /// The names of the models.
    ShowModels,
    /// Another model.
    Model(&'a str),
    /// The end.
    Bye,
}

impl ChatCommand<'_> {
    /// Reads a line, or what [`LineAssembler`] made of several.
    ///
    /// # Errors
    /// A command that is none, for people.
    pub fn parse(text: &str) -> Result<ChatCommand<'_>, String> {
        if let Some(prompt) = text.strip_prefix(MULTILINE_FENCE) {
            return Ok(ChatCommand::Prompt(prompt));
        }
        if !text.starts_with('/') {
            return Ok(ChatCommand::Prompt(text));
        }
        let words: Vec<_> = text.split_whitespace().collect();
        match words[..] {
            ["/help" | "/?"] => Ok(ChatCommand::Help),
            ["/clear"] => Ok(ChatCommand::Clear),
            ["/bye" | "/exit" | "/quit"] => Ok(ChatCommand::Bye),
            ["/set"] => Ok(ChatCommand::ShowSettings),
            ["/set", name] => settings::name_of(name).map(ChatCommand::ShowSetting),
            ["/set", name, DEFAULT_VALUE] => settings::name_of(name).map(ChatCommand::Unset),
            ["/set", name, value] => Setting::parse(name, value).map(ChatCommand::Set),
            ["/set", ..] => {
                Err("/set takes a name and a value, such as /set temperature 0.7 or /set temperature default"
                    .into())
            }
            ["/model"] => Ok(ChatCommand::ShowModels),
            // Names of folders may have blanks.
            ["/model", ..] => Ok(ChatCommand::Model(text["/model".len()..].trim())),
            _ => Err(format!(
                "`{}` is no command; /help lists them, and a prompt that begins with / goes between {MULTILINE_FENCE}",
                words[0]
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Number;

    use super::*;

    fn typed(lines: &[&str]) -> Vec<Assembled> {
        let mut assembler = LineAssembler::default();
        lines.iter().map(|line| assembler.push(line)).collect()
    }

    fn whole(text: &str) -> Assembled {
        Assembled::Complete(text.to_owned())
    }

    #[test]
    fn fences_hold_several_lines_together() {
        assert_eq!(typed(&["one", "two"]), [whole("one"), whole("two")]);
        assert_eq!(
            typed(&["\"\"\"one", "", "  two\"\"\"", "/bye"])[2..],
            [whole("\"\"\"one\n\n  two"), whole("/bye")]
        );
        assert_eq!(typed(&["\"\"\"", "/set is a word", "\"\"\""])[2], whole("\"\"\"/set is a word"));
        assert_eq!(typed(&["\"\"\"one\"\"\""]), [whole("\"\"\"one")]);
        assert_eq!(typed(&["\"\"\"one"]), [Assembled::Open]);
        assert_eq!(ChatCommand::parse("\"\"\"/bye"), Ok(ChatCommand::Prompt("/bye")));
    }

    #[test]
    fn the_help_fits_a_terminal_of_80_columns() {
        HELP_TEXT.lines().for_each(|line| assert!(line.len() < 80, "{line}"));
    }

    #[test]
    fn commands_are_known_by_their_slash() {
        let temperature = Setting { name: "temperature", value: Number::from_f64(0.7).unwrap() };
        for (text, command) in [
            ("hello /bye", ChatCommand::Prompt("hello /bye")),
            ("/help", ChatCommand::Help),
            ("/? ", ChatCommand::Help),
            ("/clear", ChatCommand::Clear),
            ("/bye", ChatCommand::Bye),
            ("/set", ChatCommand::ShowSettings),
            ("/set temperature 0.7", ChatCommand::Set(temperature)),
            ("/set temperature", ChatCommand::ShowSetting("temperature")),
            ("/set top_p default", ChatCommand::Unset("top_p")),
            ("/model", ChatCommand::ShowModels),
            ("/model  my model ", ChatCommand::Model("my model")),
        ] {
            assert_eq!(ChatCommand::parse(text), Ok(command), "{text}");
        }
        for (text, words) in [
            ("/path/to", "`/path/to` is no command"),
            ("/set temperature 0.7 0.8", "/set takes a name and a value"),
            ("/set heat", "`heat` is no setting"),
            ("/set heat default", "`heat` is no setting"),
            ("/set heat 1", "`heat` is no setting; there are max_tokens, seed"),
            ("/set seed 0.5", "seed: `0.5` is not a whole number"),
            ("/set top_p much", "top_p: `much` is not a number"),
        ] {
            let refused = ChatCommand::parse(text).unwrap_err();
            assert!(refused.starts_with(words), "{refused}");
        }
    }
}
