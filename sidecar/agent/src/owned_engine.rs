//! An engine that schedules by itself over the sidecar's memory, such as vLLM: the port of its block budget.

pub mod extent_map;
