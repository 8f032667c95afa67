//! [`wrong_words`].

use std::sync::atomic::Ordering;

use sluice_memory::cuda::{Buffer, PinnedMemory, Range, Stream};

use crate::Error;
use crate::bench::Bench;
use crate::kernels::Kernels;

/// Returns the number of words in `range` that differ from the pattern of `value`.
pub(super) fn wrong_words(
    bench: &Bench,
    kernels: &Kernels,
    range: &Range,
    bytes: u64,
    value: u64,
) -> Result<u64, Error> {
    let (stream, count) = (Stream::new(&bench.context)?, Buffer::new(&bench.context, 8)?);
    let host = PinnedMemory::registered(&bench.context, 4096)?;
    stream.fill(count.at(0), 0, 8)?;
    kernels.compare(&stream, range.at(0), (bytes / 8, value), count.at(0))?;
    stream.download(&host, 0, count.at(0), 8)?;
    stream.finish()?;
    Ok(host.word(0).load(Ordering::Acquire))
}
