//! Tests the driver with only the capabilities that the chart grants.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::json;

use crate::node::{DRIVER, Node, until};
use crate::server::Server;

/// Capabilities in charts/sluice/templates/devices.yaml.
const CAPABILITIES: &str = "-all,+chown,+dac_override,+fowner,+fsetid";
/// Group of the neighbourhoods, which only root can set.
const GROUP: u32 = 65_500;

/// Returns a command that runs as root with a limited bounding set, as in a container. Without the needed privileges,
/// prints the reason and returns `None`.
fn confined() -> Option<Command> {
    let mut command = Command::new("setpriv");
    command.args(["--no-new-privs", "--inh-caps=-all", &format!("--bounding-set={CAPABILITIES}")]);
    let works = rustix::process::getuid().is_root()
        && Command::new("setpriv")
            .args(command.get_args())
            .arg("true")
            .status()
            .is_ok_and(|status| status.success());
    if !works {
        eprintln!("SKIPPED: capabilities can be taken away by root alone, with setpriv of util-linux");
    }
    works.then_some(command)
}

/// Runs `script` as a tenant's pod: as another user, with the group that CDI adds.
fn tenant(script: &str) {
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65532",
        "--regid=65532",
        &format!("--groups={GROUP}"),
        "--inh-caps=-all",
        "sh",
        "-ec",
    ]);
    assert!(command.arg(script).status().unwrap().success(), "{script}");
}

#[tokio::test]
async fn tenant_files_are_removed_with_chart_capabilities() {
    let Some(mut confined) = confined() else { return };
    let node = Node::new(&Server::start().await);
    fs::set_permissions(node.path("."), Permissions::from_mode(0o755)).unwrap();
    node.server().allocate("a", "u-1", &[("neighbourhood", "neighbourhood-0")], json!([]));
    confined.arg(DRIVER);
    let driver = node.start_by(confined, GROUP, &[]);
    assert_eq!(driver.prepare_one("a", "u-1").await.error, "");
    let folder = node.path("kubelet/plugins/sluice.dev/neighbourhoods/u-1");
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o7777, 0o2770);
    let folder = folder.display();
    tenant(&format!("cd {folder}; mkdir -m 1777 sticky; touch sticky/file; mkdir -m 0 closed"));
    assert_eq!(driver.unprepare("a", "u-1").await, "");
    let rubbish = node.path("kubelet/plugins/sluice.dev/rubbish");
    until("the rubbish is empty", async || fs::read_dir(&rubbish).unwrap().count() == 0).await;
}
