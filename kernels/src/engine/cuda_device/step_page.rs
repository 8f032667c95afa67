//! Words of host memory that a step and its kernels share, and the launches before and behind a layer that moves.
//!
//! The kernels read the control page themselves: they wait for `ready` of a layer, compare it with what the step
//! expects after the last read, and leave times and findings in words of the engine, which its thread reads. Where they
//! stop the step they set a word of its inputs, so that no later kernel writes KV and no later layer passes.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_link::control::{ControlPage, kv_ready_offset, ready_offset};
use sluice_link::vocabulary::LayerId;
use sluice_memory::cuda::{Address, Context, Error, PinnedMemory};

use crate::cuda::LaunchPlan;
use crate::cuda::memory::{CheckReady, WaitReady};
use crate::engine::inputs::{ExpectedGenerations, LayerInput};

/// A step takes longer than this only if the GPU has stopped.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(60);

/// Words of the whole step: whether it is ended, and the times before the first and behind the last layer.
const ENDED: u64 = 0;
const BEGUN: u64 = 1;
const FINISHED: u64 = 2;
const HEADER_WORDS: u64 = 8;

/// Words of a layer. Where there are two, the first is of its weights and the second of its KV.
const AWAITED: u64 = 0;
const EXPECTED: u64 = 2;
const OVERTAKEN: u64 = 4;
/// Before the waits, after that for weights, after that for KV.
const TIMES: u64 = 6;
const PASSED: u64 = 9;
const LAYER_WORDS: u64 = 16;

/// The words, and the control page as the GPU sees it.
pub(super) struct StepPage {
    words: PinnedMemory,
    base: Address,
    control_base: Address,
    _control: PinnedMemory,
}

/// What a device measured of a layer, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerTimestamps {
    /// Before the waits.
    pub(super) begun: u64,
    /// After the wait for weights.
    pub(super) weights: u64,
    /// After the wait for KV.
    pub(super) kv: u64,
    /// After the last read.
    pub(super) passed: u64,
}

impl StepPage {
    /// Creates the words for `layers` layers, and shows the GPU the control page, of which `control` is the file.
    pub(super) fn new(context: &Context, layers: u16, control: OwnedFd) -> Result<StepPage, Error> {
        let control = PinnedMemory::from_file(context, control, ControlPage::bytes_of(layers))?;
        let bytes = (HEADER_WORDS + u64::from(layers) * LAYER_WORDS) * 8;
        let words = PinnedMemory::allocate(context, bytes)?;
        let (base, control_base) = (words.address()?, control.address()?);
        Ok(StepPage { words, base, control_base, _control: control })
    }

    /// Prepares the words for a step. No kernel may use them during the call.
    pub(super) fn arm(&self, expected: &[ExpectedGenerations]) {
        (ENDED..HEADER_WORDS).for_each(|word| self.store(word, 0));
        for (layer, expected) in expected.iter().enumerate() {
            for input in LayerInput::ALL {
                let generation = expected.of(input).map_or(0, |generation| generation.0);
                for (word, value) in [(AWAITED, generation), (EXPECTED, generation), (OVERTAKEN, 0)] {
                    self.store(of_layer(layer, word + input as u64), value);
                }
            }
            (TIMES..=PASSED).for_each(|word| self.store(of_layer(layer, word), 0));
        }
    }

    /// Lets the step not wait for an input of a layer (tests only).
    pub(super) fn drop_wait(&self, layer: usize, input: LayerInput) {
        self.store(of_layer(layer, AWAITED + input as u64), 0);
    }

    /// Ends the step that runs: the device computes no later layer that moves.
    pub(super) fn end_step(&self) {
        self.store(ENDED, 1);
    }

    /// Returns the launch that waits for a layer in a step whose word `stopped` is there.
    pub(super) fn wait(&self, layer: usize, stopped: Address) -> LaunchPlan {
        let (ready, stride) = self.ready(layer);
        let word = |word| self.address(of_layer(layer, word));
        let (expected, overtaken, times) = (word(AWAITED), word(OVERTAKEN), word(TIMES));
        let (ended, count) = (self.address(ENDED), LayerInput::ALL.len() as u32);
        WaitReady { ready, expected, ended, overtaken, times, stopped, count, stride }.plan()
    }

    /// Returns the launch that checks after the last read of a layer that it was not overtaken.
    pub(super) fn check(&self, layer: usize, stopped: Address) -> LaunchPlan {
        let (ready, stride) = self.ready(layer);
        let word = |word| self.address(of_layer(layer, word));
        let (expected, overtaken, passed) = (word(EXPECTED), word(OVERTAKEN), word(PASSED));
        let count = LayerInput::ALL.len() as u32;
        CheckReady { ready, expected, overtaken, passed, stopped, count, stride }.plan()
    }

    /// Returns the launches that note the times before the first and behind the last layer.
    pub(super) fn stamps(&self, stopped: Address) -> [LaunchPlan; 2] {
        let stamp = |word| {
            let [times, ended] = [word, ENDED].map(|word| self.address(word));
            let (ready, expected, overtaken, count, stride) = (0, 0, 0, 0, 0);
            WaitReady { ready, expected, ended, overtaken, times, stopped, count, stride }.plan()
        };
        [BEGUN, FINISHED].map(stamp)
    }

    /// Whether the device has read a layer for the last time, and what it read was what the step expects.
    pub(super) fn has_passed(&self, layer: usize) -> bool {
        self.load(of_layer(layer, PASSED)) != 0
    }

    /// Returns the times of a layer that has passed.
    pub(super) fn layer_times(&self, layer: usize) -> LayerTimestamps {
        let word = |word| self.load(of_layer(layer, word));
        let (begun, weights, kv, passed) = (word(TIMES), word(TIMES + 1), word(TIMES + 2), word(PASSED));
        LayerTimestamps { begun, weights, kv, passed }
    }

    /// Returns the times before the first and behind the last layer of a finished step.
    pub(super) fn step_times(&self) -> [u64; 2] {
        [BEGUN, FINISHED].map(|word| self.load(word))
    }

    /// Returns the input of a layer that was overwritten before it was read or while it was.
    pub(super) fn overtaken(&self, layer: usize) -> Option<LayerInput> {
        let is_overtaken = |input: &LayerInput| self.load(of_layer(layer, OVERTAKEN + *input as u64)) != 0;
        LayerInput::ALL.into_iter().find(is_overtaken)
    }

    /// Returns the address of `ready` of a layer's weights, and the words to that of its KV.
    fn ready(&self, layer: usize) -> (Address, u32) {
        let layer = LayerId(layer as u16);
        let offset = ready_offset(layer);
        (self.control_base + offset, ((kv_ready_offset(layer) - offset) / 8) as u32)
    }

    fn address(&self, word: u64) -> Address {
        self.base + word * 8
    }

    fn load(&self, word: u64) -> u64 {
        self.words.word(word).load(Ordering::Acquire)
    }

    fn store(&self, word: u64, value: u64) {
        self.words.word(word).store(value, Ordering::Release);
    }
}

fn of_layer(layer: usize, word: u64) -> u64 {
    HEADER_WORDS + layer as u64 * LAYER_WORDS + word
}
