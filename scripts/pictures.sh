#!/bin/bash
# Makes docs/report.png: what `memtide report` shows of the demo's journal (traces/demo-elastic.mtj).
#
# usage: scripts/pictures.sh
#
# It needs a debug build and Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly JOURNAL=traces/demo-elastic.mtj
memtide=$PWD/${CARGO_TARGET_DIR:-target}/debug/memtide
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TZ=UTC

"$memtide" report --from "$JOURNAL" -o "$work/report.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/chromium" --window-size=1100,900 \
  --timeout=6000 --screenshot=docs/report.png "file://$work/report.html" 2>"$work/chromium.log" || { cat "$work/chromium.log" >&2; exit 1; }
