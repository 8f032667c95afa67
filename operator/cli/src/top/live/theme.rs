//! Colours that are readable on both black and white.

use ratatui::style::{Color, Modifier, Style};
use sluice_page::palette::COLOURS;
use sluice_page::text::reason::Level;

/// Colours of tenants in the order of the page, as indices of xterm's 256 colours.
const TENANT_COLOURS: [u8; COLOURS] = [32, 166, 29, 168, 67, 100, 97, 95];
const GOOD_COLOUR: u8 = 28;
const WARN_COLOUR: u8 = 130;
const BAD_COLOUR: u8 = 160;
const MUTED_COLOUR: u8 = 244;

/// Styles. Without `colour` they are empty.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// Whether colours are used.
    pub colour: bool,
}

impl Theme {
    fn index(self, index: u8) -> Style {
        if self.colour { Style::new().fg(Color::Indexed(index)) } else { Style::new() }
    }

    /// Returns the style of a tenant, by the index of its colour.
    pub fn tenant(self, colour: usize) -> Style {
        self.index(TENANT_COLOURS[colour % COLOURS])
    }

    /// Returns the style of a met objective.
    pub fn good(self) -> Style {
        self.index(GOOD_COLOUR)
    }

    /// Returns the style of a problem.
    pub fn bad(self) -> Style {
        self.index(BAD_COLOUR)
    }

    /// Returns the style of less important text.
    pub fn muted(self) -> Style {
        self.index(MUTED_COLOUR)
    }

    /// Returns the style of a reason's level.
    pub fn level(self, level: Level) -> Style {
        match level {
            Level::Fine => Style::new(),
            Level::Watch => self.index(WARN_COLOUR),
            Level::Bad => self.bad(),
        }
    }

    /// Returns the style of a heading.
    pub const fn bold() -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the relative luminance of a colour of xterm's cube or grey ramp (WCAG 2).
    fn luminance(index: u8) -> f64 {
        let level = |step: u8| if step == 0 { 0.0 } else { f64::from(55 + 40 * u16::from(step)) };
        let rgb = match index {
            232.. => [f64::from(8 + 10 * u16::from(index - 232)); 3],
            _ => [(index - 16) / 36, (index - 16) / 6 % 6, (index - 16) % 6].map(level),
        };
        let linear = |value: f64| {
            let value = value / 255.0;
            if value <= 0.03928 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        rgb.map(linear).iter().zip([0.2126, 0.7152, 0.0722]).map(|(value, weight)| value * weight).sum()
    }

    #[test]
    fn every_colour_has_a_contrast_of_3_to_1_on_black_and_on_white() {
        for index in TENANT_COLOURS.into_iter().chain([GOOD_COLOUR, WARN_COLOUR, BAD_COLOUR, MUTED_COLOUR]) {
            let own = luminance(index);
            let contrasts = [(own + 0.05) / 0.05, 1.05 / (own + 0.05)];
            assert!(contrasts.iter().all(|contrast| *contrast >= 3.0), "{index}: {contrasts:?}");
        }
    }

    #[test]
    fn tenants_have_colours_of_their_own() {
        let mut colours = TENANT_COLOURS.to_vec();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), COLOURS);
    }
}
