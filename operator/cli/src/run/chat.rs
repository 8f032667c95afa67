//! `--chat`: a conversation in the terminal, over the API that all clients use.

mod client;
mod command;
mod input;
mod settings;
mod wrap;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::signal::unix::Signal;

pub use self::client::reachable;
use self::client::{ChatClient, FinishReason};
use self::command::{Assembled, ChatCommand, HELP_TEXT, LineAssembler};
use self::input::{LineReader, ReadResult};
pub use self::settings::Recommended;
use self::settings::Settings;
use self::wrap::Wrapper;
use crate::terminal;
use crate::up::output::eprint_hint;

/// A model to talk to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatModel {
    /// Served name.
    pub name: String,
    /// Whether it has a chat template. Without one, each prompt is completed on its own.
    pub has_template: bool,
    /// Context, tokens.
    pub context_tokens: u32,
    /// Sampling parameters that its author recommends.
    pub recommended: Recommended,
}

impl ChatModel {
    fn settings(&self) -> settings::ModelSettings<'_> {
        let ChatModel { has_template, context_tokens, recommended, .. } = self;
        settings::ModelSettings { has_template: *has_template, context_tokens: *context_tokens, recommended }
    }
}

/// Whether the model in `folder` has a chat template, by the rule of its sidecar.
pub fn has_template(folder: &Path) -> bool {
    let settings = std::fs::read(folder.join("tokenizer_config.json")).unwrap_or_default();
    let settings: Value = serde_json::from_slice(&settings).unwrap_or_default();
    folder.join("chat_template.jinja").is_file()
        || settings.get("chat_template").is_some_and(|one| !one.is_null())
}

/// A conversation.
#[derive(Debug)]
pub struct Chat {
    client: ChatClient,
    models: Vec<ChatModel>,
    current: usize,
    settings: Settings,
    messages: Vec<Value>,
    /// Standard output is a terminal.
    is_terminal: bool,
    /// Number of prompts without an answer.
    failed_prompts: usize,
}

/// What the loop does after a line.
enum LoopControl {
    Continue,
    Exit,
}

impl Chat {
    /// Creates a chat with `models`, at least one, behind the API at `address`.
    ///
    /// # Errors
    /// The HTTP client cannot be created.
    pub fn new(address: SocketAddr, models: Vec<ChatModel>) -> anyhow::Result<Chat> {
        let (client, shown) = (ChatClient::new(address)?, std::io::stdout().is_terminal());
        Ok(Chat {
            client,
            models,
            current: 0,
            settings: Settings::default(),
            messages: Vec::new(),
            is_terminal: shown,
            failed_prompts: 0,
        })
    }

    /// Runs until the input ends, `/bye`, or an `interrupt` while no answer is streamed.
    ///
    /// # Errors
    /// The terminal cannot be read, or, with input that is no terminal, a prompt had no answer.
    pub async fn run(mut self, mut interrupt: Signal) -> anyhow::Result<()> {
        let mut input = LineReader::open()?;
        if input.is_terminal() {
            print_wrapped("/help lists the commands, /bye or Ctrl-D ends.");
        }
        self.greet();
        let mut assembler = LineAssembler::default();
        loop {
            let prompt = if assembler.is_open() { "... " } else { ">>> " };
            let read = tokio::select! {
                read = input.read(prompt) => read?,
                _ = interrupt.recv() => return Ok(()),
            };
            let next = match read {
                ReadResult::Line(line) => match assembler.push(&line) {
                    Assembled::Open => LoopControl::Continue,
                    Assembled::Complete(text) => self.on_input(&text, &mut interrupt).await?,
                },
                ReadResult::Interrupted => {
                    assembler = LineAssembler::default();
                    print_wrapped("/bye or Ctrl-D ends.");
                    LoopControl::Continue
                }
                ReadResult::End => LoopControl::Exit,
            };
            if matches!(next, LoopControl::Exit) {
                break;
            }
        }
        match self.failed_prompts {
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
            print_wrapped(&format!(
                "sluice: {name} has no chat template: it completes each prompt alone, without a conversation"
            ));
        }
    }

    async fn on_input(&mut self, text: &str, interrupt: &mut Signal) -> anyhow::Result<LoopControl> {
        match ChatCommand::parse(text) {
            Ok(ChatCommand::Prompt(text)) if text.trim().is_empty() => {}
            Ok(ChatCommand::Prompt(text)) => {
                if let Err(error) = self.answer(text, interrupt).await? {
                    self.failed_prompts += 1;
                    print_wrapped(&format!("sluice: {error:#}"));
                    if !self.messages.is_empty() {
                        print_wrapped("If the conversation is too long, /clear deletes it.");
                    }
                }
            }
            Ok(ChatCommand::Help) => print_wrapped(HELP_TEXT),
            Ok(ChatCommand::Clear) => {
                self.messages.clear();
                print_wrapped("The conversation is deleted.");
            }
            Ok(ChatCommand::ShowSettings) => print_wrapped(&self.settings.list(self.model().settings())),
            Ok(ChatCommand::ShowSetting(name)) => {
                print_wrapped(&self.settings.setting_line(name, self.model().settings()))
            }
            Ok(ChatCommand::Set(setting)) => match setting.check(self.model().settings()) {
                Ok(()) => {
                    print_wrapped(&format!("{} is {} from now on.", setting.name, setting.value));
                    self.settings.set(setting);
                }
                Err(problem) => print_wrapped(&problem),
            },
            Ok(ChatCommand::Unset(name)) => {
                let model = self.models[self.current].settings();
                print_wrapped(&format!(
                    "{name} has its default again: {}.",
                    self.settings.unset(name, model)
                ));
            }
            Ok(ChatCommand::ShowModels) => print_wrapped(&self.model_list()),
            Ok(ChatCommand::Model(name)) => self.switch_model(name),
            Ok(ChatCommand::Bye) => return Ok(LoopControl::Exit),
            Err(problem) => print_wrapped(&problem),
        }
        Ok(LoopControl::Continue)
    }

