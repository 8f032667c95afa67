//! Lines of a chat: prompts of one line or several, and commands. Pure.

use super::settings::{self, Setting};

/// What `/help` prints.
pub const HELP_TEXT: &str = "\
/clear             delete the conversation
/set               show temperature, top_p, top_k, max_tokens and seed
/set NAME          show one of them
/set NAME VALUE    set it
/set NAME default  go back to its default
/model             list the models
/model NAME        switch to another model
/bye               end; so does Ctrl-D
\"\"\"                begins and ends a prompt of several lines
Ctrl-C             stops an answer";

/// Value that removes the user's setting.
const DEFAULT_VALUE: &str = "default";

/// Starts and ends a prompt of several lines.
const MULTILINE_FENCE: &str = "\"\"\"";

/// Joins the lines of a prompt.
#[derive(Debug, Default)]
pub struct LineAssembler {
    open: Option<String>,
}

/// The result of a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Assembled {
    /// The prompt is incomplete: more lines follow.
    Open,
    /// The text is complete.
    Complete(String),
}

impl LineAssembler {
    /// Whether a prompt is incomplete.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Adds a line.
    pub fn push(&mut self, line: &str) -> Assembled {
        let (begun, rest) = match (self.open.take(), line.trim_start().strip_prefix(MULTILINE_FENCE)) {
            (Some(begun), _) => (begun + "\n", line),
            (None, Some(rest)) => (String::new(), rest),
            (None, None) => return Assembled::Complete(line.to_owned()),
        };
        match rest.trim_end().strip_suffix(MULTILINE_FENCE) {
            Some(last) => {
                let text = begun + last;
                // A prompt with any beginning; the lines of the fences themselves are no part of it.
                Assembled::Complete(format!("{MULTILINE_FENCE}{}", text.trim_matches('\n')))
            }
            None => {
                self.open = Some(begun + rest);
                Assembled::Open
            }
        }
    }
}

/// A command of the user.
#[derive(Debug, PartialEq)]
pub enum ChatCommand<'a> {
    /// Answer this prompt.
    Prompt(&'a str),
    /// List the commands.
    Help,
    /// Start a new conversation.
    Clear,
    /// Show the settings.
    ShowSettings,
    /// Show the setting of this name.
    ShowSetting(&'static str),
    /// Change a setting.
    Set(Setting),
    /// Reset the setting of this name to its default.
    Unset(&'static str),
    /// List the models.
    ShowModels,
    /// Switch the model.
    Model(&'a str),
    /// Quit.
    Bye,
}

impl ChatCommand<'_> {
    /// Parses a line, or the text that [`LineAssembler`] made of several lines.
    ///
    /// # Errors
    /// The command is unknown or invalid; the message is for users.
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
            // Names of folders may contain spaces.
            ["/model", ..] => Ok(ChatCommand::Model(text["/model".len()..].trim())),
            _ => Err(format!(
                "`{}` is not a command; /help lists the commands. A prompt that begins with / goes between \
                 {MULTILINE_FENCE}",
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
            ("/path/to", "`/path/to` is not a command"),
            ("/set temperature 0.7 0.8", "/set takes a name and a value"),
            ("/set heat", "`heat` is not a setting"),
            ("/set heat default", "`heat` is not a setting"),
            ("/set heat 1", "`heat` is not a setting; the settings are max_tokens, seed"),
            ("/set seed 0.5", "seed: `0.5` is not a whole number"),
            ("/set top_p much", "top_p: `much` is not a number"),
        ] {
            let refused = ChatCommand::parse(text).unwrap_err();
            assert!(refused.starts_with(words), "{refused}");
        }
    }
}
