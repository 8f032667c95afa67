//! The terminal of the live screen: draws the model, reads keys, and restores the terminal at the end.

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

use super::app::{ActiveView, AppState};
use super::model::TopModel;
use super::text_layout::{join_fitting, truncate_line};
use super::theme::Theme;
use super::{help, keys, list, tenant};
use crate::now_unix_ms;
use crate::top::poll::PollSource;

/// Shows the screen. Restores the terminal at the end, also on a panic and on SIGINT, SIGTERM and SIGHUP.
///
/// # Errors
/// The terminal cannot be used, or a reading fails.
pub async fn run(source: PollSource, colour: bool) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init().context("the terminal")?;
    let outcome = event_loop(&mut terminal, source, Theme { colour }).await;
    ratatui::restore();
    outcome
}

async fn event_loop(terminal: &mut DefaultTerminal, source: PollSource, theme: Theme) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut screen = TopScreen::new(&source, theme);
    let mut events = spawn_event_reader();
    let mut looks = spawn_poller(source);
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        tokio::select! {
            look = looks.recv() => screen.update(look.context("the thread that reads sidecars ended")??, now_unix_ms()),
            event = events.recv() => {
                let event = event.context("the thread that reads keys ended")??;
                if screen.on_event(&event, usize::from(terminal.size()?.height)) {
                    return Ok(());
                }
            }
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}

/// The content of the screen.
#[derive(Debug)]
pub struct TopScreen {
    pub(super) app: AppState,
    pub(super) board: TopModel,
    theme: Theme,
    empty_text: &'static str,
    has_polled: bool,
}

impl TopScreen {
    /// Creates a screen without data.
    pub fn new(source: &PollSource, theme: Theme) -> TopScreen {
        TopScreen::with_interval(source.refresh(), source.empty_text(), theme)
    }

    pub(super) fn with_interval(every: Duration, empty_text: &'static str, theme: Theme) -> TopScreen {
        TopScreen {
            app: AppState::default(),
            board: TopModel::new(every),
            theme,
            empty_text,
            has_polled: false,
        }
    }

    /// Adds a reading, unless the screen is paused.
    pub fn update(&mut self, overview: Overview, now_unix_ms: u64) {
        if !self.app.is_paused || !self.has_polled {
            self.board.update(overview, now_unix_ms);
            self.has_polled = true;
        }
    }

    /// Handles a key on a screen of `height` lines. Returns whether to quit.
    pub fn on_event(&mut self, event: &Event, height: usize) -> bool {
        let Event::Key(key) = event else { return false };
        let command = keys::command(key).filter(|_| key.kind == KeyEventKind::Press);
        command.is_some_and(|command| self.app.apply(command, &self.board, height))
    }

    /// Draws the screen.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let lines = self.lines(area.width.into(), area.height.into());
        frame.render_widget(Paragraph::new(lines), area);
        if self.app.is_help_open {
            self.draw_help(area, frame.buffer_mut());
        }
    }

    /// Returns the content without the help: at most `height` lines of at most `most` columns.
    pub(super) fn lines(&mut self, most: usize, height: usize) -> Vec<Line<'static>> {
        let body = height.saturating_sub(2);
        let mut lines = vec![self.header(most)];
        let page = (self.app.view == ActiveView::Tenant)
            .then(|| tenant::lines(&self.app, &self.board, self.theme, most))
            .flatten();
        match page {
            Some(page) => {
                self.clamp_scroll(page.len(), body);
                lines.extend(page.into_iter().skip(self.app.scroll).take(body));
            }
            None => lines.extend(list::lines(&self.app, &self.board, self.theme, (most, body))),
        }
        lines.resize(height.max(1) - 1, Line::default());
        lines.push(self.footer(most));
        lines.truncate(height);
        lines
    }

    fn clamp_scroll(&mut self, lines: usize, height: usize) {
        if !self.app.is_help_open {
            self.app.scroll = self.app.scroll.min(lines.saturating_sub(height));
        }
    }

    fn header(&self, most: usize) -> Line<'static> {
        let tenants = || self.board.gpus().flat_map(|gpu| &gpu.view.tenants);
        let (all, silent) = (tenants().count(), tenants().filter(|tenant| !tenant.answers).count());
        let plain = |text: String| vec![Span::raw(text)];
        let mut parts = vec![vec![Span::styled("sluice top", Theme::bold())]];
        parts.extend(self.app.is_paused.then(|| vec![Span::styled("PAUSED", self.theme.bad())]));
        if all == 0 {
            let text = if self.has_polled { self.empty_text } else { "looking for sidecars" };
            parts.push(plain(text.to_owned()));
            return join_fitting(parts, 3, most);
        }
        parts.push(plain(format!("{all} tenant{}", if all == 1 { "" } else { "s" })));
        if silent > 0 {
            parts.push(vec![Span::styled(format!("{silent} without an answer"), self.theme.bad())]);
        }
        if self.app.view == ActiveView::List {
            let order = if self.app.reverse { ", reversed" } else { "" };
            parts.push(plain(format!("by {}{order}", self.app.sort.name())));
        }
        let minutes = self.board.span_ms() / 60_000;
        parts.push(plain(format!("last {minutes} min")));
        join_fitting(parts, 3, most)
    }

    fn footer(&self, most: usize) -> Line<'static> {
        let keys: &[&str] = match self.app.view {
            ActiveView::List => &["? help", "q quit", "Enter page", "s SLO first", "r reverse", "p pause"],
            ActiveView::Tenant => &["? help", "q quit", "Esc back", "↑↓ scroll", "p pause"],
        };
        let keys = keys.iter().map(|key| vec![Span::styled(*key, self.theme.muted())]);
        join_fitting(keys, 3, most)
    }

    fn draw_help(&mut self, area: Rect, buffer: &mut Buffer) {
        let lines = help::lines(area.width.into());
        let height = usize::from(area.height.saturating_sub(1));
        self.app.scroll = self.app.scroll.min(lines.len().saturating_sub(height));
        let mut shown: Vec<_> = lines.into_iter().skip(self.app.scroll).take(height).collect();
        shown.resize(height, Line::default());
        let end = Line::styled("? or Esc hides the help, ↑↓ scroll", self.theme.muted());
        shown.push(truncate_line(end, area.width.into()));
        Clear.render(area, buffer);
        Paragraph::new(shown).render(area, buffer);
    }
}

fn spawn_poller(mut source: PollSource) -> mpsc::Receiver<anyhow::Result<Overview>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(source.refresh());
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if sender.send(source.poll().await).await.is_err() {
                return;
            }
        }
    });
    receiver
}

/// Reads terminal events in a thread, because reads block. The thread ends soon after the receiver is dropped.
fn spawn_event_reader() -> mpsc::Receiver<std::io::Result<Event>> {
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
