//! What every row starts from: a device and a context on it.

use std::time::{Duration, Instant};

use crate::Error;
use crate::cuda::{Context, Device};
use crate::driver::Driver;

/// What the command line chose; processes that the probe starts get the same.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Which of the driver's devices.
    pub ordinal: u32,
    /// Fewer samples and smaller sizes.
    pub quick: bool,
}

impl Setup {
    /// `full`, or `quick` when the command line says so.
    pub fn pick<T>(self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// A context on the chosen device, current on this thread.
#[derive(Debug)]
pub struct Bench {
    /// What the command line chose.
    pub setup: Setup,
    /// The device.
    pub device: Device,
    /// The context.
    pub context: Context,
}

impl Bench {
    /// Opens the driver and makes a context.
    pub fn open(setup: Setup) -> Result<Bench, Error> {
        let device = Device::open(Driver::open()?, setup.ordinal)?;
        let context = Context::new(device)?;
        Ok(Bench { setup, device, context })
    }

    /// Refuses if less than `mib` MiB of device memory are free.
    pub fn need(&self, mib: u64) -> Result<(), Error> {
        let free = self.context.memory()?.free >> 20;
        if free >= mib { Ok(()) } else { Err(Error::Memory { needed: mib, free }) }
    }

    /// Has the device do this work over and over for a moment: clocks and the link are slow after a rest.
    pub fn warm_up(&self, mut work: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
        let (start, moment) = (Instant::now(), Duration::from_millis(self.setup.pick(50, 400)));
        while start.elapsed() < moment {
            work()?;
        }
        Ok(())
    }

    /// Tells whoever waits what is going on.
    pub fn progress(&self, text: &str) {
        eprintln!("  {text}");
    }
}