    fn model_list(&self) -> String {
        let line = |(index, model): (usize, &ChatModel)| {
            format!("{} {}", if index == self.current { "*" } else { " " }, model.name)
        };
        self.models.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Continues the conversation with another model.
    fn switch_model(&mut self, name: &str) {
        match self.models.iter().position(|model| model.name == name) {
            Some(index) => {
                self.current = index;
                self.greet();
            }
            None => print_wrapped(&format!(
                "no model has the name `{name}`; the models are:\n{}",
                self.model_list()
            )),
        }
    }

    /// Writes the answer piece by piece. An answer that Ctrl-C stopped stays in the conversation as far as it was
    /// written; a prompt that failed does not.
    ///
    /// # Errors
    /// Standard output is broken. The inner error is why there is no answer.
    async fn answer(&mut self, text: &str, interrupt: &mut Signal) -> anyhow::Result<anyhow::Result<()>> {
        let model = self.model();
        let (has_template, user) = (model.has_template, json!({"role": "user", "content": text}));
        let (path, mut body) = if has_template {
            let messages: Vec<_> = self.messages.iter().chain([&user]).collect();
            ("/v1/chat/completions", json!({"messages": messages}))
        } else {
            ("/v1/completions", json!({"prompt": text}))
        };
        body["model"] = model.name.as_str().into();
        self.settings.apply(model.settings(), &mut body);
        let (mut answer, mut written) = (String::new(), Ok(()));
        let mut wrapper = self.is_terminal.then(Wrapper::default);
        let asked = self.client.complete(path, &body, |piece| {
            answer.push_str(piece);
            written = write(piece, wrapper.as_mut());
            written.is_ok()
        });
        let done = tokio::select! {
            done = asked => done,
            _ = interrupt.recv() => Ok(FinishReason::Stop),
        };
        written.context("standard output")?;
        if !answer.is_empty() || done.is_ok() {
            write("\n", None).context("standard output")?;
        }
        if matches!(done, Ok(FinishReason::Length)) {
            print_wrapped(&limit_hint(body["max_tokens"].as_u64(), model));
        }
        if done.is_ok() && has_template {
            self.messages.extend([user, json!({"role": "assistant", "content": answer})]);
        }
        Ok(done.map(|_| ()))
    }
}

/// Suggests what to do about an answer that stopped at its limit of `max_tokens`, or of the context if none was set.
/// The
/// proposed limit leaves a quarter of the context to the prompt: a request whose prompt and limit exceed the
/// context is refused.
fn limit_hint(max_tokens: Option<u64>, model: &ChatModel) -> String {
    let ChatModel { context_tokens, has_template, .. } = *model;
    let Some(tokens) = max_tokens else {
        return format!("(The context of {context_tokens} tokens is full; /clear deletes the conversation.)");
    };
    let most = u64::from(context_tokens) * 3 / 4;
    let helps = match tokens.saturating_mul(2).min(most) {
        more if more > tokens => format!("`/set max_tokens {more}` allows more."),
        _ => {
            let clear = if has_template { ", or a new conversation (`/clear`)" } else { "" };
            format!(
                "The context of {context_tokens} tokens has no room for a higher limit: a longer answer needs a larger \
                 `--context`{clear}."
            )
        }
    };
    format!("(The answer stopped at max_tokens, {tokens}. {helps})")
}

/// Prints `text` to the user; on a terminal its lines break between words.
fn print_wrapped(text: &str) {
    match terminal::columns_of(&std::io::stderr()) {
        Some(columns) => eprint_hint(terminal::wrap(text, columns)),
        None => eprint_hint(text),
    }
}

/// Writes a piece of an answer at once, on a terminal through `wrapper`.
fn write(piece: &str, wrapper: Option<&mut Wrapper>) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match wrapper {
        Some(wrapper) => stdout.write_all(wrapper.wrap(piece, terminal::columns()).as_bytes())?,
        None => stdout.write_all(piece.as_bytes())?,
    }
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_answer_suggests_command_to_raise_limit() {
        let model = |context_tokens, has_template| ChatModel {
            name: "tiny".into(),
            has_template,
            context_tokens,
            recommended: Recommended::default(),
        };
        let raised = limit_hint(Some(256), &model(8192, true));
        assert!(raised.contains("max_tokens, 256.") && raised.contains("`/set max_tokens 512`"), "{raised}");
        let limited_hint = limit_hint(Some(256), &model(400, true));
        assert!(limited_hint.contains("`/set max_tokens 300`"), "{limited_hint}");
        for context_tokens in [300, 341] {
            let full = limit_hint(Some(256), &model(context_tokens, true));
            assert!(full.contains("larger `--context`, or a new conversation (`/clear`)"), "{full}");
            assert!(!full.contains("/set"), "{full}");
        }
        let no_conversation = limit_hint(Some(256), &model(300, false));
        assert!(no_conversation.ends_with("larger `--context`.)"), "{no_conversation}");
        assert!(limit_hint(None, &model(300, true)).contains("The context of 300 tokens is full"));
    }

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
