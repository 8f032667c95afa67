//! The terminal: draws the board, reads keys and looks, and gives the terminal back as it was.

use std::time::Duration;

use anyhow::Context;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Widget};
use ratatui::{DefaultTerminal, Frame};
use sluice_wire::Overview;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::app::{App, Shown};
use super::board::Board;
use super::cells::{cut_line, phrases};
use super::theme::Theme;
use super::{help, keys, list, tenant};
use crate::now_unix_ms;
use crate::top::poll::Source;

/// Shows the screen and gives the terminal back as it was, also on a panic and on SIGINT, SIGTERM and SIGHUP.
///
/// # Errors
/// The terminal cannot be used, or a look fails.
pub async fn live(source: Source, colour: bool) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init().context("the terminal")?;
    let outcome = watch(&mut terminal, source, Theme { colour }).await;
    ratatui::restore();
    outcome
}

async fn watch(terminal: &mut DefaultTerminal, source: Source, theme: Theme) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut screen = Screen::new(&source, theme);
    let mut events = events();
    let mut looks = looks(source);
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        tokio::select! {
            look = looks.recv() => screen.take(look.context("the reader of sidecars ended")??, now_unix_ms()),
            event = events.recv() => {
                let event = event.context("the reader of keys ended")??;
                if screen.press(&event, usize::from(terminal.size()?.height)) {
                    return Ok(());
                }
            }
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}

/// What is on the terminal.
#[derive(Debug)]
pub struct Screen {
    pub(super) app: App,
    pub(super) board: Board,
    theme: Theme,
    empty_text: &'static str,
    looked: bool,
}

impl Screen {
    /// One that has seen nothing.
    pub fn new(source: &Source, theme: Theme) -> Screen {
        Screen::every(source.refresh(), source.empty_text(), theme)
    }

    pub(super) fn every(every: Duration, empty_text: &'static str, theme: Theme) -> Screen {
        Screen { app: App::default(), board: Board::new(every), theme, empty_text, looked: false }
    }

    /// Takes a look, unless it is paused.
    pub fn take(&mut self, overview: Overview, now_unix_ms: u64) {
        if !self.app.paused || !self.looked {
            self.board.take(overview, now_unix_ms);
            self.looked = true;
        }
    }

    /// Does what a key asks for on a screen of `height` lines. Whether to end.
    pub fn press(&mut self, event: &Event, height: usize) -> bool {
        let Event::Key(key) = event else { return false };
        let command = keys::command(key).filter(|_| key.kind == KeyEventKind::Press);
        command.is_some_and(|command| self.app.apply(command, &self.board, height))
    }

    /// Draws everything.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let lines = self.lines(area.width.into(), area.height.into());
        frame.render_widget(Paragraph::new(lines), area);
        if self.app.help {
            self.draw_help(area, frame.buffer_mut());
        }
    }

    /// All but the help: at most `height` lines of at most `most` columns.
    pub(super) fn lines(&mut self, most: usize, height: usize) -> Vec<Line<'static>> {
        let body = height.saturating_sub(2);
        let mut lines = vec![self.header(most)];
        let page = (self.app.shown == Shown::Tenant)
            .then(|| tenant::lines(&self.app, &self.board, self.theme, most))
            .flatten();
        match page {
            Some(page) => {
                self.bound_scroll(page.len(), body);
                lines.extend(page.into_iter().skip(self.app.scroll).take(body));
            }
            None => lines.extend(list::lines(&self.app, &self.board, self.theme, (most, body))),
        }
        lines.resize(height.max(1) - 1, Line::default());
        lines.push(self.footer(most));
        lines.truncate(height);
        lines
    }

    fn bound_scroll(&mut self, lines: usize, height: usize) {
        if !self.app.help {
            self.app.scroll = self.app.scroll.min(lines.saturating_sub(height));
        }
    }

    fn header(&self, most: usize) -> Line<'static> {
        let tenants = || self.board.gpus().flat_map(|gpu| &gpu.view.tenants);
        let (all, silent) = (tenants().count(), tenants().filter(|tenant| !tenant.answers).count());
        let plain = |text: String| vec![Span::raw(text)];
        let mut parts = vec![vec![Span::styled("sluice top", Theme::bold())]];
        parts.extend(self.app.paused.then(|| vec![Span::styled("PAUSED", self.theme.bad())]));
        if all == 0 {
            let text = if self.looked { self.empty_text } else { "looking for sidecars" };
            parts.push(plain(text.to_owned()));
            return phrases(parts, 3, most);
        }
        parts.push(plain(format!("{all} tenant{}", if all == 1 { "" } else { "s" })));
        if silent > 0 {
            parts.push(vec![Span::styled(format!("{silent} without an answer"), self.theme.bad())]);
        }
        if self.app.shown == Shown::List {
            let order = if self.app.reverse { ", reversed" } else { "" };
            parts.push(plain(format!("by {}{order}", self.app.sort.name())));
        }
        let minutes = self.board.span_ms() / 60_000;
        parts.push(plain(format!("last {minutes} min")));
        phrases(parts, 3, most)
    }

    fn footer(&self, most: usize) -> Line<'static> {
        let keys: &[&str] = match self.app.shown {
            Shown::List => &["? help", "q quit", "Enter page", "s SLO first", "r reverse", "p pause"],
            Shown::Tenant => &["? help", "q quit", "Esc back", "↑↓ scroll", "p pause"],
        };
        let keys = keys.iter().map(|key| vec![Span::styled(*key, self.theme.quiet())]);
        phrases(keys, 3, most)
    }

    fn draw_help(&mut self, area: Rect, buffer: &mut Buffer) {
        let lines = help::lines(area.width.into());
        let height = usize::from(area.height.saturating_sub(1));
        self.app.scroll = self.app.scroll.min(lines.len().saturating_sub(height));
        let mut shown: Vec<_> = lines.into_iter().skip(self.app.scroll).take(height).collect();
        shown.resize(height, Line::default());
        let end = Line::styled("? or Esc hides the help, ↑↓ scroll", self.theme.quiet());
        shown.push(cut_line(end, area.width.into()));
        Clear.render(area, buffer);
        Paragraph::new(shown).render(area, buffer);
    }
}

fn looks(mut source: Source) -> mpsc::Receiver<anyhow::Result<Overview>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(source.refresh());
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if sender.send(source.look().await).await.is_err() {
                return;
            }
        }
    });
    receiver
}

/// Terminal events, read by a thread because reading them blocks. The thread ends soon after the receiver has gone.
fn events() -> mpsc::Receiver<std::io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(Duration::from_millis(100)) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let failed = event.is_err();
            if sender.blocking_send(event).is_err() || failed {
                return;
            }
        }
    });
    receiver
}
