//! The readings to render, and how.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;
use sluice_wire::State;

use crate::top::memory_map::CellOwner;
use crate::top::poll::SidecarPoll;

/// The data to render, and how.
#[derive(Clone, Copy, Debug)]
pub struct RenderContext<'a> {
    /// All sidecars.
    pub polls: &'a [SidecarPoll],
    /// Whether to use colours.
    pub colour: bool,
    /// The time, milliseconds since the Unix epoch.
    pub now_unix_ms: u64,
    /// The text for an empty result.
    pub empty_text: &'static str,
}

impl<'a> RenderContext<'a> {
    pub(super) fn answered(&self) -> impl Iterator<Item = (&'a str, &'a State)> {
        self.polls.iter().filter_map(|s| Some((s.title.as_str(), s.state.as_ref().ok()?)))
    }

    pub(super) fn style(&self, colour: Color) -> Style {
        if self.colour { Style::default().fg(colour) } else { Style::default() }
    }

    pub(super) fn owner(&self, owner: CellOwner, text: impl Into<String>) -> Span<'static> {
        Span::styled(text.into(), self.style(owner.colour()))
    }

    pub(super) fn bold(text: impl Into<String>) -> Span<'static> {
        Span::styled(text.into(), Style::default().add_modifier(Modifier::BOLD))
    }
}
