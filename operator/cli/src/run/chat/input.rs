//! Lines from the terminal or a pipe. A separate thread reads them, because both block.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::mpsc;

use anyhow::Context;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// A line, without its end.
    Line(String),
    /// Ctrl-C in place of a line.
    Interrupted,
    /// The end of the input.
    End,
}

/// Standard input.
#[derive(Debug)]
pub struct LineReader {
    prompts: mpsc::Sender<String>,
    lines: UnboundedReceiver<anyhow::Result<ReadResult>>,
    /// A line was requested and not received yet.
    is_pending: bool,
    terminal: Option<Terminal>,
}

impl LineReader {
    /// Reads lines with editing and a history from a terminal, else plain ones.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn open() -> anyhow::Result<LineReader> {
        let is_terminal = std::io::stdin().is_terminal();
        let terminal = if is_terminal { Some(Terminal::of_stdin()?) } else { None };
        let (prompts, asked) = mpsc::channel();
        let (sender, lines) = unbounded_channel();
        let named = std::thread::Builder::new().name("chat-input".into());
        match is_terminal {
            true => {
                let editor = DefaultEditor::new().context("the terminal cannot be used")?;
                named.spawn(move || edit_lines(editor, &asked, &sender))?
            }
            false => named.spawn(move || read(&asked, &sender))?,
        };
        Ok(LineReader { prompts, lines, is_pending: false, terminal })
    }

    /// Whether the input is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Returns the next line. If a call is dropped, the next call continues it.
    ///
    /// # Errors
    /// The input cannot be read.
    pub async fn read(&mut self, prompt: &str) -> anyhow::Result<ReadResult> {
        if !self.is_pending {
            // If the thread has ended, its last message is in the channel.
            let _ = self.prompts.send(prompt.to_owned());
            self.is_pending = true;
        }
        let read = self.lines.recv().await.unwrap_or(Ok(ReadResult::End));
        self.is_pending = false;
        read
    }
}

impl Drop for LineReader {
    /// The thread may be reading a line, so this restores the terminal in its place.
    fn drop(&mut self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|_| self.is_pending) {
            terminal.restore();
        }
    }
}

/// Terminal settings from before the line editor started.
#[derive(Debug)]
struct Terminal(Termios);

impl Terminal {
    fn of_stdin() -> anyhow::Result<Terminal> {
        Ok(Terminal(tcgetattr(std::io::stdin()).context("the terminal cannot be used")?))
    }

    fn restore(&self) {
        // A closed terminal cannot be restored, and needs no restoring.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
        // Ends the editor's bracketed paste and its line.
        let _ = std::io::stdout().write_all(b"\x1b[?2004l\r\n").and_then(|()| std::io::stdout().flush());
    }
}

/// Reads a line with editing for each prompt; the arrow keys recall earlier lines.
fn edit_lines(
    mut editor: DefaultEditor,
    prompts: &mpsc::Receiver<String>,
    lines: &UnboundedSender<anyhow::Result<ReadResult>>,
) {
    for prompt in prompts {
        let read = match editor.readline(&prompt) {
            Ok(line) => {
                // A failure to store the history does not affect the line.
                let _ = editor.add_history_entry(&line);
                Ok(ReadResult::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(ReadResult::Interrupted),
            Err(ReadlineError::Eof) => Ok(ReadResult::End),
            Err(error) => Err(error).context("the terminal cannot be read"),
        };
        if lines.send(read).is_err() {
            return;
        }
    }
}

/// Reads a line for each prompt, which is not shown.
fn read(prompts: &mpsc::Receiver<String>, lines: &UnboundedSender<anyhow::Result<ReadResult>>) {
    let mut text = std::io::stdin().lock().lines();
    for _ in prompts {
        let read = match text.next() {
            Some(line) => line.map(ReadResult::Line).context("standard input"),
            None => Ok(ReadResult::End),
        };
        if lines.send(read).is_err() {
            return;
        }
    }
}
