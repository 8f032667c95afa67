#!/bin/sh
# The suites against a cluster of kind on this machine (Linux): makes the cluster, loads the images, runs the tests, and takes
# the cluster away again. See docs/testing-cluster.md. Checked against the sources of kind 0.33, not run.
#
#   e2e/kind.sh [NAME OF A TEST ...]
#
# KIND_IMAGE: the node's image, Kubernetes 1.34 or newer; without it kind's own.
set -eu
cd "$(dirname "$0")/.."
for program in kind docker cargo rustc sudo nsenter strace ip; do
    command -v "$program" >/dev/null || { echo "e2e/kind.sh: $program is not installed" >&2; exit 1; }
done

cluster=sluice-e2e
if kind get clusters | grep -qx "$cluster"; then
    echo "e2e/kind.sh: there is a cluster $cluster already: kind delete cluster --name $cluster" >&2
    exit 1
fi
work=$(mktemp -d)
target=${CARGO_TARGET_DIR:-$PWD/target}
end() {
    kind delete cluster --name "$cluster"
    sudo rm -rf "$work"
    # Tests that ran as root have made files there.
    if [ -d "$target/tmp" ]; then sudo chown -R "$(id -u):$(id -g)" "$target/tmp"; fi
}

echo "e2e/kind.sh: binaries and images" >&2
SLUICE_KUBE_BIN=$(cargo xtask kube --print --tier api)
SLUICE_BIN_DIR=$target/debug
SLUICE_IMAGES=$target/debug/images
SLUICE_KUBECONFIG=$work/kubeconfig
SLUICE_LOAD_IMAGE="$(command -v kind) load image-archive --name $cluster"
export SLUICE_KUBE_BIN SLUICE_BIN_DIR SLUICE_IMAGES SLUICE_KUBECONFIG SLUICE_LOAD_IMAGE
cargo build --workspace --bins
cargo xtask image --from "$SLUICE_BIN_DIR" --to "$SLUICE_IMAGES"

echo "e2e/kind.sh: the cluster $cluster" >&2
trap end EXIT
trap 'exit 1' INT TERM
kind create cluster --name "$cluster" --kubeconfig "$SLUICE_KUBECONFIG" --wait 3m ${KIND_IMAGE:+--image "$KIND_IMAGE"}
for image in "$SLUICE_IMAGES"/*.tar; do
    kind load image-archive "$image" --name "$cluster"
done

# The tests are in the node's network: Services and pods are asked by their addresses, and policies let a pod's own node in.
# And they are root, for they stop and kill processes of pods.
node=$cluster-control-plane
pid=$(docker inspect -f '{{.State.Pid}}' "$node")
address=$(docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$node")
kubectl() { "$SLUICE_KUBE_BIN/kubectl" --kubeconfig "$SLUICE_KUBECONFIG" "$@"; }
kubectl config set-cluster "kind-$cluster" --server "https://$address:6443"
# sudo has a path of its own, on which rustc (for an engine of another kind) may not be.
runner="[\"sudo\", \"--preserve-env\", \"PATH=$PATH\", \"HOME=$work\", \"nsenter\", \"--net\", \"--target\", \"$pid\"]"
cargo test -p sluice-e2e --config "target.'cfg(all())'.runner = $runner" --test cluster --test node -- --nocapture "$@"
