//! The endpoint of a request.

/// Endpoint of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/completions`
    Completion,
    /// `/v1/chat/completions`
    Chat,
}

impl Endpoint {
    /// Returns the parameter that holds the prompt.
    pub fn prompt_param(self) -> &'static str {
        match self {
            Endpoint::Completion => "prompt",
            Endpoint::Chat => "messages",
        }
    }
}
