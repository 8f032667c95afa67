//! The signals that end `sluice up`, `sluice run` and `sluice demo`.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end this process.
pub struct Signals {
    /// `None` if Ctrl-C has another meaning.
    interrupt: Option<Signal>,
    terminate: Signal,
    /// The terminal was closed; `None` if the parent process ignores this signal (`nohup`).
    hangup: Option<Signal>,
}

impl Signals {
    /// Starts to listen for the signals.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn new() -> std::io::Result<Self> {
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        // Must be read before tokio takes the signal over.
        let hangup = if is_hangup_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Signals { interrupt: Some(signal(interrupt)?), terminate: signal(terminate)?, hangup })
    }

    /// Removes Ctrl-C from the signals.
    pub fn without_interrupt(self) -> Self {
        Signals { interrupt: None, ..self }
    }

    /// Adds Ctrl-C to the signals.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn restore_interrupt(&mut self) -> std::io::Result<()> {
        if self.interrupt.is_none() {
            self.interrupt = Some(signal(SignalKind::interrupt())?);
        }
        Ok(())
    }

    /// Waits for one of them and returns its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            () = Self::recv_or_pending(&mut self.interrupt) => "interrupted",
            _ = self.terminate.recv() => "terminated",
            () = Self::recv_or_pending(&mut self.hangup) => "hung up",
        }
    }

    async fn recv_or_pending(signal: &mut Option<Signal>) {
        match signal {
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        }
    }
}

/// Whether SIGHUP, signal 1, is in the mask of ignored signals.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
