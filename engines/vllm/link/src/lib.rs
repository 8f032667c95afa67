//! The link of a vLLM process to its sidecar, as C functions for Python's ctypes: `libsluice_vllm_link.so`.
//!
//! A vLLM engine schedules by itself. Its *worker* runs the model over chunks of the sidecar, its *scheduler* is held
//! while memory changes and is given KV blocks by extents. Each opens one link; both may be one process. Messages are
//! those of [`sluice_link::message`]: here they are JSON, and descriptors stay inside the library.
//!
//! # Conventions
//!
//! - Functions return a code of the table below, except `sluice_abi_version`, `sluice_last_error` and `sluice_free`. A
//!   caller checks that `sluice_abi_version()` is [`ABI_VERSION`] before it calls another function.
//! - A link is an opaque pointer. It may be used by several threads at once. `sluice_receive` of one link runs in one
//!   thread at a time, and so do `sluice_begin_pass` and `sluice_end_pass`.
//! - A text is UTF-8 with a length. A text that is returned is valid until the next `sluice_receive` of the link, that
//!   of `sluice_setup` as long as the link.
//! - `sluice_last_error()` is the reason of the last failure in the calling thread.
//! - A time limit is in milliseconds; below zero there is none.
//! - No panic leaves the library.
//!
//! | code | constant | meaning |
//! |---|---|---|
//! | 0 | [`SLUICE_OK`] | done |
//! | 1 | [`SLUICE_TIMEOUT`] | nothing happened in time; the link is usable |
//! | 2 | [`SLUICE_CLOSED`] | the sidecar has closed the link or exited: exit |
//! | 3 | [`SLUICE_REFUSED`] | the sidecar refuses the hello, or `sluice_apply` has refused an order: nothing changed |
//! | 4 | [`SLUICE_OVERTAKEN`] | a layer holds the weights of a later pass |
//! | -1 | [`SLUICE_ERROR`] | the protocol was violated or a system call failed: exit |
//! | -2 | [`SLUICE_INVALID`] | an argument or JSON is not valid; nothing was sent, the link is usable |
//! | -3 | [`SLUICE_STATE`] | the call does not fit the state or the kind of the link |
//! | -4 | [`SLUICE_TORN`] | a change of memory failed in the middle: exit before a range is touched |
//! | -5 | [`SLUICE_PANIC`] | a bug of this library: exit |
//!
//! # Functions
//!
//! ```c
//! uint32_t    sluice_abi_version(void);
//! const char *sluice_last_error(void);
//! int32_t sluice_worker_connect(const char *path, size_t path_bytes, const char *hello, size_t hello_bytes,
//!                               int64_t timeout_ms, void **link);
//! int32_t sluice_scheduler_connect(const char *path, size_t path_bytes, const char *hello, size_t hello_bytes,
//!                                  int64_t timeout_ms, void **link);
//! int32_t sluice_setup(const void *link, const char **text, size_t *text_bytes);
//! int32_t sluice_receive(const void *link, int64_t timeout_ms, const char **text, size_t *text_bytes);
//! int32_t sluice_send(const void *link, const char *text, size_t text_bytes);
//! int32_t sluice_exit_with_sidecar(const void *link, int32_t status);
//! int32_t sluice_shutdown(const void *link);
//! void    sluice_free(void *link);
//! // Links of workers only.
//! int32_t sluice_reserve(const void *link);
//! int32_t sluice_layer_range(const void *link, uint32_t layer, uint64_t *address, uint64_t *range_bytes);
//! int32_t sluice_kv_range(const void *link, uint64_t *address, uint64_t *range_bytes);
//! int32_t sluice_apply(const void *link, uint64_t id);
//! int32_t sluice_begin_pass(const void *link, uint64_t *pass);
//! int32_t sluice_end_pass(const void *link, uint64_t pass, uint64_t total_ns, uint64_t stall_ns, uint32_t tokens,
//!                         uint32_t sequences);
//! int32_t sluice_begin_layer(const void *link);
//! int32_t sluice_wait_ready(const void *link, uint32_t layer, uint64_t pass, int64_t timeout_ms);
//! int32_t sluice_publish_done(const void *link, uint32_t layer, uint64_t pass);
//! ```
//!
//! - `connect` sends the hello and waits for the setup. It tries again while no process listens at `path`.
//! - `sluice_exit_with_sidecar` starts a thread that ends the process by `_exit(status)` once the sidecar is gone, even
//!   inside a pass.
//! - `sluice_reserve` comes once, before the first `sluice_receive`. On a GPU it retains the primary context.
//! - `sluice_apply` carries out a `remap` or `zero` and replies. Orders are carried out as they came. No pass runs, and
//!   on a GPU all work is done. Chunks of a GPU are imported and released by `sluice_receive`, which does not show them.
//! - `sluice_begin_pass` returns the number of the pass, from 1; the numbers go on after a restart of the worker.
//! - `sluice_wait_ready` waits until the sidecar has leased a layer to the pass, and the layer holds the copy that the
//!   lease names. `sluice_publish_done` says that the pass needs it no more.
//! - `sluice_free` unmaps the ranges: no tensor over them may be left. A process that exits need not call it.
//!
//! # Messages
//!
//! The field `type` is the name of the message, which hellos and setups do not have. Unknown fields are refused. Numbers
//! are unsigned. A reply repeats the `id` of its command.
//!
//! | message | sent by | fields | reply |
//! |---|---|---|---|
//! | worker's hello | worker | `build` text, `engine` text (`vllm 0.32.0`), `rank` u32, `ranks` u32 | setup |
//! | worker's setup | sidecar | `device` (`host`, `cuda`), `device_uuid` (null, hex), `chunk_bytes`, `capacity_chunks`, `layer_chunks` [u32], `kv_chunks` | |
//! | `remap` | sidecar | `id`, `maps` count, `unmaps` count; the changes stay in the library | `sluice_apply` |
//! | `zero` | sidecar | `id`, `positions` count | `sluice_apply` |
//! | `moving` | sidecar | `id`, `layers` [u16], `first_pass` u64: from that pass on these layers wait, and no others | `applied` |
//! | `loaded` | worker | `layer_bytes` [u64]; once | `captured` |
//! | `captured` | sidecar | | |
//! | `kv_layout` | worker | `layers`, `blocks`, `block_bytes`, `layer_stride_bytes`, `block_stride_bytes`, `block_tokens`; once, after `loaded` | `kv_accepted`, `setup_refused` |
//! | `kv_accepted` | sidecar | `extent_blocks` u32, `extents` u32 | |
//! | `setup_refused` | sidecar | `reason` (`ranks`, `engine`, `model`, `occupied`, `layout`, `other`), `message` text; the link ends | |
//! | `applied` | worker | `id` of a `moving` | |
//! | `refused` | worker | `id` of a `moving`, `message` text | |
//! | scheduler's hello | scheduler | `build` text, `engine` text, `blocks` u32, `block_tokens` u32, `max_model_len` u32 | setup |
//! | scheduler's setup | sidecar | `extent_blocks` u32, `extents` u32, `granted` [u32] | |
//! | `hold` | sidecar | `id` | `held` |
//! | `held` | scheduler | `id`, `idle` [u32], `wanted_blocks` u32, `waiting` u32, `running` u32 | |
//! | `retire` | sidecar, while held | `id`, `extents` u32 | `retired` |
//! | `retired` | scheduler | `id`, `extents` [u32], `preempted` u32 | |
//! | `resume` | sidecar, while held | `id`, `granted` [u32], `withdrawn` [u32] | |
//! | `demand` | scheduler | `wanted_blocks` u32, `waiting` u32, `running` u32, `blocked` [[text, u32]] | |
//! | `bye` | either end | | |
//!
//! The sidecar ends a link for a reply that nothing asked for, for an extent that is not granted or is extent 0, and for
//! more extents than it asked for. Names have at most 256 bytes, and `blocked` at most 1024 requests.
//!
//! # Example
//!
//! ```
//! use std::ffi::CStr;
//!
//! assert_eq!(sluice_vllm_link::sluice_abi_version(), sluice_vllm_link::ABI_VERSION);
//! let mut pass = 0;
//! // SAFETY: a null link is refused.
//! let code = unsafe { sluice_vllm_link::sluice_begin_pass(std::ptr::null(), &mut pass) };
//! assert_eq!(code, sluice_vllm_link::SLUICE_INVALID);
//! // SAFETY: the text is valid until the next failure in this thread.
//! let reason = unsafe { CStr::from_ptr(sluice_vllm_link::sluice_last_error()) };
//! assert_eq!(reason.to_str(), Ok("the link is null"));
//! ```

mod abi;
mod exit_watch;
mod failure;
mod inbox;
mod json;
mod link;
mod scheduler;
mod worker;
mod worker_memory;

pub use abi::*;
pub use failure::{
    SLUICE_CLOSED, SLUICE_ERROR, SLUICE_INVALID, SLUICE_OK, SLUICE_OVERTAKEN, SLUICE_PANIC, SLUICE_REFUSED,
    SLUICE_STATE, SLUICE_TIMEOUT, SLUICE_TORN,
};
