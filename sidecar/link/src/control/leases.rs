//! What a pass of an engine that schedules by itself finds in its layers: the sidecar names the generation of each layer
//! that moves when the pass has begun, and the worker waits for that generation.
//!
//! A generation is a copy into a slot, and its number is used once. So a worker that waits for its lease never takes the
//! contents that a slot had for an earlier pass for its own.

use std::sync::atomic::Ordering;

use sluice_policy::ids::{Generation, LayerId};

use super::extended_page::leases_start;
use super::{
    ControlError, ControlPage, GenerationWord, LINE_BYTES, LINE_LONGS, LINE_WORDS, WaitLimit, WaitResult,
    wait,
};

/// Words of a layer's line: the pass, a publication counter with the number of waiters, and the generation.
const GENERATION: usize = 2;

/// The answer to a wait for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The layer is there once its `ready` is this generation.
    Moving(Generation),
    /// The layer is there.
    Resident,
    /// The wait has ended otherwise. [`WaitResult::Overtaken`]: a later pass has the lease.
    Ended(WaitResult),
}

impl ControlPage {
    /// Sidecar: names what pass `pass` finds in `layer`; `None` = the layer is there.
    ///
    /// # Panics
    /// The page was not opened with passes.
    pub fn publish_lease(
        &self,
        layer: LayerId,
        pass: u64,
        generation: Option<Generation>,
    ) -> Result<(), ControlError> {
        let word = self.lease_word(layer)?;
        let named = self.region.long(self.lease_line(layer) * LINE_LONGS + GENERATION);
        named
            .expect("the page was opened with passes")
            .store(generation.map_or(0, |one| one.0), Ordering::SeqCst);
        word.publish(pass);
        Ok(())
    }

    /// Worker: waits until the sidecar has named what pass `pass` finds in `layer`. It names every layer that was
    /// announced as moving. The next pass gets no lease before this one has ended.
    ///
    /// # Panics
    /// The page was not opened with passes.
    pub fn wait_lease(&self, layer: LayerId, pass: u64, limit: WaitLimit<'_>) -> Result<Lease, ControlError> {
        let word = self.lease_word(layer)?;
        let end = wait(&word, |leased| leased >= pass, limit);
        if end != WaitResult::Reached {
            return Ok(Lease::Ended(end));
        }
        let named = self.region.long(self.lease_line(layer) * LINE_LONGS + GENERATION);
        let generation = named.expect("the page was opened with passes").load(Ordering::SeqCst);
        if word.value.load(Ordering::SeqCst) != pass {
            return Ok(Lease::Ended(WaitResult::Overtaken));
        }
        Ok(if generation == 0 { Lease::Resident } else { Lease::Moving(Generation(generation)) })
    }

    fn lease_word(&self, layer: LayerId) -> Result<GenerationWord<'_>, ControlError> {
        if layer.0 >= self.layers {
            return Err(ControlError::OutOfRange { layer: layer.0, layers: self.layers });
        }
        let line = self.lease_line(layer);
        let value = self.region.long(line * LINE_LONGS).expect("the page was opened with passes");
        let words = self.region.words(line * LINE_WORDS + 2, 2).expect("the page was opened with passes");
        let [published, waiters] = words else { unreachable!("two words were asked for") };
        Ok(GenerationWord { value, published, waiters })
    }

    fn lease_line(&self, layer: LayerId) -> usize {
        leases_start(self.layers) / LINE_BYTES + layer.index()
    }
}
