#!/usr/bin/env bash
# Does what README.md says, on a machine that has nothing of Sluice yet, with a stopwatch for each step: clone, build, the first
# picture (the page shows three tenants that answer), the first answer through the curl line that the demo prints, the demo's
# table, and with --test the tests.
#
#   scripts/first-minutes.sh [--from REPOSITORY] [--folder DIR] [--empty-cargo-home] [--test]
#
#   --from REPOSITORY    what to clone (default: the repository of this script)
#   --folder DIR         where to work; must not exist yet, and stays (default: a temporary folder, which goes)
#   --empty-cargo-home   download all crates: a CARGO_HOME in the folder, with nothing of yours but config.toml
#   --test               also run `cargo xtask test`, which takes about half an hour
#
# Exit status: 0 if all steps succeeded. The table on standard output has the steps that did.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repository=$(dirname "$here")
folder=
empty_cargo_home=false
with_tests=false
# For a step that only waits: an answer, a page. The build has no limit.
patience_s=300

fail() {
    echo "first-minutes: FAILED: $*" >&2
    exit 1
}

while (($#)); do
    case $1 in
        --from) repository=${2:?--from needs a REPOSITORY}; shift ;;
        --folder) folder=${2:?--folder needs a DIR}; shift ;;
        --empty-cargo-home) empty_cargo_home=true ;;
        --test) with_tests=true ;;
        *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
    esac
    shift
done
for program in git cargo cc curl; do
    command -v "$program" >/dev/null || fail "$program is missing"
done

demo=
temporary=
cleanup() {
    # The whole group: as long as the demo is built, compilers run in it.
    if [[ -n $demo ]] && kill -TERM -- "-$demo" 2>/dev/null; then
        wait "$demo" || true
        # At most 10 s: where no process collects orphans, the group keeps dead ones.
        for _ in {1..100}; do
            kill -0 -- "-$demo" 2>/dev/null || break
            sleep 0.1
        done
    fi
    if [[ -n $temporary ]]; then rm -rf "$temporary"; fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ -z $folder ]]; then
    temporary=$(mktemp -d)
    folder=$temporary
else
    [[ ! -e $folder ]] || fail "$folder exists"
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
fi
# Nothing that was built, made or chosen before.
unset CARGO_TARGET_DIR SLUICE_BIN_DIR SLUICE_RUNTIME_DIR SLUICE_CACHE
export XDG_CACHE_HOME=$folder/cache
if $empty_cargo_home; then
    old=${CARGO_HOME:-$HOME/.cargo}
    mkdir "$folder/cargo-home"
    if [[ -f $old/config.toml ]]; then cp "$old/config.toml" "$folder/cargo-home/"; fi
    export CARGO_HOME=$folder/cargo-home
fi

now_ms() { date +%s%3N; }
begun=$(now_ms)
last=$begun
step() {
    local now
    now=$(now_ms)
    if ((last == begun)); then printf '%-42s %12s %18s\n' step 'took, s' 'since the clone, s'; fi
    printf '%-42s %12s %18s\n' "$1" "$(seconds $((now - last)))" "$(seconds $((now - begun)))"
    last=$now
}
seconds() { printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100)); }

# Waits until the command line succeeds; the demo must live until then. $1: what is waited for, $2: seconds, or `forever`.
wait_for() {
    local what=$1 limit=$2 since=$SECONDS
    shift 2
    until "$@"; do
        kill -0 "$demo" 2>/dev/null || { cat "$folder/demo.err" >&2; fail "the demo ended before $what"; }
        if [[ $limit != forever ]] && ((SECONDS - since > limit)); then fail "no $what within $limit s"; fi
        sleep 0.2
    done
}
line() { sed -n "s|^$1||p" "$folder/demo.out" | head -n 1; }
says() { [[ -n $(line "$1") ]]; }
has_picture() {
    local sent
    sent=$(curl -sf --max-time 5 "$(line 'page ')v1/page" | grep -o '"answers":true' | wc -l) || return 1
    ((sent >= 3))
}

git clone --quiet "$repository" "$folder/sluice"
cd "$folder/sluice"
step "git clone"
# `set -m` gives the demo a process group of its own.
set -m
cargo xtask demo </dev/null >"$folder/demo.out" 2>"$folder/demo.err" &
demo=$!
set +m
wait_for "page" forever says 'page '
step "cargo xtask demo: built, prints its page"
wait_for "picture of three tenants" "$patience_s" has_picture
step "the page shows three tenants"
wait_for "curl line" "$patience_s" says '  ask a tenant: '
answer=$(sh -c "$(line '  ask a tenant: ')" 2>/dev/null) || fail "the curl line has no answer: $(line '  ask a tenant: ')"
[[ $answer == *'"completion_tokens":'[1-9]* ]] || fail "the curl line's answer has no token: $answer"
step "the first curl answer"
wait "$demo" || { cat "$folder/demo.err" >&2; fail "the demo ended with status $?"; }
demo=
step "the demo's table"
if $with_tests; then
    cargo xtask test >"$folder/test.out" 2>&1 || { tail -n 60 "$folder/test.out" >&2; fail "cargo xtask test"; }
    step "cargo xtask test: green"
fi
echo
tail -n 12 "$folder/demo.out"
