//! The live screen: draws what the poller sees until `q`.

use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::Paragraph;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::view::{self, View};
use super::{Poller, Sighting};
use crate::now_unix_ms;

/// Shows the screen and gives the terminal back as it was.
pub async fn live(poller: Poller, colour: bool) -> anyhow::Result<()> {
    // Also gives it back on a panic.
    let mut terminal = ratatui::try_init()?;
    let outcome = watch(&mut terminal, poller, colour).await;
    ratatui::restore();
    outcome
}

async fn watch(terminal: &mut DefaultTerminal, poller: Poller, colour: bool) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut keys = keys();
    let nobody = poller.nobody();
    let mut looks = looks(poller);
    let mut screen = Screen::default();
    loop {
        terminal.draw(|frame| {
            let (sightings, selected) = (&screen.sightings, screen.index());
            let view = View { sightings, selected, colour, now_unix_ms: now_unix_ms(), nobody };
            let (width, height) = (frame.area().width.into(), frame.area().height.into());
            frame.render_widget(Paragraph::new(view::screen(&view, width, height)), frame.area());
        })?;
        tokio::select! {
            Some(look) = looks.recv() => screen.sightings = look?,
            Some(event) = keys.recv() => if screen.take(&event?) { return Ok(()) },
            _ = terminate.recv() => return Ok(()),
            else => return Ok(()),
        }
    }
}

/// What is shown. The selection follows a tenant, not a row: tenants come and go.
#[derive(Debug, Default)]
struct Screen {
    sightings: Vec<Sighting>,
    selected: Option<String>,
}

impl Screen {
    fn index(&self) -> usize {
        self.sightings.iter().position(|s| Some(&s.title) == self.selected.as_ref()).unwrap_or(0)
    }

    fn select(&mut self, index: usize) {
        let last = self.sightings.len().saturating_sub(1);
        self.selected = self.sightings.get(index.min(last)).map(|s| s.title.clone());
    }

    /// Whether to end.
    fn take(&mut self, event: &Event) -> bool {
        let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
            return false;
        };
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Up | KeyCode::Left => self.select(self.index().saturating_sub(1)),
            KeyCode::Down | KeyCode::Right => self.select(self.index() + 1),
            _ => {}
        }
        false
    }
}

fn looks(mut poller: Poller) -> mpsc::Receiver<anyhow::Result<Vec<Sighting>>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(poller.refresh());
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if sender.send(poller.poll().await).await.is_err() {
                return;
            }
        }
    });
    receiver
}

/// Terminal events, read by a thread because reading them blocks. The thread ends soon after the receiver has gone.
fn keys() -> mpsc::Receiver<std::io::Result<Event>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(titles: &[&str]) -> Screen {
        let sighting =
            |t: &&str| Sighting { title: (*t).into(), state: Err("gone".into()), tokens_per_s: None };
        Screen { sightings: titles.iter().map(sighting).collect(), selected: None }
    }

    fn press(screen: &mut Screen, code: KeyCode) -> bool {
        screen.take(&Event::Key(code.into()))
    }

    #[test]
    fn arrows_select_and_stop_at_both_ends() {
        let mut s = screen(&["a", "b"]);
        assert!(!press(&mut s, KeyCode::Up));
        assert_eq!(s.index(), 0);
        press(&mut s, KeyCode::Down);
        press(&mut s, KeyCode::Down);
        assert_eq!(s.index(), 1);
    }

    #[test]
    fn the_selection_follows_its_tenant_when_others_come_and_go() {
        let mut s = screen(&["b", "c"]);
        press(&mut s, KeyCode::Down);
        s.sightings = screen(&["a", "b", "c"]).sightings;
        assert_eq!(s.index(), 2);
        s.sightings = screen(&["a"]).sightings;
        assert_eq!(s.index(), 0);
        s.sightings.clear();
        press(&mut s, KeyCode::Down);
        assert_eq!(s.index(), 0);
    }

    #[test]
    fn q_and_ctrl_c_end() {
        let mut s = screen(&[]);
        assert!(press(&mut s, KeyCode::Char('q')));
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(s.take(&Event::Key(ctrl_c)));
        assert!(!press(&mut s, KeyCode::Char('c')));
    }
}
