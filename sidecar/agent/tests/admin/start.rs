//! Tests of the start of the admin port from its configuration, and of tokens.

use std::os::unix::fs::PermissionsExt;

use sluice_agent::admin::start::{AdminCredentials, StartError};
use sluice_agent::admin::{make_token, read_tokens};

use super::certificates::files;
use super::harness::{PEER_TOKEN, config};

#[test]
fn token_file_is_random_and_private() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "old and readable by all").unwrap();
    let token = make_token(&path).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), token);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert!(token.len() == 64 && token.bytes().all(|b| b.is_ascii_hexdigit()));
    assert_ne!(make_token(&folder.path().join("other")).unwrap(), token);
    assert_eq!(read_tokens(&path).unwrap()[0].secret, token);
}

#[test]
fn weak_or_missing_peer_token_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "story");
    let path = config.listen.peer_token_file.clone().unwrap();
    let token_file = folder.path().join("token");
    AdminCredentials::load(&config, &token_file).expect("the control");
    let good = PEER_TOKEN;
    for bad in [
        "",
        "   \n",
        "short",
        "0123456789abcdef 0123456789abcdef",
        &"é".repeat(40),
        &format!("{good} story"),
        &format!("{good} default/story/1"),
        &format!("{good} default/story stranger"),
        &format!("{good} default/story\nshort default/code"),
        &format!("{good} default/story\n{good} default/code"),
        &format!("{good} default/code"),
    ] {
        std::fs::write(&path, bad).unwrap();
        let error = AdminCredentials::load(&config, &token_file).unwrap_err();
        assert!(error.to_string().starts_with("listen.peer_token_file: "), "{error}");
        let secrets = bad.split_whitespace().filter(|word| !word.contains('/'));
        let printed = format!("{error:?}");
        assert!(!secrets.into_iter().any(|word| printed.contains(word)), "logs hold no secrets: {printed}");
    }
    std::fs::remove_file(&path).unwrap();
    let absent = AdminCredentials::load(&config, &token_file);
    assert!(matches!(absent, Err(StartError::PeerToken { path: named, .. }) if named == path));
}

#[test]
fn remote_listener_requires_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path(), "story");
    let token_file = folder.path().join("token");
    config.listen.admin = "0.0.0.0:0".parse().unwrap();
    assert!(matches!(AdminCredentials::load(&config, &token_file), Err(StartError::NotLoopback(_))));
    config.listen.admin_tls = Some(files(folder.path()));
    let error = AdminCredentials::load(&config, &token_file).unwrap_err().to_string();
    assert!(error.starts_with("listen.admin_tls: ") && error.contains("tls.crt"), "{error}");
}

#[test]
fn debug_output_hides_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "story");
    let credentials = AdminCredentials::load(&config, &folder.path().join("token")).unwrap();
    let printed = format!("{credentials:?} {:?}", credentials.client());
    for file in ["token", "peer_tokens"] {
        let token = std::fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(!printed.contains(token.trim()), "{printed}");
    }
}
