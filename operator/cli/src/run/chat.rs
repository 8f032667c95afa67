//! `--chat`: a conversation in the terminal, over the API that all clients use.

mod client;
mod command;
mod input;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::signal::unix::Signal;

use self::client::Client;
pub use self::client::reachable;
use self::command::{Assembler, Command, Entry, HELP, Settings};
use self::input::{Input, Read};
use crate::up::speak::{hint, note};

/// Longest answer of a model without a chat template unless `/set max_tokens` names another: such a model seldom ends by itself.
const COMPLETION_TOKENS: u32 = 256;

/// A model to talk to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatModel {
    /// As served.
    pub name: String,
    /// It has a chat template: a conversation, else each prompt is completed on its own.
    pub has_template: bool,
    /// Its context, tokens.
    pub context_tokens: u32,
}

/// Whether the model in `folder` has a chat template, as its sidecar looks for it.
pub fn has_template(folder: &Path) -> bool {
    let settings = std::fs::read(folder.join("tokenizer_config.json")).unwrap_or_default();
    let settings: Value = serde_json::from_slice(&settings).unwrap_or_default();
    folder.join("chat_template.jinja").is_file()
        || settings.get("chat_template").is_some_and(|one| !one.is_null())
}

/// A conversation.
#[derive(Debug)]
pub struct Chat {
    client: Client,
    models: Vec<ChatModel>,
    current: usize,
    settings: Settings,
    messages: Vec<Value>,
    /// Standard output is a terminal.
    shown: bool,
    /// Prompts that had no answer.
    failures: usize,
}

/// What a line leads to.
enum Next {
    Goes,
    Ends,
}

impl Chat {
    /// With `models`, at least one, behind the API at `address`.
    ///
    /// # Errors
    /// No HTTP client can be made.
    pub fn new(address: SocketAddr, models: Vec<ChatModel>) -> anyhow::Result<Chat> {
        let (client, shown) = (Client::new(address)?, std::io::stdout().is_terminal());
        Ok(Chat {
            client,
            models,
            current: 0,
            settings: Settings::default(),
            messages: Vec::new(),
            shown,
            failures: 0,
        })
    }

    /// Talks until the input ends, `/bye`, or an `interrupt` while no answer is under way.
    ///
    /// # Errors
    /// The terminal cannot be read, or, where the input is none, a prompt had no answer.
    pub async fn run(mut self, mut interrupt: Signal) -> anyhow::Result<()> {
        let mut input = Input::open()?;
        if input.is_terminal() {
            hint("/help lists the commands, /bye or Ctrl-D ends.");
        }
        self.greet();
        let mut assembler = Assembler::default();
        loop {
            let prompt = if assembler.is_open() { "... " } else { ">>> " };
            let read = tokio::select! {
                read = input.read(prompt) => read?,
                _ = interrupt.recv() => return Ok(()),
            };
            let next = match read {
                Read::Line(line) => match assembler.push(&line) {
                    Entry::Open => Next::Goes,
                    Entry::Whole(text) => self.take(&text, &mut interrupt).await?,
                },
                Read::Interrupted => {
                    assembler = Assembler::default();
                    hint("/bye or Ctrl-D ends.");
                    Next::Goes
                }
                Read::End => Next::Ends,
            };
            if matches!(next, Next::Ends) {
                break;
            }
        }
        match self.failures {
            failures if failures > 0 && !input.is_terminal() => bail!("{failures} prompts had no answer"),
            _ => Ok(()),
        }
    }

    fn model(&self) -> &ChatModel {
        &self.models[self.current]
    }

    fn greet(&self) {
        let ChatModel { name, has_template, .. } = self.model();
        if !has_template {
            note(format_args!(
                "{name} has no chat template: it completes each prompt on its own, with no conversation"
            ));
        }
    }

