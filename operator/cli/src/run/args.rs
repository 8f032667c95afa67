//! Options of `sluice run`.

use std::net::IpAddr;
use std::path::PathBuf;

use sluice_types::load;
use sluice_types::pool::Policy;

use super::memory::parse_memory;
use crate::models::CacheArgs;
use crate::models::hub_model::DEFAULT_ENDPOINT;

/// Options of `sluice run`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// A folder in Hugging Face layout, ORG/NAME[@REVISION] of a hub, or https://HOST/ORG/NAME[/tree/REVISION].
    #[expect(rustdoc::broken_intra_doc_links, reason = "the brackets are part of the help text")]
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<String>,
    /// Chat in the terminal. Input that is not a terminal is read as prompts, one per line.
    #[arg(long)]
    pub chat: bool,
    /// Port of the API. 0 = any free port. Default: 8000, or the next one that is free.
    #[arg(long)]
    pub port: Option<u16>,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Memory of the GPU that the models share, such as 6Gi. Default: weights and KV of 4 sequences of each model,
    /// fewer where the machine has less memory.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<u64>,
    /// Longest sequence (prompt and answer), tokens. Default: that of the model, at most 8192.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub context: Option<u32>,
    /// Threads of each engine; 0 = all cores.
    #[arg(long, default_value_t = 0)]
    pub threads: u32,
    /// How a tenant finds memory when its KV runs short, as `spec.policy` of a GpuPool.
    #[arg(long, default_value = "Unified", value_parser = load::parse_policy)]
    pub policy: Policy,
    /// Hub of models that are named ORG/NAME. The variable HF_TOKEN holds a token, if the hub needs one; it is not sent
    /// to a hub that a URL names.
    #[arg(long, env = "HF_ENDPOINT", value_name = "URL", default_value = DEFAULT_ENDPOINT)]
    pub endpoint: String,
    /// Where models are downloaded to.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Print the YAML for `sluice up -f` and end; this downloads only the headers of files.
    #[arg(long)]
    pub print_yaml: bool,
    /// Runtime folder instead of the user's own.
    #[arg(long, env = "SLUICE_RUNTIME_DIR")]
    pub runtime_dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_one_of_those_of_a_pool() {
        for policy in Policy::ALL {
            assert_eq!(load::parse_policy(policy.as_str()), Ok(policy));
        }
        let refused = |name| load::parse_policy(name).unwrap_err().to_string();
        assert!(refused("Magic").starts_with("unknown value `Magic`, expected one of `Unified`"));
        assert!(refused("unified").ends_with("; did you mean `Unified`?"), "{}", refused("unified"));
    }
}
