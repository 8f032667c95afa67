//! An answer of `/v1/completions`, whole or put together from its stream.

use serde_json::Value;

/// A token as the API shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its text.
    pub name: String,
    /// Its log-probability; equal bits are equal arithmetic.
    pub logprob: f64,
}

/// What was answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// The tokens, when log-probabilities were asked for.
    pub tokens: Vec<Token>,
    /// Why it ended; empty while it has not.
    pub finish: String,
}

impl Answer {
    /// From a body without a stream.
    pub fn whole(body: &Value) -> Answer {
        let mut answer = Answer::default();
        answer.add(body);
        answer
    }

    /// Adds a chunk of a stream. One without choices (a usage) changes nothing.
    pub fn add(&mut self, chunk: &Value) {
        let choice = &chunk["choices"][0];
        self.text.push_str(choice["text"].as_str().unwrap_or_default());
        let logprobs = &choice["logprobs"];
        let lists = logprobs["tokens"].as_array().zip(logprobs["token_logprobs"].as_array());
        for (name, logprob) in lists.into_iter().flat_map(|(names, logprobs)| names.iter().zip(logprobs)) {
            self.tokens
                .push(Token { name: name.as_str().unwrap().into(), logprob: logprob.as_f64().unwrap() });
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            assert_eq!(self.finish, "", "it ended twice");
            self.finish = finish.to_owned();
        }
    }

    /// Texts of the tokens.
    pub fn names(&self) -> Vec<&str> {
        self.tokens.iter().map(|token| token.name.as_str()).collect()
    }
}
