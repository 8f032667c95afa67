//! Parameters of a request. An unsupported parameter is refused by name; none is ignored.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use sluice_common::hash::fnv1a;
use sluice_ports::sampling::Sampling;

use super::detok::DecodeOptions;
use super::error::ApiError;
use super::values;
use crate::model::text::Text;

/// Parameters of both endpoints.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct CommonParams {
    /// Model name.
    pub model: Option<String>,
    /// Whether to send the response as server-sent events.
    #[serde(default)]
    pub stream: bool,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
    /// Most tokens to generate.
    pub max_tokens: Option<u32>,
    /// Newer name of `max_tokens`.
    pub max_completion_tokens: Option<u32>,
    /// Number of choices per prompt.
    pub n: Option<u32>,
    /// Strings that end the response.
    pub stop: Option<OneOrMany>,
    /// Token ids that end the response.
    #[serde(default)]
    pub stop_token_ids: Vec<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    #[serde(default)]
    logit_bias: BTreeMap<String, f32>,
    seed: Option<i64>,
    #[serde(default)]
    min_tokens: u32,
    #[serde(default)]
    ignore_eos: bool,
    skip_special_tokens: Option<bool>,
    spaces_between_special_tokens: Option<bool>,
    /// Priority; a higher one runs first.
    #[serde(default)]
    pub priority: i32,
    /// Scope of the prefix cache.
    pub cache_salt: Option<String>,
    /// Accepted for compatibility and unused.
    #[serde(rename = "user")]
    _user: Option<String>,
}

/// Options of a stream.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Send a last chunk with the usage.
    #[serde(default)]
    pub include_usage: bool,
    /// Send the usage so far in every chunk.
    #[serde(default)]
    pub continuous_usage_stats: bool,
}

/// A string or an array of strings.
#[derive(Clone, Debug)]
pub struct OneOrMany(Vec<String>);

struct OneOrManyVisitor;

impl<'de> Visitor<'de> for OneOrManyVisitor {
    type Value = OneOrMany;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or an array of strings")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<OneOrMany, E> {
        Ok(OneOrMany(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<OneOrMany, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = items.next_element()? {
            texts.push(text);
        }
        Ok(OneOrMany(texts))
    }
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OneOrMany, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor)
    }
}

/// Names of the fields of [`CommonParams`].
const COMMON: &[&str] = &[
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "stop",
    "stop_token_ids",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "priority",
    "cache_salt",
    "user",
];

/// Whether `value` has no effect, for unsupported parameters of OpenAI's or vLLM's API; `None` = unknown parameter.
fn is_noop_value(name: &str, value: &Value) -> Option<bool> {
    let allowed: &[Value] = match name {
        "best_of" => &[json!(1)],
        "echo" | "use_beam_search" | "include_stop_str_in_output" | "store" | "continue_final_message" => {
            &[json!(false)]
        }
        "suffix" => &[json!("")],
        "response_format" => &[json!({"type": "text"})],
        "tools" | "functions" => &[json!([])],
        "tool_choice" | "function_call" => &[json!("none"), json!("auto")],
        "parallel_tool_calls" => &[json!(true), json!(false)],
        "modalities" => &[json!(["text"])],
        "metadata" | "chat_template_kwargs" => &[json!({})],
        "service_tier" => &[json!("auto"), json!("default")],
        "length_penalty" => &[json!(1), json!(1.0)],
        "audio"
        | "prediction"
        | "reasoning_effort"
        | "web_search_options"
        | "verbosity"
        | "guided_json"
        | "guided_regex"
        | "guided_choice"
        | "guided_grammar"
        | "structured_outputs"
        | "prompt_logprobs"
        | "truncate_prompt_tokens"
        | "chat_template"
        | "documents" => &[],
        _ => return None,
    };
    Some(allowed.iter().any(|one| values::json_eq(one, value)))
}

