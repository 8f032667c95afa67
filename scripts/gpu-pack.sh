#!/usr/bin/env bash
# Tests and measures Sluice on a GPU. `cargo xtask gpu-pack` puts this file next to the programs that it starts.
#
#   ./run PART FOLDER      runs part 1, 2 or 3, and leaves results in FOLDER
#
#   1   does it work at all, are the kernels' results right, and what does the hardware answer
#   2   the memory's contract in separate processes, NVIDIA's checkers, the same bits in every batch
#   3   a model served by sidecar and engine, with a kill; a profile of the kernels; the benchmark
#
# Each part ends within nine minutes. A part that did not finish (exit status 75) goes on where it stopped when it is
# started again with the same folder. Part 1 stops at the first sign that nothing works (smoke), and then no part runs.
# Part 3 does not run if the kernels' results are wrong (parity). A step of the benchmark whose time ends goes on once,
# with what is not measured yet. Exit status: 0 = all passed, 1 = a step failed, 2 = wrong arguments, 3 = refused,
# 75 = start it again.
#
# The machine needs a driver, and nothing else. cuBLASLt, compute-sanitizer, ncu and nvidia-smi are used if they are
# found; if not, the steps that need them are skipped by name.
#
#   SLUICE_GPU_PACK_SECONDS   the time of a part, seconds (default 530)
#   SLUICE_GPU_PACK_BENCH_SECONDS   the time of the first half of the benchmark, seconds (default 330)
#   SLUICE_GPU_PACK_SLOWER    factor of the time of each step (default 1), for a stand-in for the driver
#   SLUICE_GPU_PACK_QUICK     if set, probe and benchmark take fewer samples and smaller sizes, for a stand-in too
#   CUDA_HOME                 where CUDA's tools are, besides PATH and /usr/local/cuda*
set -uo pipefail

usage() {
    sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0" >&2
    exit 2
}

[ $# -eq 2 ] || usage
part=$1
case $part in 1 | 2 | 3) ;; *) usage ;; esac
mkdir -p "$2" || exit 2
pack="$(cd "$(dirname "$0")" && pwd)"
results="$(cd "$2" && pwd)"
state="$results/state.tsv"
log="$results/part$part.log"
seconds=${SLUICE_GPU_PACK_SECONDS:-530}
slower=${SLUICE_GPU_PACK_SLOWER:-1}
quick=(${SLUICE_GPU_PACK_QUICK:+--quick})
failed=0
unfinished=0
touch "$state"

# The first part unpacks the programs.
if [ -e "$pack/programs.tar.gz" ] && [ ! -e "$pack/unpacked" ]; then
    tar -xzf "$pack/programs.tar.gz" -C "$pack" && touch "$pack/unpacked" || exit 2
fi

# The result of a step that is done: ok, failed or skipped. Nothing for another one.
result_of() {
    awk -F '\t' -v name="$1" '$1 == name { print $2 }' "$state"
}

record() {
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$state"
    printf '%-14s %-8s %4s s  %s\n' "$1" "$2" "$3" "$4"
}

# step NAME SECONDS COMMAND...: runs a command once, within its time. Tests fail if none of them has passed.
step() {
    local name=$1 limit=$(($2 * slower)) start=$SECONDS status done_before logged
    shift 2
    done_before="$(result_of "$name")"
    if [ -n "$done_before" ]; then
        printf '%-14s %-8s before\n' "$name" "$done_before"
        [ "$done_before" != failed ] || failed=1
        return
    fi
    if [ $((SECONDS + limit)) -gt "$seconds" ]; then
        printf '%-14s %-8s no time is left for its %s s: start part %s again\n' "$name" waits "$limit" "$part"
        unfinished=1
        return
    fi
    printf '\n== %s: %s\n' "$name" "$*" >>"$log"
    logged=$(wc -c <"$log")
    timeout -k 5 "$limit" "$@" >>"$log" 2>&1
    status=$?
    local why="exit status $status"
    [ $status -ne 124 ] && [ $status -ne 137 ] || why="not finished in $limit s"
    # 137: it did not end by itself when its time was over.
    if { [ $status -eq 124 ] || [ $status -eq 137 ]; } && resumes "$*" && [ -z "$(result_of "$name, once")" ]; then
        record "$name, once" late $((SECONDS - start)) "$why: start part $part again"
        unfinished=1
        return
    fi
    if [ $status -eq 0 ] && runs_tests "$*" && ! test_passed_after "$logged"; then
        status=1 why="no test ran"
    fi
    if [ $status -eq 0 ]; then
        record "$name" ok $((SECONDS - start)) ""
        return
    fi
    record "$name" failed $((SECONDS - start)) "$why"
    tail -n 15 "$log"
    failed=1
}

