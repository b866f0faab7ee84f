#!/bin/bash
# Runs a command, and says every half minute what is going on and how much longer it may take.
#
# usage: scripts/step.sh WHAT SECONDS COMMAND...
#
#   WHAT      what is going on, for people
#   SECONDS   how long it takes on two idle cores, from nothing. If it took longer here before, the script expects that.
#
# Prints the time that the command took, and exits with its exit code.
set -uo pipefail

readonly EVERY=30
what=$1 expected=$2
shift 2
times=${CARGO_TARGET_DIR:-target}/step-seconds
known=$(sed -n "s/^\([0-9]*\) $what\$/\1/p" "$times" 2>/dev/null | tail -n 1)
[ "${known:-0}" -le "$expected" ] || expected=$known

# minutes SECONDS: for people.
minutes() { if [ "$1" -lt 90 ]; then echo "$1 s"; else echo "$((($1 + 30) / 60)) min"; fi; }
say() { printf '== %s: %s\n' "$what" "$*"; }
# The command may be in the middle of a line.
say_meanwhile() { echo && say "$@"; }

watch() {
  local left
  # sleep must not outlive the script: wait lets the signal through, and the trap ends it.
  trap 'kill $sleeping 2>/dev/null; exit' TERM
  while kill -0 $$ 2>/dev/null; do
    sleep $EVERY &
    sleeping=$!
    wait $sleeping
    left=$((expected - SECONDS))
    if [ $left -gt 0 ]; then
      say_meanwhile "$(minutes $SECONDS) so far, about $(minutes $left) more"
    else
      say_meanwhile "$(minutes $SECONDS) so far, longer than the expected $(minutes "$expected")"
    fi
  done
}

say "about $(minutes "$expected")"
watch &
watching=$!
# Nothing outlives this script: neither the watch nor the command.
# shellcheck disable=SC2154 # `children` is read in the trap
trap 'read -r children <"/proc/$$/task/$$/children"; kill $children 2>/dev/null' EXIT
trap 'exit 143' TERM HUP
trap 'exit 130' INT
# In the background: bash runs a trap only between two commands, and during a wait.
"$@" <&0 &
wait $!
code=$?
kill $watching 2>/dev/null
wait $watching 2>/dev/null
if [ $code = 0 ]; then
  say "done in $(minutes $SECONDS)"
  if [ $SECONDS -gt "$expected" ]; then
    mkdir -p "${times%/*}" && { grep -v " $what\$" "$times" 2>/dev/null; echo "$SECONDS $what"; } >"$times.new" && mv "$times.new" "$times"
  fi
else
  say "failed after $(minutes $SECONDS)"
fi
exit $code
