//! Events.

use std::sync::Arc;
use std::time::Instant;

use crate::abi::{OutPtr, code};
use crate::call_guard::calls;
use crate::enqueue::{record, wait};
use crate::objects::objects;

/// `CU_EVENT_BLOCKING_SYNC`, `CU_EVENT_DISABLE_TIMING` and `CU_EVENT_INTERPROCESS`.
const ALL_FLAGS: u32 = 7;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

calls! {
    Context fn cuEventCreate(event: OutPtr<usize>, flags: u32) {
        if flags > ALL_FLAGS {
            return Err(code::INVALID_VALUE);
        }
        if flags & INTERPROCESS != 0 {
            return Err(code::NOT_SUPPORTED);
        }
        let mut objects = objects();
        let number = objects.next_handle();
        objects.events.insert(number, Arc::default());
        if flags & DISABLE_TIMING != 0 {
            objects.untimed_events.insert(number);
        }
        event.set(number)
    }

    Start fn cuEventDestroy_v2(event: usize) {
        let mut objects = objects();
        objects.untimed_events.remove(&event);
        objects.events.remove(&event).map(drop).ok_or(code::INVALID_HANDLE)
    }

    Context fn cuEventRecord(event: usize, stream: usize) {
        record(event, stream, 0)
    }

    Context fn cuEventRecordWithFlags(event: usize, stream: usize, flags: u32) {
        if flags > 1 { Err(code::INVALID_VALUE) } else { record(event, stream, flags) }
    }

    Context fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) {
        if flags > 1 { Err(code::INVALID_VALUE) } else { wait(stream, event, flags) }
    }

    Context fn cuEventQuery(event: usize) {
        let mark = objects().event(event)?.mark()?;
        match mark {
            Some(mark) if mark.time().is_none() => Err(code::NOT_READY),
            _ => super::stream::check_health(),
        }
    }

    Context fn cuEventSynchronize(event: usize) {
        let mark = objects().event(event)?.mark()?;
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
    let objects = objects();
    if objects.untimed_events.contains(&event) {
        return Err(code::INVALID_HANDLE);
    }
    objects.event(event)?.mark()?.ok_or(code::INVALID_HANDLE)?.time().ok_or(code::NOT_READY)
}

/// Returns the milliseconds from `start` to `end`, negative if `end` is earlier.
fn elapsed_ms(start: Instant, end: Instant) -> f32 {
    let forward = end.saturating_duration_since(start).as_secs_f64();
    let backward = start.saturating_duration_since(end).as_secs_f64();
    ((forward - backward) * 1e3) as f32
}