/// Parses a body of known parameters. `own` names those that are not in [`COMMON`].
///
/// # Errors
/// 400 that names the parameter, or the line and column of invalid JSON.
pub fn parse<T: DeserializeOwned>(body: &[u8], own: &[&str]) -> Result<(CommonParams, T), ApiError> {
    let map: Map<String, Value> =
        serde_json::from_slice(body).map_err(|error| not_an_object(body, &error))?;
    let mut known = Map::new();
    for (name, value) in map {
        // OpenAI's own clients send null for absent.
        if value.is_null() {
            continue;
        }
        if COMMON.contains(&name.as_str()) || own.contains(&name.as_str()) {
            known.insert(name, value);
            continue;
        }
        match is_noop_value(&name, &value) {
            Some(true) => {}
            Some(false) => {
                return Err(ApiError::unsupported(&name, format!("`{name}` = {value} is not supported")));
            }
            None => {
                return Err(ApiError::invalid_param(
                    &name,
                    format!("`{name}` is not a parameter of this endpoint"),
                ));
            }
        }
    }
    let (common, rest): (Map<_, _>, Map<_, _>) =
        known.into_iter().partition(|(name, _)| COMMON.contains(&name.as_str()));
    Ok((values::read(Value::Object(common))?, values::read(Value::Object(rest))?))
}

/// Returns the error for a body that is not a JSON object.
pub fn not_an_object(body: &[u8], error: &serde_json::Error) -> ApiError {
    let (line, column) = (error.line(), error.column());
    if !error.is_data() {
        return ApiError::bad_request(format!("the body is not JSON: {error}"));
    }
    let found = serde_json::from_slice(body)
        .map_or_else(|_| "something else".into(), |value| values::display_value(&value));
    ApiError::bad_request(format!(
        "the body must be a JSON object, not {found} (line {line} column {column})"
    ))
}

fn check_range(name: &str, value: f32, low: f32, high: f32) -> Result<f32, ApiError> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(ApiError::invalid_param(name, format!("`{name}` must be a number from {low} to {high}, not {value}")))
}

/// Checks that `value` is above 0 and at most `high`.
fn check_positive(name: &str, value: f32, high: f32) -> Result<f32, ApiError> {
    if value > 0.0 && value <= high {
        return Ok(value);
    }
    Err(ApiError::invalid_param(
        name,
        format!("`{name}` must be a number above 0 and at most {high}, not {value}"),
    ))
}

impl CommonParams {
    /// Returns the token limit, under either name.
    pub fn token_limit(&self) -> Result<Option<u32>, ApiError> {
        match (self.max_tokens, self.max_completion_tokens) {
            (Some(old), Some(new)) if old != new => {
                return Err(ApiError::invalid_param(
                    "max_tokens",
                    "`max_tokens` and `max_completion_tokens` differ",
                ));
            }
            _ => {}
        }
        match self.max_completion_tokens.or(self.max_tokens) {
            Some(0) => Err(ApiError::invalid_param("max_tokens", "`max_tokens` must be at least 1")),
            limit => Ok(limit),
        }
    }

