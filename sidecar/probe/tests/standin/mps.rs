//! Fakes of the MPS daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::TestEnv;

/// A fake of the daemon and of its control program, as far as the probe uses them.
pub const DAEMON: &str = r#"#!/bin/sh
pipe="$CUDA_MPS_PIPE_DIRECTORY/control"
if [ "$1" = -f ]; then
    echo "$$" >> "$DAEMON_LOG"
    mkfifo "$pipe"
    while :; do
        read -r line < "$pipe" || continue
        echo "$line" >> "$DAEMON_LOG"
        [ "$line" = quit ] && exit 0
    done
fi
[ -p "$pipe" ] || exit 1
cat > "$pipe"
"#;

/// Returns a machine whose MPS daemon is this script.
pub fn with_daemon(script: &str) -> TestEnv {
    let world = TestEnv::new();
    let (program, temporary) = (world.path("bin/nvidia-cuda-mps-control"), world.path("tmp"));
    fs::create_dir(world.path("bin")).expect("the folder is ours");
    fs::create_dir(&temporary).expect("the folder is ours");
    fs::write(&program, script).expect("the folder is ours");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    let path = format!("{}:{}", world.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    let (log, temporary) = (world.path("daemon").display().to_string(), temporary.display().to_string());
    world.with("PATH", &path).with("DAEMON_LOG", &log).with("TMPDIR", &temporary)
}

/// Returns the daemon's log: its process id, then the received commands.
pub fn log(world: &TestEnv) -> Vec<String> {
    let text = fs::read_to_string(world.path("daemon")).expect("the daemon was started");
    text.lines().map(str::to_owned).collect()
}