# Whether a command runs tests. A filter that matches none of them ends with 0.
runs_tests() {
    [[ $1 == */*-tests\ * ]]
}

# Whether a command goes on where it stopped.
resumes() {
    [[ "$*" == *\ --resume* ]]
}

# Whether the log says after its first bytes that a test has passed.
test_passed_after() {
    [ "$(tail -c +$(($1 + 1)) "$log" | grep -c '[1-9][0-9]* passed')" -gt 0 ]
}

# step_with TOOL NAME SECONDS ARGUMENTS...: a step whose command starts with a tool of CUDA, if this machine has it.
step_with() {
    local tool=$1 name=$2 path
    if path="$(find_tool "$tool")"; then
        step "$name" "$3" "$path" "${@:4}"
    elif [ -z "$(result_of "$name")" ]; then
        record "$name" skipped 0 "$tool is not on this machine"
    fi
}

find_tool() {
    local folder
    command -v "$1" && return
    for folder in "${CUDA_HOME:-/usr/local/cuda}"/bin /usr/local/cuda*/bin; do
        if [ -x "$folder/$1" ]; then
            echo "$folder/$1"
            return
        fi
    done
    return 1
}

# The folder of cuBLASLt: of the loader, of a toolkit, or of a wheel of Python.
find_cublaslt() {
    local found
    found="$(ldconfig -p 2>/dev/null | awk '/libcublasLt\.so\.1[23] / { print $NF; exit }')"
    [ -n "$found" ] || found="$(ls -d "${CUDA_HOME:-/usr/local/cuda}"/lib64/libcublasLt.so.1[23] \
        /usr/local/lib/python3*/*-packages/nvidia/*/lib/libcublasLt.so.1[23] \
        /usr/lib/python3*/*-packages/nvidia/*/lib/libcublasLt.so.1[23] 2>/dev/null | head -n 1)"
    [ -n "$found" ] && dirname "$found"
}

passed() {
    [ "$(result_of "$1")" = ok ]
}

refuse() {
    echo "part $part does not run: $1 (see $state)"
    exit 3
}

kernels() {
    local name=$1 limit=$2
    shift 2
    step "$name" "$limit" env SLUICE_TEST_GPU=1 "$pack/kernels-tests" "$@"
}

# A checker of NVIDIA on all small cases of the kernels.
checked() {
    SLUICE_TEST_GPU=1 step_with compute-sanitizer "$1" 120 --tool "$1" --error-exitcode 9 \
        "$pack/kernels-tests" cuda::cases::every_kernel_passes_every_check --test-threads=1
}

export SLUICE_SHARED="$pack/shared" SLUICE_BIN_DIR="$pack" CUDA_CACHE_PATH="${TMPDIR:-/tmp}/sluice-gpu-pack-jit"
export CUDA_DEVICE_MAX_CONNECTIONS=32 RUST_BACKTRACE=1
if cublaslt="$(find_cublaslt)"; then
    export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$cublaslt"
elif [ -z "$(result_of cublaslt)" ]; then
    record cublaslt skipped 0 "libcublasLt.so.12 or .13 is not on this machine"
fi

case $part in
1)
    step_with nvidia-smi machine 20 -q
    step smoke 60 "$pack/sluice-gpu-probe" --only aliases --quick
    passed smoke || refuse "smoke has not passed"
    # What is skipped reads files of the repository, or needs the stand-in for a driver or another model.
    kernels parity 240 cuda:: --skip the_same_tests_pass_by_a_driver --skip engine_process:: \
        --skip cuda::mutants:: --skip cuda::traffic:: --skip cuda::smollm2:: \
        --skip cuda::products::products_of_cublaslt --skip cuda::cases::every_kernel_passes_every_check
    # How the library refuses wrong arguments is known of the stand-in alone.
    [ -z "$cublaslt" ] || kernels cublaslt 60 cuda::products::by_cublaslt:: --ignored --skip is_refused_by_name
    step probe 200 "$pack/sluice-gpu-probe" --only link,handles,signals "${quick[@]}" --json "$results/probe.json"
    ;;
2)
    passed smoke || refuse "smoke of part 1 has not passed"
    step conformance 120 env SLUICE_TEST_GPU=1 "$pack/memory-tests" conformance:: --test-threads=8
    kernels bits 60 cuda::invariance:: cuda::forward::bits
    for checker in memcheck racecheck synccheck initcheck; do checked $checker; done
    ;;
3)
    passed smoke || refuse "smoke of part 1 has not passed"
    passed parity || refuse "parity of part 1 has not passed"
    step model 90 env "SLUICE_TEST_JOURNAL=$results/journal" \
        "$pack/agent-tests" --ignored --exact gpu::tenant_on_a_gpu --nocapture
    SLUICE_TEST_GPU=1 step_with ncu profile 120 --kernel-name "regex:attention|gemm" --launch-count 20 \
        --section SpeedOfLight --csv "$pack/kernels-tests" cuda::forward::stories260k --test-threads=1
    bench() {
        step "$1" "$2" "$pack/sluice-gpu-bench" --only "$3" "${quick[@]}" --json "$results/bench.json" --resume "${@:4}"
    }
    bench bench "${SLUICE_GPU_PACK_BENCH_SECONDS:-330}" link,memory,attention,models,remap --profile "$results/profile.json"
    bench tenants 300 policies,two-tenants
    ;;
esac

[ $unfinished -eq 0 ] || exit 75
exit $failed
