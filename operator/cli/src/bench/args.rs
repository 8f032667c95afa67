//! Options of `sluice bench`.

use std::path::PathBuf;

use super::load::{Arrivals, Lengths};

/// Explains the figures of the report.
const METRIC_DEFINITIONS: &str = "\
Figures, over requests that were answered:
  TTFT        from sending to the first chunk of the stream with tokens
  TBT         between two such chunks, over all gaps of all requests; `inter-token latency` in vLLM's benchmark.
              A server may put several tokens into a chunk; the report says how many it did on average
  TPOT        a request's time from its first chunk to its last one, by its tokens less one: (latency - TTFT) /
              (tokens - 1) in vLLM's benchmark. With a token a chunk, this is the mean TBT of the request
  end to end  from sending to the end of the stream
A chunk that holds only the finish reason does not count. The server counts tokens.
The shares of TTFT and of both targets are of all requests, failed requests included; the share of TBT is of gaps.

The exit status is 1 if no request was answered.";

/// Options of `sluice bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = METRIC_DEFINITIONS)]
pub struct BenchArgs {
    /// Base URL, without /v1. An address without a scheme is taken as http.
    #[arg(long, default_value = "http://127.0.0.1:8000", value_parser = parse_url)]
    pub url: String,
    /// Model name. Default: the first model of the server.
    #[arg(long)]
    pub model: Option<String>,
    /// API key.
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Requests to send.
    #[arg(long, short = 'n', default_value_t = 64, value_parser = at_least_one)]
    pub requests: usize,
    /// Arrivals: `burst`, `poisson:RATE`, `gamma:RATE:CV`, `every:SECONDS`, `trace:FILE[:SPEEDUP]` (requests per
    /// second; CSV with a TIMESTAMP or arrival_s column).
    #[arg(long, default_value = "burst")]
    pub arrivals: Arrivals,
    /// Lengths: `PROMPT:OUTPUT`, `LOW-HIGH:LOW-HIGH` (uniform), or a CSV file with context and generated token columns.
    #[arg(long, default_value = "64:64")]
    pub lengths: Lengths,
    /// Longest prompt and output together; longer draws are cut.
    #[arg(long, default_value_t = u32::MAX)]
    pub max_total: u32,
    /// Closed loop: at most this many requests open at once. Default: open loop.
    #[arg(long, value_parser = at_least_one)]
    pub concurrency: Option<usize>,
    /// Prompts are random token ids below this number. Token ids work with every server and tokenizer.
    #[arg(long, default_value_t = 256)]
    pub vocab: u32,
    /// Let the model end a sequence by itself.
    #[arg(long)]
    pub respect_eos: bool,
    /// TTFT target, milliseconds.
    #[arg(long, default_value_t = 2000)]
    pub slo_ttft: u64,
    /// TBT target, milliseconds: a request meets it when the 99th percentile of its gaps does.
    #[arg(long, default_value_t = 100)]
    pub slo_tbt: u64,
    /// Seed of arrivals, lengths and prompts.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Give up on a request after this many seconds.
    #[arg(long, default_value_t = 600)]
    pub timeout: u64,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
    /// Write every request's output text to this file (JSON), to compare two runs.
    #[arg(long)]
    pub outputs: Option<PathBuf>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "a whole number above 0".into())
}

/// Parses an address as curl does: one without a scheme is of http.
fn parse_url(text: &str) -> Result<String, String> {
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let parsed =
        reqwest::Url::parse(&url).map_err(|error| format!("{error}; an example is http://127.0.0.1:8000"))?;
    match parsed.scheme() {
        "http" | "https" => Ok(url),
        scheme => Err(format!("the scheme is `{scheme}`, expected http or https")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_scheme_is_of_http() {
        for (text, url) in [
            ("127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("localhost:8001", "http://localhost:8001"),
            ("[::1]:80", "http://[::1]:80"),
            ("https://models.example/llm", "https://models.example/llm"),
        ] {
            assert_eq!(parse_url(text).as_deref(), Ok(url));
        }
        for (text, said) in [
            ("ftp://a", "the scheme is `ftp`, expected http or https"),
            ("", "empty host; an example is http://127.0.0.1:8000"),
            ("localhost:port", "invalid port number; an example is http://127.0.0.1:8000"),
        ] {
            assert_eq!(parse_url(text).unwrap_err(), said);
        }
    }
}