    async fn take(&mut self, text: &str, interrupt: &mut Signal) -> anyhow::Result<Next> {
        match Command::parse(text) {
            Ok(Command::Prompt(text)) if text.trim().is_empty() => {}
            Ok(Command::Prompt(text)) => {
                if let Err(error) = self.answer(text, interrupt).await? {
                    self.failures += 1;
                    note(format_args!("{error:#}"));
                    if !self.messages.is_empty() {
                        hint("/clear forgets the conversation, if that is too long.");
                    }
                }
            }
            Ok(Command::Help) => hint(HELP),
            Ok(Command::Clear) => {
                self.messages.clear();
                hint("The conversation is forgotten.");
            }
            Ok(Command::ShowSettings) => hint(&self.settings),
            Ok(Command::Set(setting)) => {
                hint(format_args!("{} is {} from now on.", setting.name, setting.value));
                self.settings.set(setting);
            }
            Ok(Command::ShowModels) => hint(self.list()),
            Ok(Command::Model(name)) => self.switch(name),
            Ok(Command::Bye) => return Ok(Next::Ends),
            Err(problem) => hint(problem),
        }
        Ok(Next::Goes)
    }

    fn list(&self) -> String {
        let line = |(index, model): (usize, &ChatModel)| {
            format!("{} {}", if index == self.current { "*" } else { " " }, model.name)
        };
        self.models.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
    }

    /// The conversation goes on with another model.
    fn switch(&mut self, name: &str) {
        match self.models.iter().position(|model| model.name == name) {
            Some(index) => {
                self.current = index;
                self.greet();
            }
            None => hint(format_args!("no model is called `{name}`:\n{}", self.list())),
        }
    }

    /// Writes the answer piece by piece. An answer that Ctrl-C stopped stays in the conversation as far as it was written; a prompt
    /// that failed does not.
    ///
    /// # Errors
    /// Standard output is broken; inside, why there is no answer.
    async fn answer(&mut self, text: &str, interrupt: &mut Signal) -> anyhow::Result<anyhow::Result<()>> {
        let model = self.model();
        let (has_template, user) = (model.has_template, json!({"role": "user", "content": text}));
        let (path, mut body) = if has_template {
            let messages: Vec<_> = self.messages.iter().chain([&user]).collect();
            ("/v1/chat/completions", json!({"messages": messages}))
        } else {
            let tokens = COMPLETION_TOKENS.min(model.context_tokens / 2).max(1);
            ("/v1/completions", json!({"prompt": text, "max_tokens": tokens}))
        };
        body["model"] = model.name.as_str().into();
        self.settings.apply(&mut body);
        let (mut answer, mut written, shown) = (String::new(), Ok(()), self.shown);
        let asked = self.client.ask(path, &body, |piece| {
            answer.push_str(piece);
            written = write(piece, shown);
            written.is_ok()
        });
        let done = tokio::select! {
            done = asked => done,
            _ = interrupt.recv() => Ok(()),
        };
        written.context("standard output")?;
        if !answer.is_empty() || done.is_ok() {
            write("\n", shown).context("standard output")?;
        }
        if done.is_ok() && has_template {
            self.messages.extend([user, json!({"role": "assistant", "content": answer})]);
        }
        Ok(done)
    }
}

/// Writes a piece of an answer at once. A terminal gets no control characters of a model.
fn write(piece: &str, shown: bool) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    if shown {
        let harmless = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
        write!(stdout, "{}", piece.chars().filter(harmless).collect::<String>())?;
    } else {
        stdout.write_all(piece.as_bytes())?;
    }
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_template_is_a_file_or_a_field() {
        let dir = tempfile::tempdir().unwrap();
        let settings = dir.path().join("tokenizer_config.json");
        assert!(!has_template(dir.path()));
        std::fs::write(&settings, r#"{"chat_template": null}"#).unwrap();
        assert!(!has_template(dir.path()));
        std::fs::write(&settings, r#"{"chat_template": "{{ messages }}"}"#).unwrap();
        assert!(has_template(dir.path()));
        std::fs::remove_file(&settings).unwrap();
        std::fs::write(dir.path().join("chat_template.jinja"), "x").unwrap();
        assert!(has_template(dir.path()));
    }
}
