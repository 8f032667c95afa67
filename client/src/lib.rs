//! A client of OpenAI-compatible servers: it reads streamed answers, and sends loads at planned times.
//!
//! # Example
//!
//! ```
//! use serde_json::json;
//! use sluice_client::chunk_text;
//!
//! let chunk = json!({"choices": [{"text": "Once"}]});
//! assert_eq!(chunk_text(&chunk), Some("Once"));
//! ```
#![forbid(unsafe_code)]

mod event_stream;
mod open_loop;

pub use event_stream::{EventStream, RequestError, chunk_text, error_message, send};
pub use open_loop::run_at;
