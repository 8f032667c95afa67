//! A second node: containerd, kubelet and kube-proxy in private namespaces, connected to the first node's network
//! by a link that can be cut.

use std::process::Command;
use std::sync::PoisonError;

use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::DeleteParams;
use rustix::process::Signal;

use super::cgroup::Cgroup;
use super::node_dirs::NodeDirs;
use super::{ClusterNode, NODE_LOCK, Own, archive, components, lock, runtime, spawn_with_same_binaries};
use crate::cluster::process_spawner::ProcessSpawner;

/// The second node. Dropping this value ends it.
pub struct SecondNode<'a> {
    first: &'a ClusterNode,
    own: Own,
}

/// Same as [`super::on_node_exclusive`], with a second node for this test only.
///
/// # Panics
/// Same as [`super::on_node`].
pub fn on_two_nodes(test: impl AsyncFnOnce(&'static ClusterNode, &SecondNode<'_>) + Send + 'static) {
    let _exclusive = NODE_LOCK.write().unwrap_or_else(PoisonError::into_inner);
    let Some(first) = super::shared() else { return };
    if !first.api().is_own_cluster() {
        return;
    }
    let outcome = spawn_with_same_binaries(move || {
        let second = SecondNode::start(first);
        first.enter();
        runtime().block_on(test(first, &second));
    });
    if let Err(panic) = outcome.join() {
        std::panic::resume_unwind(panic);
    }
}

impl<'a> SecondNode<'a> {
    fn start(first: &'a ClusterNode) -> SecondNode<'a> {
        let at_first = first.own.as_ref().expect("a node of ours");
        let plane = first.api().own.as_ref().expect("a cluster of ours");
        let spawner =
            ProcessSpawner::isolated().unwrap_or_else(|e| panic!("namespaces for a second node: {e}"));
        let below = || Cgroup::below(NodeDirs::Second.name());
        let own = Own::prepare(at_first.layout.binaries.clone(), spawner, NodeDirs::Second, below);
        let second = SecondNode { first, own };
        second.join();
        second.own.inside(async || {
            second.own.add("containerd", components::containerd(&second.own.layout));
            second.own.start_node(plane).await;
            second.own.ready(first.api()).await;
        });
        second
    }

    /// Name of the node.
    pub fn name(&self) -> &'static str {
        self.own.layout.dirs.name()
    }

    /// As [`ClusterNode::image`].
    pub fn image(&self, name: &str) -> Option<()> {
        self.own.import(&archive(name)?);
        Some(())
    }

    /// The last lines of a component's log.
    pub fn log(&self, component: &str) -> String {
        lock(&self.own.running).components.get(component).map(|one| one.tail()).unwrap_or_default()
    }

    /// Simulates the loss of the node: sets its link down and freezes its kubelet and every process of its pods.
    pub fn disconnect(&self) {
        self.in_first(&["link", "set", LINK, "down"]);
        self.stop(true);
    }

    /// Ends the simulated loss: the processes continue and the link is up.
    pub fn find(&self) {
        self.stop(false);
        self.route();
    }

    fn stop(&self, stopped: bool) {
        let running = lock(&self.own.running);
        running.components["kubelet"].signal(if stopped { Signal::STOP } else { Signal::CONT });
        running.cgroup.as_ref().expect("it was made first").freeze(stopped);
    }

    /// Makes the link and its routes.
    fn join(&self) {
        let there = lock(&self.own.running).components["init"].pid().to_string();
        let veth = ["link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", &there];
        self.in_first(&veth);
        self.in_first(&["address", "add", &format!("{}/24", NodeDirs::First.end()), "dev", LINK]);
        self.in_second(&["address", "add", &format!("{}/24", NodeDirs::Second.end()), "dev", LINK]);
        self.route();
    }

    /// Sets the link up and restores its routes: the kernel drops the routes of a link that is down.
    fn route(&self) {
        let of = |place: NodeDirs| format!("{}.0/24", place.prefix());
        self.in_first(&["link", "set", LINK, "up"]);
        self.in_second(&["link", "set", LINK, "up"]);
        self.in_first(&["route", "replace", &of(NodeDirs::Second), "via", NodeDirs::Second.end()]);
        self.in_second(&["route", "replace", &of(NodeDirs::First), "via", NodeDirs::First.end()]);
    }

    fn in_first(&self, arguments: &[&str]) {
        ip(self.first.own.as_ref().expect("a node of ours"), arguments);
    }

    fn in_second(&self, arguments: &[&str]) {
        ip(&self.own, arguments);
    }
}

/// Name of the link at both ends.
const LINK: &str = "link0";

/// Runs `ip` in a node's network.
fn ip(own: &Own, arguments: &[&str]) {
    let output = own.inside(async || Command::new("ip").args(arguments).output().expect("ip starts"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ip {}: {said}", arguments.join(" "));
}

impl Drop for SecondNode<'_> {
    /// Removes the node, so that the next test has one node.
    fn drop(&mut self) {
        lock(&self.own.running).end();
        let (first, name) = (self.first, self.own.layout.dirs.name());
        first.own.as_ref().expect("a node of ours").inside(async || {
            let nodes = kube::Api::<NodeObject>::all(first.api().client().await);
            if let Err(error) = nodes.delete(name, &DeleteParams::default()).await {
                eprintln!("the second node stays in the cluster: {error}");
            }
        });
    }
}
