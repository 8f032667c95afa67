//! Assigns colours to tenants: the same in all views, until the tenant is removed.

use std::collections::BTreeMap;

/// Number of colours for tenants.
pub const COLOURS: usize = 8;

/// Colours of tenants by title, as indices below [`COLOURS`].
#[derive(Clone, Debug, Default)]
pub struct Palette(pub(crate) BTreeMap<String, usize>);

impl Palette {
    /// Returns the tenant's colour, or assigns the one that the fewest tenants of `on_gpu` use, then the fewest
    /// overall.
    pub fn colour(&mut self, title: &str, on_gpu: &[String]) -> usize {
        if let Some(own) = self.0.get(title) {
            return *own;
        }
        let mut taken = [(0, 0); COLOURS];
        for (other, colour) in &self.0 {
            taken[*colour].0 += usize::from(on_gpu.contains(other));
            taken[*colour].1 += 1;
        }
        let own = (0..COLOURS).min_by_key(|at| taken[*at]).unwrap_or(0);
        self.0.insert(title.to_owned(), own);
        own
    }

    /// Frees the colours of removed tenants.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|title, _| is_there(title));
    }
}
