//! Log lines on standard error.

use tracing_subscriber::EnvFilter;

use crate::args::{Args, LogFormat};

/// Starts logging.
///
/// # Errors
/// The filter cannot be read.
pub fn start(args: &Args) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&args.log)?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => lines.with_ansi(false).init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}
