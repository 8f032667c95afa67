//! Files that hold a token.

use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;
/// Fewest characters of a token that somebody else has made.
const LEAST_CHARACTERS: usize = 32;

/// Makes a new token and writes it to `path`, readable by this user only. A token of an earlier run is replaced.
///
/// # Errors
/// The file cannot be written.
pub fn make_token(path: &Path) -> io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // `create_new`: never write a secret into a file that somebody else has put there.
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(token.as_bytes())?;
    Ok(token)
}

/// Reads a token that somebody else has made, without the white space around it.
///
/// # Errors
/// The file cannot be read, or what it holds can be guessed or cannot be sent.
pub fn read_token(path: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(path)?;
    let token = text.trim();
    if token.len() < LEAST_CHARACTERS || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let problem = format!("holds no token: at least {LEAST_CHARACTERS} visible ASCII characters");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(token.to_owned())
}
