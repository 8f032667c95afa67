//! Runs a step: checks it, then the embeddings, each layer chunk by chunk, and the head.

use std::ops::ControlFlow;
use std::time::Instant;

use half::{bf16, f16};
use sluice_link::activation::Layout;
use sluice_link::model::{Dtype, Family};

use super::chunk::Chunk;
use super::layer_pass::LayerPass;
use super::step::Step;
use super::{Batch, ForwardError, LayerHooks, LogitsView, Model, Ranges, check};
use crate::simd::Element;
use crate::{llama, opt};

impl Model {
    /// Runs one step. Rows of the returned logits are in batch order, with ascending positions within a sequence.
    ///
    /// Everything is checked before the first write: an error other than [`ForwardError::Aborted`] leaves KV and
    /// activations untouched. The step writes K and V only at positions `start..start + tokens.len()` of each sequence.
    pub fn run<'r, H: LayerHooks>(
        &self,
        ranges: &'r mut Ranges,
        batch: &Batch<'_>,
        hooks: &mut H,
    ) -> Result<LogitsView<'r>, ForwardError> {
        let parts = ranges.parts();
        check::addresses(parts);
        check::batch(&self.spec, parts.layers.len(), parts.layer_blocks, batch)?;
        let shape = batch.shape();
        let layout = Layout::new(&self.spec, self.threads.threads(), self.chunk_tokens, shape);
        debug_assert_eq!(layout.bytes(), self.activation_cost().bytes(shape), "cost and layout agree");
        check::activations(layout.bytes(), parts.activation_limit_bytes)?;
        match self.spec.dtype {
            Dtype::F32 => Step::<f32>::new(self, parts, batch, layout).run(hooks)?,
            Dtype::F16 => Step::<f16>::new(self, parts, batch, layout).run(hooks)?,
            Dtype::Bf16 => Step::<bf16>::new(self, parts, batch, layout).run(hooks)?,
        }
        let words = shape.logit_rows as usize * self.spec.vocab as usize;
        let base = parts.activations.cast::<f32>();
        // SAFETY: the layout places both slices within the limit and disjoint. The contract of `Ranges::new` covers the
        // arena, and the mutable borrow keeps other steps from using it.
        let (logits, scratch) = unsafe {
            let scratch = base.add(layout.sampling.0).cast::<u32>();
            (
                std::slice::from_raw_parts_mut(base.add(layout.logits.0), words),
                std::slice::from_raw_parts_mut(scratch, words),
            )
        };
        Ok(LogitsView::new(logits, scratch, self.spec.vocab as usize))
    }
}

impl<E: Element> Step<'_, E> {
    /// Runs all layers, then the head.
    pub fn run<H: LayerHooks>(&self, hooks: &mut H) -> Result<(), ForwardError> {
        self.model.threads.enter(|| {
            self.embed();
            for layer in 0..self.parts.layers.len() {
                if let ControlFlow::Break(()) = hooks.before_layer(layer) {
                    return Err(ForwardError::Aborted { layer });
                }
                let started = Instant::now();
                self.chunks.iter().for_each(|chunk| self.pass(chunk, layer));
                hooks.after_layer(layer, started.elapsed().as_nanos() as u64);
            }
            self.head();
            Ok(())
        })
    }

    /// Runs one chunk through one layer.
    fn pass(&self, chunk: &Chunk, layer: usize) {
        let mut pass = LayerPass::new(self, chunk, layer);
        match self.model.spec.family {
            Family::Llama => llama::layer(&mut pass),
            Family::Opt => opt::layer(&mut pass),
        }
    }
}
