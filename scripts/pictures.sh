#!/bin/bash
# Makes the pictures of the documentation: docs/web.png, docs/report.png and docs/top.txt, of the demo's four real guests.
#
# usage: scripts/pictures.sh
#
# It runs `memtide-lab demo` (about three minutes), looks at it in a browser while memory moves, and shows its journal in a terminal of 80
# columns. It needs Chromium and tmux, and what the demo needs.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
bin=$target/debug
work=$(mktemp -d)
jobs=()
trap 'kill "${jobs[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

# shot URL FILE HEIGHT
shot() {
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=1 --user-data-dir="$work/chromium" \
    --window-size="1100,$3" --timeout=6000 --screenshot="$2" "$1" 2>"$work/chromium.log" || { cat "$work/chromium.log" >&2; exit 1; }
}

touch "$work/begun"
"$bin/memtide-lab" demo &
jobs+=($!)
demo=$!

# The daemon of the second half.
socket=
while [ -z "$socket" ]; do
  kill -0 "$demo"
  sleep 1
  socket=$(find target/lab/runs -path '*/demo-*' -name memtide.sock -newer "$work/begun" | head -n 1)
done
"$bin/memtide" web --socket "$socket" >"$work/url" &
jobs+=($!)
until grep -q http "$work/url"; do sleep 1; done
# Until guests have grown and given.
until [ "$("$bin/memtide" status --socket "$socket" | grep -c 'needs\|idle')" -ge 3 ] || ! kill -0 "$demo"; do sleep 1; done
sleep 25
shot "$(grep -o 'http[^ ]*' "$work/url")" docs/web.png 1000
wait "$demo"

journal=$(find "$(dirname "$socket")" -type d -name 'journal*' | head -n 1)
"$bin/memtide" report --from "$journal" -o "$work/report.html"
shot "file://$work/report.html" docs/report.png 1000
tmux -L memtide-pictures new-session -d -x 80 -y 24 "$bin/memtide top --from $journal --at +60s"
sleep 3
tmux -L memtide-pictures capture-pane -p >docs/top.txt
tmux -L memtide-pictures kill-server
