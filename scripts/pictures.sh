#!/bin/bash
# Makes the pictures of the documentation: runs the demo, and shows what people see of it.
#
# usage: scripts/pictures.sh
#
#   docs/demo.png     the demo's plot
#   docs/page.png     the page of `memtide web`, while the demo runs
#   docs/top.png      `memtide top` with the demo's journal
#   docs/report.png   `memtide report` of it
#
# It needs a debug build, Chromium, tmux and aha, and takes about three minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly COLUMNS_SHOWN=100 ROWS_SHOWN=30
# The page is shown this many seconds after memtide's start, once a guest is getting more memory.
readonly PAGE_AFTER=45
programs=$PWD/${CARGO_TARGET_DIR:-target}/debug
memtide=$programs/memtide
work=$(mktemp -d)
lab= web=
end() {
  [ -z "$web" ] || kill "$web" 2>/dev/null || true
  [ -z "$lab" ] || kill "$lab" 2>/dev/null || true
  tmux -S "$work/tmux" kill-server 2>/dev/null || true
  rm -rf "$work"
}
trap end EXIT
export TZ=UTC

# shoot ADDRESS PICTURE WIDTH,HEIGHT
shoot() {
  timeout 60 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/chromium" --window-size="$3" \
    --virtual-time-budget=3000 --screenshot="$2" "$1" 2>"$work/chromium.log" || { cat "$work/chromium.log" >&2; exit 1; }
}

# --- the demo, and the page while it runs ----------------------------------------------------------------------------

touch "$work/begin"
"$programs/memtide-lab" demo >"$work/lab.log" 2>&1 &
lab=$!
configuration=
while [ -z "$configuration" ]; do
  kill -0 "$lab" 2>/dev/null || { cat "$work/lab.log" >&2; exit 1; }
  sleep 1
  configuration=$(find target/lab/runs/demo-* -newer "$work/begin" -name memtide.toml 2>/dev/null | head -n 1)
done
"$memtide" web --config "$configuration" >"$work/address" 2>/dev/null &
web=$!
sleep "$PAGE_AFTER"
until "$memtide" status --config "$configuration" | grep -q 'getting more'; do
  kill -0 "$lab" 2>/dev/null || { cat "$work/lab.log" >&2; exit 1; }
  sleep 0.2
done
at=$(date +%H:%M:%S)
shoot "$(cat "$work/address")" docs/page.png 1200,1000
kill "$web"
web=
wait "$lab"
lab=
cp target/lab/demo/plot.png docs/demo.png

# --- what remains of it ----------------------------------------------------------------------------------------------

journal=$(dirname "$configuration")/journal
"$memtide" report --from "$journal" -o "$work/report.html"
shoot "file://$work/report.html" docs/report.png 1100,900

# The moment at which that guest was getting memory, a few seconds before the picture of the page.
tmux -S "$work/tmux" new-session -d -x "$COLUMNS_SHOWN" -y "$ROWS_SHOWN" \
  "COLORTERM=truecolor TERM=xterm-256color $memtide top --from $journal --at $at"
# The graph is filled in small portions.
until tmux -S "$work/tmux" capture-pane -p >"$work/screen"; grep -q '^GUEST' "$work/screen" && cmp -s "$work/screen" "$work/before"; do
  cp "$work/screen" "$work/before"
  sleep 1
done
{
  echo '<meta charset="utf-8"><body style="margin:0;background:#14181c"><pre style="margin:0;padding:14px;color:#dfe6ec;font:15px/18px DejaVu Sans Mono">'
  tmux -S "$work/tmux" capture-pane -p -e | aha --no-header
  echo '</pre>'
} >"$work/top.html"
shoot "file://$work/top.html" docs/top.png 940,570
