//! Secrets that processes of one machine share: random, and in files that their user alone can read.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Random bytes of a token, written as twice as many hexadecimal digits.
pub const TOKEN_BYTES: usize = 32;

/// Returns `N` random bytes as hexadecimal digits.
///
/// # Errors
/// The system's random numbers cannot be read.
pub fn random_hex<const N: usize>() -> io::Result<String> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes a new file that this user alone can read.
///
/// # Errors
/// The file exists: a secret is never written into a file that another process has created. Or it cannot be written.
pub fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn random_digits_are_hexadecimal_and_others_each_time() {
        let [first, second] = [0, 1].map(|_| random_hex::<TOKEN_BYTES>().unwrap());
        assert!(first.len() == 64 && first.bytes().all(|byte| byte.is_ascii_hexdigit()), "{first}");
        assert_ne!(first, second);
    }

    #[test]
    fn a_secret_is_written_for_its_user_alone_and_never_into_a_file_that_exists() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write_new(&path, "secret").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let error = write_new(&path, "another").expect_err("it exists");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "secret");
    }
}