    /// Returns the name under which the request set the token limit.
    pub fn limit_param(&self) -> &'static str {
        if self.max_completion_tokens.is_some() { "max_completion_tokens" } else { "max_tokens" }
    }

    /// Checks what needs no model.
    ///
    /// # Errors
    /// 400 that names the parameter.
    pub fn check_without_model(&self) -> Result<(), ApiError> {
        self.token_limit()?;
        self.choice_count()?;
        self.stop_strings()?;
        Ok(())
    }

    /// Returns how tokens are decoded.
    pub fn decode_options(&self) -> DecodeOptions {
        DecodeOptions {
            skip_special: self.skip_special_tokens.unwrap_or(true),
            spaces_between_special: self.spaces_between_special_tokens.unwrap_or(true),
        }
    }

    /// Returns the fewest tokens before a stop token can end the response.
    pub fn min_tokens(&self) -> u32 {
        self.min_tokens
    }

    /// Returns the number of choices per prompt.
    pub fn choice_count(&self) -> Result<u32, ApiError> {
        match self.n.unwrap_or(1) {
            n @ 1..=8 => Ok(n),
            n => Err(ApiError::invalid_param("n", format!("`n` must be an integer from 1 to 8, not {n}"))),
        }
    }

    /// Returns the stop strings: at most 16, none empty.
    pub fn stop_strings(&self) -> Result<Vec<String>, ApiError> {
        let stop = self.stop.as_ref().map_or_else(Vec::new, |stop| stop.0.clone());
        if stop.len() > 16 || stop.iter().any(String::is_empty) {
            return Err(ApiError::invalid_param(
                "stop",
                "`stop` may hold at most 16 strings, none of them empty",
            ));
        }
        Ok(stop)
    }

    /// Returns the sampling parameters. As in vLLM, the model's `generation_config.json` has the defaults.
    pub fn sampling(&self, text: &Text, vocab: u32, logprobs: Option<u8>) -> Result<Sampling, ApiError> {
        let defaults = text.generation_config();
        let (stop_tokens, ignore_stop) = self.stop_tokens(text);
        self.check_ids(vocab)?;
        let top_k = match self.top_k.or(defaults.top_k.map(i64::from)) {
            None | Some(-1) => 0,
            Some(k) => u32::try_from(k).map_err(|_| {
                let wanted = format!("an integer from 1 to {}, or 0 or -1 for all tokens", u32::MAX);
                ApiError::invalid_param("top_k", format!("`top_k` must be {wanted}, not {k}"))
            })?,
        };
        let penalty = self.repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0);
        Ok(Sampling {
            temperature: check_range(
                "temperature",
                self.temperature.or(defaults.temperature).unwrap_or(1.0),
                0.0,
                2.0,
            )?,
            top_p: check_positive("top_p", self.top_p.or(defaults.top_p).unwrap_or(1.0), 1.0)?,
            top_k,
            min_p: check_range("min_p", self.min_p.unwrap_or(0.0), 0.0, 1.0)?,
            presence_penalty: check_range(
                "presence_penalty",
                self.presence_penalty.unwrap_or(0.0),
                -2.0,
                2.0,
            )?,
            frequency_penalty: check_range(
                "frequency_penalty",
                self.frequency_penalty.unwrap_or(0.0),
                -2.0,
                2.0,
            )?,
            repetition_penalty: check_positive("repetition_penalty", penalty, 10.0)?,
            logit_bias: self.logit_bias(vocab)?,
            seed: self.seed.map_or_else(random_seed, i64::cast_unsigned),
            stop_tokens,
            min_tokens: self.min_tokens,
            ignore_stop,
            logprobs,
        })
    }

    /// Returns the tokens that end the response and cannot be sampled before `min_tokens`, and whether they have only
    /// the second effect.
    ///
    /// `ignore_eos` ignores only the model's own stop tokens; the request's stop tokens always apply. As in vLLM,
    /// `min_tokens` prevents the model's stop tokens from being sampled even if `ignore_eos` is set, but not if the
    /// request has stop tokens of its own, because one list cannot have both effects.
    fn stop_tokens(&self, text: &Text) -> (Vec<u32>, bool) {
        let only_barred = self.ignore_eos && self.min_tokens > 0 && self.stop_token_ids.is_empty();
        let models = if self.ignore_eos && !only_barred { &[] } else { text.stop_tokens() };
        ([models, &self.stop_token_ids].concat(), only_barred)
    }

    fn check_ids(&self, vocab: u32) -> Result<(), ApiError> {
        match self.stop_token_ids.iter().find(|id| **id >= vocab) {
            Some(id) => {
                Err(ApiError::invalid_param("stop_token_ids", format!("the vocabulary has no token {id}")))
            }
            None => Ok(()),
        }
    }

    fn logit_bias(&self, vocab: u32) -> Result<Vec<(u32, f32)>, ApiError> {
        let one = |(token, bias): (&String, &f32)| {
            let id = token.parse::<u32>().ok().filter(|id| *id < vocab);
            let id = id.ok_or_else(|| {
                ApiError::invalid_param("logit_bias", format!("the vocabulary has no token {token}"))
            })?;
            Ok((id, check_range("logit_bias", *bias, -100.0, 100.0)?))
        };
        self.logit_bias.iter().map(one).collect()
    }

    /// Returns a hash of the prefix cache scope.
    pub fn cache_salt_hash(&self) -> u64 {
        fnv1a(self.cache_salt.as_deref().unwrap_or_default().bytes())
    }
}

/// Returns a seed that differs for every request.
fn random_seed() -> u64 {
    RandomState::new().hash_one(0)
}
