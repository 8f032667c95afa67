//! Page-locked host memory from which the inputs of a step are copied while the thread goes on.

use sluice_memory::cuda::{Address, Context, Error, PinnedMemory, Stream};

/// Bytes of the smallest buffer.
const LEAST_BYTES: u64 = 64 << 10;

/// The buffer, which grows to the largest inputs so far.
pub(super) struct InputBuffer {
    memory: PinnedMemory,
    context: Context,
}

impl InputBuffer {
    /// Creates a small buffer.
    pub(super) fn new(context: &Context) -> Result<InputBuffer, Error> {
        Ok(InputBuffer { memory: PinnedMemory::allocate(context, LEAST_BYTES)?, context: context.clone() })
    }

    /// Queues the copy of `inputs` to the device. The copy before must have ended.
    pub(super) fn upload(&mut self, stream: &Stream, to: Address, inputs: &[u8]) -> Result<(), Error> {
        let bytes = inputs.len() as u64;
        if bytes > self.memory.bytes() {
            self.memory = PinnedMemory::allocate(&self.context, bytes.next_power_of_two())?;
        }
        self.memory.write(inputs);
        stream.upload(to, &self.memory, 0, bytes)
    }
}
