//! Which colour a tenant has: the same in all views, for as long as it is there.

use std::collections::BTreeMap;

/// Colours that there are for tenants.
pub const COLOURS: usize = 8;

/// Colours of tenants by title, as indices below [`COLOURS`].
#[derive(Clone, Debug, Default)]
pub struct Palette(pub(crate) BTreeMap<String, usize>);

impl Palette {
    /// The colour that a tenant has already, else the one that fewest have, those of the tenants `on_gpu` first.
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

    /// Forgets the tenants that are gone: their colours are free.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|title, _| is_there(title));
    }
}
