//! Commands and configuration files of a node's components.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::super::control_plane::ControlPlane;
use super::node_dirs::NodeDirs;
use super::node_layout::NodeLayout;
use crate::files;

/// Time without a heartbeat after which a node is lost, seconds. Long enough for a kubelet on a busy machine, and
/// shorter than the limit of a test.
const GRACE_SECONDS: u32 = 20;
/// Duration of a kubelet's Lease, seconds.
const LEASE_SECONDS: u32 = 12;

/// The container runtime, with the plugins of Debian's packages or of upstream's usual folder.
pub fn containerd(layout: &NodeLayout) -> Command {
    let prefix = layout.dirs.prefix();
    let network = json!({
        "cniVersion": "1.0.0", "name": "sluice",
        "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": format!("{prefix}.0/24"), "rangeStart": format!("{prefix}.10")}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    });
    write(layout, "cni/10-sluice.conflist", &network.to_string());
    let config = CONTAINERD.replace("{folder}", &layout.folder.display().to_string());
    let config = write(layout, "containerd.toml", &config);
    // Containers inherit the limit.
    let mut command = Command::new("sh");
    command.args(["-c", files::FEW]).arg(layout.binaries.path("containerd"));
    // containerd finds its shim on the PATH.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(
        [layout.binaries.folder().to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&path))
            .chain(["/usr/sbin".into()]),
    );
    command.arg("--config").arg(config).env("PATH", path.expect("a path of folders"));
    command
}

/// Containerd must not lower `oom_score_adj`: many containers do not permit it.
const CONTAINERD: &str = r#"
version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
[grpc]
address = '/run/containerd/containerd.sock'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = 'registry.k8s.io/pause:3.10.1'
[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ['/etc/cdi', '/run/cdi']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['/usr/lib/cni', '/opt/cni/bin']
conf_dir = '{folder}/cni'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
"#;

/// Returns the other components of the control plane.
pub fn of_control_plane(layout: &NodeLayout, plane: &ControlPlane) -> Vec<(&'static str, Command)> {
    let [manager, scheduler] = ["kube-controller-manager", "kube-scheduler"].map(|name| {
        let mut command = Command::new(layout.binaries.path(name));
        let kubeconfig = plane.user(&format!("system:{name}"), None);
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
        command
    });
    let mut manager = manager;
    let key = layout.folder.join("service-account.key");
    manager
        .arg(format!("--service-account-private-key-file={}", key.display()))
        .arg(format!("--root-ca-file={}", plane.authority().certificate_path().display()))
        .arg("--use-service-account-credentials=true")
        .arg(format!("--node-monitor-grace-period={GRACE_SECONDS}s"))
        .arg("--node-monitor-period=1s");
    vec![("kube-controller-manager", manager), ("kube-scheduler", scheduler)]
}

/// Returns the components of each node.
pub fn of_node(layout: &NodeLayout, plane: &ControlPlane, cgroup: &str) -> Vec<(&'static str, Command)> {
    vec![("kubelet", kubelet(layout, plane, cgroup)), ("kube-proxy", kube_proxy(layout, plane))]
}

fn kubelet(layout: &NodeLayout, plane: &ControlPlane, cgroup: &str) -> Command {
    let (name, address) = (layout.dirs.name(), layout.dirs.address());
    let server = plane.authority().server(name, &[name], &[address]);
    let (certificate, key) = server.write(&layout.folder, "kubelet-server");
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false}, "webhook": {"enabled": true},
            "x509": {"clientCAFile": plane.authority().certificate_path()},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": certificate, "tlsPrivateKeyFile": key,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{cgroup}"), "failCgroupV1": false,
        "failSwapOn": false,
        "clusterDNS": [NodeDirs::First.address().to_string()], "clusterDomain": "cluster.local", "resolvConf": "",
        // Tests must also run on a host with a full disk or little memory.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        // The kubelet renews its Lease every quarter of this.
        "nodeLeaseDurationSeconds": LEASE_SECONDS,
        "imageGCLowThresholdPercent": 99,
    });
    let config = write(layout, "kubelet.json", &config.to_string());
    let kubeconfig = plane.user(&format!("system:node:{name}"), Some("system:nodes"));
    let mut command = Command::new(layout.binaries.path("kubelet"));
    command
        .arg(format!("--config={}", config.display()))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--hostname-override={name}"))
        .arg(format!("--node-ip={address}"));
    command
}

fn kube_proxy(layout: &NodeLayout, plane: &ControlPlane) -> Command {
    let kubeconfig = plane.user("system:kube-proxy", None);
    let config: Value = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "nftables", "clusterCIDR": "10.244.0.0/16", "hostnameOverride": layout.dirs.name(),
        "clientConnection": {"kubeconfig": kubeconfig},
        "conntrack": {"maxPerCore": 0, "min": 0},
        "healthzBindAddress": "127.0.0.1:10256", "metricsBindAddress": "127.0.0.1:10249",
    });
    let config = write(layout, "kube-proxy.json", &config.to_string());
    let mut command = Command::new(layout.binaries.path("kube-proxy"));
    command.arg(format!("--config={}", config.display()));
    command
}

/// Cluster DNS next to the API server, so that no pod is needed.
pub fn coredns(layout: &NodeLayout, plane: &ControlPlane) -> Command {
    let address = layout.dirs.address();
    let kubeconfig = plane.user("coredns", Some("system:masters"));
    let config = format!(
        ".:53 {{\n  bind {address}\n  errors\n  kubernetes cluster.local in-addr.arpa {{\n    kubeconfig {}\n    \
         pods insecure\n  }}\n}}\n",
        kubeconfig.display()
    );
    let config = write(layout, "Corefile", &config);
    let mut command = Command::new(layout.binaries.path("coredns"));
    command.arg("-conf").arg(config);
    command
}

fn write(layout: &NodeLayout, name: &str, text: &str) -> PathBuf {
    let path = layout.folder.join(name);
    let parent = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent).unwrap_or_else(|e| panic!("{}: {e}", parent.display()));
    std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    path
}
