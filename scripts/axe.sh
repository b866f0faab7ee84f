#!/bin/bash
# Fetches axe-core, which finds what keeps people from using a page, for the tests of the page. It is not part of memtide (licence: MPL-2.0).
#
# usage: scripts/axe.sh
#
# Writes axe.min.js into the target directory's tmp, where the tests look for it. Uses the network only if it is not there.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VERSION=4.14.1
readonly SHA256=e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
readonly ARCHIVE=axe-core-$VERSION.tgz

directory=${CARGO_TARGET_DIR:-target}/tmp
[ ! -e "$directory/axe.min.js" ] || exit 0
mkdir -p "$directory"
cd "$directory"
if command -v npm >/dev/null; then
  npm pack --silent "axe-core@$VERSION" >/dev/null
else
  curl -fsSLO "https://registry.npmjs.org/axe-core/-/$ARCHIVE"
fi
echo "$SHA256  $ARCHIVE" | sha256sum --check --quiet
tar -xzf "$ARCHIVE" --strip-components=1 package/axe.min.js
rm "$ARCHIVE"
