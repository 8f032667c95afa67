#!/usr/bin/env bash
# Serves SmolLM2-135M-Instruct with layers remapped and every handed-over chunk poisoned, asks it three questions through
# curl and through the `openai` Python client, streamed and not, and compares each token with smollm2-golden.json.
#
#   scripts/check-smollm2.sh [MODEL_FOLDER]      default: .cache/models/smollm2, fetched when it is absent
#
# Binaries: $SLUICE_BIN_DIR, else target/release if they are built, else target/debug.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
model=$(realpath -m "${1:-$root/.cache/models/smollm2}")
alpha=6
beta=1
patience_s=300

say() { echo "check-smollm2: $*"; }
fail() { echo "check-smollm2: FAILED: $*" >&2; exit 1; }

has_binaries() { [[ -x $1/sluice && -x $1/sluice-sidecar && -x $1/sluice-engine ]]; }

find_binaries() {
    local folder
    for folder in ${SLUICE_BIN_DIR:+"$SLUICE_BIN_DIR"} "$root/target/release" "$root/target/debug"; do
        if has_binaries "$folder"; then realpath "$folder"; return; fi
    done
    fail "the binaries are not built: cargo build --release --bins"
}

write_yaml() {
    cat > "$work/up.yaml" <<YAML
apiVersion: sluice.dev/v1alpha1
kind: GpuPool
metadata: {name: laptop}
spec:
  deviceClassName: host.sluice.dev
  device: {host: {memory: 320Mi}}
  gpus: [{name: chat}]
  hostMemoryPerGPU: 1Gi
  policy: Oneiros
---
apiVersion: sluice.dev/v1alpha1
kind: ModelTenant
metadata: {name: smol}
spec:
  poolRef: {name: laptop}
  model: {source: {type: File, file: {path: "$model"}}, maxModelLen: 2048}
  drainSeconds: 5
YAML
}

start() {
    write_yaml
    touch "$work/stdout"
    "$bin/sluice" up -f "$work/up.yaml" --port 0 --force-remap "$alpha:$beta" --poison \
        > "$work/stdout" 2> "$work/stderr" &
    up=$!
    local begun=$SECONDS
    until url=$(sed -n 's/^ready default\/smol //p' "$work/stdout") && [[ -n $url ]]; do
        kill -0 "$up" 2> /dev/null || fail "sluice up ended: $(tail -n 3 "$work/stderr")"
        ((SECONDS - begun < patience_s)) || fail "not ready after $patience_s s"
        sleep 0.1
    done
    say "ready at $url"
}

# Ends sluice up; it must end well and leave nothing in the runtime folder.
stop() {
    kill -TERM "$up"
    local status=0
    wait "$up" || status=$?
    up=
    ((status == 0)) || fail "sluice up ended with status $status: $(tail -n 3 "$work/stderr")"
    [[ -z $(ls -A "$SLUICE_RUNTIME_DIR") ]] || fail "left behind: $(ls -A "$SLUICE_RUNTIME_DIR")"
}

clean_up() {
    if [[ -n ${up:-} ]]; then
        # A failure: end it in order, so that its children end too.
        kill -TERM "$up" 2> /dev/null || true
        wait "$up" || true
    fi
    rm -rf "$work"
}

answers() { python3 "$here/smollm2_answers.py" "$model" "$@"; }

ask_with_curl() {
    local question kind
    for question in 0 1 2; do
        for kind in chat chat-stream completion completion-stream; do
            answers body "$question" "$kind" > "$work/body"
            curl --silent --show-error --no-buffer --max-time "$patience_s" -H 'content-type: application/json' \
                --data-binary @"$work/body" "$url$(answers path "$question" "$kind")" > "$work/answer" ||
                fail "curl, question $question, $kind"
            answers compare "$question" "$kind" < "$work/answer" || fail "curl, question $question, $kind"
        done
    done
    say "curl: 3 questions, chat and completion, streamed and whole: every token as expected"
}

ask_with_openai() {
    if ! { python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet openai; } > "$work/pip" 2>&1; then
        say "openai client: SKIPPED, pip cannot install it: $(tail -n 1 "$work/pip")"
        left_out=", but for the openai client, which was SKIPPED"
        return
    fi
    "$work/venv/bin/python" "$here/smollm2_answers.py" "$model" openai "$url/v1" || fail "openai client"
    say "openai client: 3 questions, streamed and whole: every token as expected"
}

check_layers() {
    "$bin/sluice" top --once --json > "$work/state"
    python3 - "$work/state" "$alpha" "$beta" <<'PY'
import json, sys
[state] = json.load(open(sys.argv[1]))
remap, (alpha, beta) = state["remap"], map(int, sys.argv[2:])
assert (remap["alpha"], remap["beta"]) == (alpha, beta), remap
moving = [layer for layer in state["layers"] if isinstance(layer, dict) and "Moving" in layer]
assert len(moving) == alpha + beta, state["layers"]
copied, steps = state["figures"]["copied_bytes_total"], state["figures"]["steps_total"]
# All weights once, and the moving layers again for nearly every step.
assert steps > 100 and copied > steps * 5 * 7_000_000, (steps, copied)
print(f"check-smollm2: {len(moving)} of {len(state['layers'])} layers shared {beta} slot, "
      f"{copied / 2**30:.1f} GiB were copied in over {steps} steps")
PY
}

bin=$(find_binaries)
[[ -f $model/source.json ]] || "$here/fetch-smollm2.py" --out "$model"
work=$(mktemp -d)
trap clean_up EXIT
export SLUICE_RUNTIME_DIR=$work/run SLUICE_BIN_DIR=$bin
mkdir "$SLUICE_RUNTIME_DIR"
say "binaries of $bin"
start
ask_with_curl
ask_with_openai
check_layers || fail "the layers did not move as forced"
stop
say "passed${left_out:-}"
