//! Data on the device, made there: arrays of the host, and random numbers without a copy of them on the host.

use std::time::Duration;

use bytemuck::Pod;
use sluice_memory::cuda::{Address, Buffer, Context, Error, Event, Stream};
use sluice_probe::bench::Bench;

/// Bytes of random numbers that the host makes. Everything larger is copies of them.
const PIECE: u64 = 4 << 20;
/// A measured piece of work takes longer than this only if the device has stopped.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A stream with random numbers, which fill memory by copies on the device.
#[derive(Debug)]
pub struct DeviceData {
    /// The stream on which everything of a measurement runs.
    pub stream: Stream,
    context: Context,
    piece: Buffer,
}

impl DeviceData {
    /// Makes the random numbers.
    pub fn new(context: &Context) -> Result<DeviceData, Error> {
        let (stream, piece) = (Stream::new(context)?, Buffer::new(context, PIECE)?);
        let data = DeviceData { stream, context: context.clone(), piece };
        data.upload_to(data.piece.at(0), &random_bf16((PIECE / 2) as usize))?;
        Ok(data)
    }

    /// Returns memory of at least `bytes` bytes of small random numbers, as bf16 and as f32.
    pub fn random(&self, bytes: u64) -> Result<Buffer, Error> {
        let memory = Buffer::new(&self.context, bytes)?;
        for at in (0..memory.bytes()).step_by(PIECE as usize) {
            let part = PIECE.min(memory.bytes() - at);
            self.stream.copy(memory.at(at), self.piece.at(0), part)?;
        }
        self.stream.finish_within(LIMIT)?;
        Ok(memory)
    }

    /// Returns memory without contents for at least `bytes` bytes.
    pub fn empty(&self, bytes: u64) -> Result<Buffer, Error> {
        Buffer::new(&self.context, bytes.max(1))
    }

    /// Returns memory with these numbers.
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<Buffer, Error> {
        let memory = self.empty(size_of_val(values) as u64)?;
        self.upload_to(memory.at(0), values)?;
        Ok(memory)
    }

    /// Copies numbers to memory that is there.
    pub fn upload_to<T: Pod>(&self, to: Address, values: &[T]) -> Result<(), Error> {
        // SAFETY: the copy has ended before this function returns, and nothing writes the borrowed numbers until then.
        unsafe { self.stream.upload_bytes(to, bytemuck::cast_slice(values)) }?;
        self.stream.finish_within(LIMIT)
    }

    /// Runs `work` `rounds` times after a warm-up. Returns the nanoseconds of each, by the device's clock.
    pub fn times_ns(
        &self,
        bench: &Bench,
        rounds: usize,
        work: impl Fn(&Stream) -> Result<(), Error>,
    ) -> Result<Vec<f64>, Error> {
        if bench.device.driver().is_stand_in() {
            work(&self.stream)?;
        } else {
            bench.warm_up(|| work(&self.stream).and_then(|()| self.stream.finish_within(LIMIT)))?;
        }
        let one = |_| {
            let start = Event::after(&self.stream)?;
            work(&self.stream)?;
            let end = Event::after(&self.stream)?;
            end.finish_within(LIMIT)?;
            // The clock's resolution is half a microsecond.
            Ok(end.since_ns(&start)?.max(500.0))
        };
        (0..rounds).map(one).collect()
    }
}

/// Returns random bf16 numbers with absolute values from 2^-7 to 2^-5. Two of them are an f32 of such a size.
fn random_bf16(count: usize) -> Vec<u16> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let next = |_| {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 32) as u16 & 0x80ff) | 0x3c00
    };
    (0..count).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_are_small_and_of_both_signs() {
        let numbers = random_bf16(1000).into_iter().map(|bits| f32::from_bits(u32::from(bits) << 16));
        let (low, high) = (2.0_f32.powi(-7), 2.0_f32.powi(-5));
        let numbers: Vec<f32> = numbers.collect();
        assert!(numbers.iter().all(|number| (low..high).contains(&number.abs())));
        let negative = numbers.iter().filter(|number| **number < 0.0).count();
        assert!((400..600).contains(&negative), "{negative}");
    }
}
