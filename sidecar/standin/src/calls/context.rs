//! Contexts.

use crate::abi::{OutPtr, code};
use crate::call_guard::calls;
use crate::current_context::{current, pop_current, push_current, set_current};
use crate::objects::objects;

use super::stream::GREATEST_PRIORITY;

calls! {
    Start fn cuCtxCreate_v2(context: OutPtr<usize>, _flags: u32, device: i32) {
        if device != 0 {
            return Err(code::INVALID_DEVICE);
        }
        let number = objects().create_context()?;
        set_current(number);
        context.set(number)
    }

    Start fn cuCtxDestroy_v2(context: usize) {
        objects().destroy_context(context)?;
        if current() == context {
            set_current(0);
        }
        Ok(())
    }

    Start fn cuCtxSetCurrent(context: usize) {
        if context != 0 {
            objects().context(context)?;
        }
        set_current(context);
        Ok(())
    }

    Start fn cuCtxGetCurrent(context: OutPtr<usize>) {
        context.set(current())
    }

    Start fn cuCtxPushCurrent_v2(context: usize) {
        objects().context(context)?;
        push_current(context);
        Ok(())
    }

    Start fn cuCtxPopCurrent_v2(context: OutPtr<usize>) {
        let popped = pop_current().ok_or(code::INVALID_CONTEXT)?;
        // The caller may not want to know.
        let _ = context.set(popped);
        Ok(())
    }

    Context fn cuCtxGetStreamPriorityRange(least: OutPtr<i32>, greatest: OutPtr<i32>) {
        // Either may be null.
        let _ = least.set(0);
        let _ = greatest.set(GREATEST_PRIORITY);
        Ok(())
    }

    Start fn cuDevicePrimaryCtxGetState(device: i32, flags: OutPtr<u32>, active: OutPtr<i32>) {
        if device != 0 {
            return Err(code::INVALID_DEVICE);
        }
        flags.set(0)?;
        active.set(objects().primary.is_some().into())
    }

    Start fn cuCtxGetDevice(device: OutPtr<i32>) {
        if current() == 0 {
            return Err(code::INVALID_CONTEXT);
        }
        device.set(0)
    }

    Uncaptured fn cuCtxSynchronize() {
        let streams = objects().streams_of(current());
        streams.iter().for_each(|stream| stream.drain());
        crate::calls::stream::check_health()
    }

    Start fn cuDevicePrimaryCtxRetain(context: OutPtr<usize>, device: i32) {
        if device != 0 {
            return Err(code::INVALID_DEVICE);
        }
        let mut objects = objects();
        let (number, held) = match objects.primary {
            Some(primary) => primary,
            None => (objects.create_context()?, 0),
        };
        objects.primary = Some((number, held + 1));
        context.set(number)
    }

    Start fn cuDevicePrimaryCtxRelease_v2(_device: i32) {
        let mut objects = objects();
        let (number, held) = objects.primary.ok_or(code::INVALID_CONTEXT)?;
        if held > 1 {
            objects.primary = Some((number, held - 1));
            return Ok(());
        }
        objects.primary = None;
        objects.destroy_context(number)
    }
}
