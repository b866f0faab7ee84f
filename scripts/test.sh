#!/bin/bash
# Runs all tests, and counts them: the last line says how many passed, failed and were skipped. Each skipped one is named with its reason.
#
# usage: scripts/test.sh [ARGUMENTS OF cargo test...]
#
# A test that finds out only when it runs that this machine lacks something adds a line to the file in MEMTIDE_SKIPPED: "passed" or "ignored",
# as its runner counts it, its name, and the reason (crates/testing). The long tests run on request only (make test-long), and do not count.
set -uo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
export MEMTIDE_SKIPPED=$PWD/target/skipped
[ "${target#/}" = "$target" ] || MEMTIDE_SKIPPED=$target/skipped
log=${MEMTIDE_SKIPPED%/*}/test.log
mkdir -p "${log%/*}"
: >"$MEMTIDE_SKIPPED"

scripts/step.sh "running the tests" 720 cargo test --workspace --no-fail-fast "$@" 2>&1 | tee "$log"
code=${PIPESTATUS[0]}

# sum WORD: over all test programs.
sum() { sed -n "s/^test result: .*[ ;]\([0-9]*\) $1;.*$/\1/p" "$log" | awk '{ all += $1 } END { print all + 0 }'; }
skipped=$(sort -u "$MEMTIDE_SKIPPED")
# A test may skip several parts.
count() { grep "^$1 " <<<"$skipped" | sed 's/: .*//' | sort -u | wc -l; }

echo
sed -n 's/^[a-z]* /skipped: /p' <<<"$skipped"
left_out=$(($(sum ignored) - $(count ignored)))
[ $left_out -le 0 ] || echo "left out: $left_out long tests, which run on request: make test-long"
echo "$(($(sum passed) - $(count passed))) passed, $(sum failed) failed, $(($(count passed) + $(count ignored))) skipped"
exit "$code"
