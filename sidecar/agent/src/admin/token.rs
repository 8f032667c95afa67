//! Files with tokens.

use std::io;
use std::path::Path;

use sluice_wire::secrets::{TOKEN_BYTES, random_hex, write_new};

/// Minimum length of a token that was created elsewhere.
const MIN_TOKEN_CHARS: usize = 32;

/// Creates a new token and writes it to `path`, readable only by this user. Replaces a token of an earlier run.
///
/// # Errors
/// The file cannot be written.
pub fn make_token(path: &Path) -> io::Result<String> {
    let token = random_hex::<TOKEN_BYTES>()?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    write_new(path, &token)?;
    Ok(token)
}

/// Token of a peer.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerToken {
    /// Secret text.
    pub secret: String,
    /// Only tenant that may use the token, `NAMESPACE/NAME`. `None` if all peers share it.
    pub tenant: Option<String>,
}

impl std::fmt::Debug for PeerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerToken").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

/// Reads tokens that were created elsewhere, one per line: `TOKEN` or `TOKEN NAMESPACE/NAME`.
///
/// # Errors
/// The file cannot be read, or a line is not a token, is too short, or repeats another line's secret.
pub fn read_tokens(path: &Path) -> io::Result<Vec<PeerToken>> {
    let text = std::fs::read_to_string(path)?;
    let mut tokens: Vec<PeerToken> = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = |problem: String| invalid(format!("line {}: {problem}", index + 1));
        let token = parse_line(line).map_err(at)?;
        if tokens.iter().any(|other| other.secret == token.secret) {
            return Err(at("the token is the same as in another line".into()));
        }
        tokens.push(token);
    }
    if tokens.is_empty() { Err(invalid("holds no token".into())) } else { Ok(tokens) }
}

/// Parses a line. The error does not contain the line, which may hold a secret.
fn parse_line(line: &str) -> Result<PeerToken, String> {
    let mut words = line.split_whitespace();
    let secret = words.next().unwrap_or_default().to_owned();
    if secret.len() < MIN_TOKEN_CHARS || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("a token needs at least {MIN_TOKEN_CHARS} visible ASCII characters"));
    }
    let tenant = words.next().map(str::to_owned);
    let full = |name: &String| name.split('/').filter(|part| !part.is_empty()).count() == 2;
    if !tenant.as_ref().is_none_or(full) || words.next().is_some() {
        return Err("the text after the token must be NAMESPACE/NAME".into());
    }
    Ok(PeerToken { secret, tenant })
}

fn invalid(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}
