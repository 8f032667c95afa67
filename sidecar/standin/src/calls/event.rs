//! Events.

use std::sync::Arc;
use std::time::Instant;

use crate::abi::{OutPtr, code};
use crate::call_guard::calls;
use crate::objects::objects;
use crate::operation::Operation;

calls! {
    Context fn cuEventCreate(event: OutPtr<usize>, _flags: u32) {
        let mut objects = objects();
        let number = objects.next_handle();
        objects.events.insert(number, Arc::default());
        event.set(number)
    }

    Start fn cuEventDestroy_v2(event: usize) {
        objects().events.remove(&event).map(drop).ok_or(code::INVALID_HANDLE)
    }

    Context fn cuEventRecord(event: usize, stream: usize) {
        let (stream, event) = objects().both(stream, event)?;
        stream.push(Operation::Record(event.renew()));
        Ok(())
    }

    Context fn cuEventQuery(event: usize) {
        let mark = objects().event(event)?.mark();
        match mark {
            Some(mark) if mark.time().is_none() => Err(code::NOT_READY),
            _ => super::stream::check_health(),
        }
    }

    Context fn cuEventSynchronize(event: usize) {
        let mark = objects().event(event)?.mark();
        if let Some(mark) = mark {
            mark.wait(|| false);
        }
        super::stream::check_health()
    }

    Context fn cuEventElapsedTime(milliseconds: OutPtr<f32>, start: usize, end: usize) {
        milliseconds.set(elapsed_ms(reached(start)?, reached(end)?))
    }

    Context fn cuEventElapsedTime_v2(milliseconds: OutPtr<f32>, start: usize, end: usize) {
        milliseconds.set(elapsed_ms(reached(start)?, reached(end)?))
    }
}

fn reached(event: usize) -> Result<Instant, u32> {
    let event = objects().event(event)?;
    event.mark().ok_or(code::INVALID_HANDLE)?.time().ok_or(code::NOT_READY)
}

/// Returns the milliseconds from `start` to `end`, negative if `end` is earlier.
fn elapsed_ms(start: Instant, end: Instant) -> f32 {
    let forward = end.saturating_duration_since(start).as_secs_f64();
    let backward = start.saturating_duration_since(end).as_secs_f64();
    ((forward - backward) * 1e3) as f32
}
