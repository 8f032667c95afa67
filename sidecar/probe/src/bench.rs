//! A device and a context on it, where every check starts.

use std::time::{Duration, Instant};

use sluice_memory::cuda::{Context, Device, Driver};

use crate::Error;

/// Options of the command line. Child processes of the probe get the same.
#[derive(Clone, Copy, Debug)]
pub struct ProbeOptions {
    /// Index of the device in the driver.
    pub ordinal: u32,
    /// Fewer samples and smaller sizes.
    pub quick: bool,
}

impl ProbeOptions {
    /// Returns `quick` with `--quick`, else `full`.
    pub fn pick<T>(self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// A context on the chosen device, current on this thread.
#[derive(Debug)]
pub struct Bench {
    /// Options of the command line.
    pub setup: ProbeOptions,
    /// The device.
    pub device: Device,
    /// The context.
    pub context: Context,
}

impl Bench {
    /// Opens the driver and creates a context.
    pub fn open(setup: ProbeOptions) -> Result<Bench, Error> {
        let device = Device::open(Driver::open()?, setup.ordinal)?;
        let context = Context::new(device)?;
        Ok(Bench { setup, device, context })
    }

    /// Fails if less than `mib` MiB of device memory are free.
    pub fn need(&self, mib: u64) -> Result<(), Error> {
        let free = self.context.memory()?.free >> 20;
        if free >= mib { Ok(()) } else { Err(Error::Memory { needed: mib, free }) }
    }

    /// Repeats this work on the device for 50 or 400 ms: clocks and the link are slow after idle time.
    pub fn warm_up<E>(&self, mut work: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        let (start, moment) = (Instant::now(), Duration::from_millis(self.setup.pick(50, 400)));
        while start.elapsed() < moment {
            work()?;
        }
        Ok(())
    }

    /// Prints a progress message to stderr.
    pub fn progress(&self, text: &str) {
        eprintln!("  {text}");
    }
}
