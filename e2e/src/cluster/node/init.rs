//! Process 1 of a node's namespaces: it mounts, sets up the network, and reaps orphans until it is killed.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::super::child::Component;
use super::super::process_spawner::ProcessSpawner;
use super::node_dirs::NodeDirs;

/// `$1` is the node's folder, `$2` its name, `$3` the prefix of its pods' addresses. Folders of the node are
/// mounted over the usual paths, so that components find their files as on any node. The bridge has an address
/// before a component listens on it. The default route leads nowhere, but a kubelet needs one.
const SCRIPT: &str = r#"
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount --bind "$1/run" /run
mount --bind "$1/lib" /var/lib
mount --bind "$1/log" /var/log
mount --make-rshared /
hostname "$2"
ip link set lo up
ip link add cni0 type bridge
ip address add $3.1/24 dev cni0
ip link set cni0 up
ip route add default via $3.254 dev cni0
echo 1 >/proc/sys/net/ipv4/ip_forward
for bridged in /proc/sys/net/bridge/bridge-nf-call-iptables; do [ ! -e $bridged ] || echo 1 >$bridged; done
: >"$1/mounted"
sleep infinity &
wait
"#;

const HIDDEN: [&str; 3] = ["/run", "/var/lib", "/var/log"];
const LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Panics if the node's mounts hide one of these folders.
pub fn assert_visible(folders: &[&Path]) {
    for folder in folders {
        let hidden = HIDDEN.iter().find(|hidden| folder.starts_with(hidden));
        let shown = folder.display();
        assert!(
            hidden.is_none(),
            "{shown}: a node has its own {hidden:?}; set TMPDIR or SLUICE_CACHE elsewhere"
        );
    }
}

/// Starts process 1 and waits until mounts and network are ready.
pub fn start(spawner: &ProcessSpawner, folder: &Path, place: NodeDirs) -> Component {
    for name in ["run", "lib", "log", "run/containerd", "run/netns", "lib/kubelet", "lib/cni", "log/pods"] {
        std::fs::create_dir_all(folder.join(name)).unwrap_or_else(|e| panic!("{name} of a node: {e}"));
    }
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "init"]).arg(folder).args([place.name(), place.prefix()]);
    let mut init = Component::start(spawner, "init", command, folder);
    let begun = Instant::now();
    while !folder.join("mounted").exists() {
        init.assert_alive();
        assert!(begun.elapsed() < LIMIT, "mounts and network of a node took {LIMIT:?}\n{}", init.tail());
        thread::sleep(POLL_INTERVAL);
    }
    init
}
