//! Background work during a test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Work on its own thread, which ends when this value is ended or dropped.
pub struct BackgroundLoad<T> {
    ends: Arc<AtomicBool>,
    work: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> BackgroundLoad<T> {
    /// Starts `work`, which must end when its flag is set.
    pub fn start(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> BackgroundLoad<T> {
        let ends = Arc::new(AtomicBool::new(false));
        let flag = ends.clone();
        let work = Some(std::thread::spawn(move || work(&flag)));
        BackgroundLoad { ends, work }
    }

    /// Ends the work and returns its result.
    ///
    /// # Panics
    /// If the work panicked.
    pub fn end(mut self) -> T {
        self.ends.store(true, Ordering::Relaxed);
        let work = self.work.take().expect("it is ended once");
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl<T> Drop for BackgroundLoad<T> {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}
