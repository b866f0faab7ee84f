#!/bin/bash
# Makes a Debian package from the built files: target/deb/memtide_VERSION_ARCH.deb. Run it as `make deb`, which builds first.
#
# usage: packaging/deb.sh
#
# From the environment:
#   DEB_REVISION           the package's revision of this version (default 1)
#   DEBFULLNAME, DEBEMAIL  the maintainer
#   SOURCE_DATE_EPOCH      the date (default: the date of the last commit); the same date gives the same bytes
#   CARGO_TARGET_DIR       the build directory (default target)
#
# The files are those of `make install`. Needs dpkg-dev; needs no root.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

target=$(realpath "${CARGO_TARGET_DIR:-target}")
upstream=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
version=$upstream-${DEB_REVISION:-1}
architecture=$(dpkg --print-architecture)
maintainer="${DEBFULLNAME:-memtide} <${DEBEMAIL:-packages@memtide.invalid}>"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

work=$target/deb/work
root=$work/root
package=$target/deb/memtide_${version}_$architecture.deb
doc=$root/usr/share/doc/memtide
rm -rf "$work" "$target"/deb/memtide_*.deb
mkdir -p "$root/DEBIAN" "$doc" "$work/debian"

# --- files -----------------------------------------------------------------------------------------------------------

make --silent install CARGO_TARGET_DIR="$target" DESTDIR="$root" PREFIX=/usr ZSHDIR=/usr/share/zsh/vendor-completions
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root"/usr/bin/*
find "$root/usr/share/man" -type f -exec gzip -9n {} +

# The licences of all linked libraries.
{
  cat packaging/debian/copyright
  cargo tree --locked --package memtide --package memtide-load --edges normal --no-dedupe --prefix none \
    --format ' {p}: {l}' | sed '/^ memtide/d; s/ (proc-macro)//' | sort -u
} >"$doc/copyright"

# Converts CHANGELOG.md to Debian's format: a heading for each version, two spaces and a star for each list item.
changelog() {
  local date
  date=$(date --utc --date "@$SOURCE_DATE_EPOCH" --rfc-email)
  awk -v newest="$version" -v trailer=" -- $maintainer  $date" '
    function paragraph(  words, count, i, line) {
      count = split(text, words, " ")
      text = ""
      line = "  *"
      for (i = 1; i <= count; i++) {
        if (length(line) + length(words[i]) > 78) { print line; line = "   " }
        line = line " " words[i]
      }
      if (count) print line
    }
    function finish() { paragraph(); if (entries++) print "\n" trailer "\n" }
    /^## /  { finish(); print "memtide (" (entries == 1 ? newest : $2 "-1") ") unstable; urgency=medium\n"; next }
    /^- /   { paragraph(); text = substr($0, 3); next }
    /^  /   { if (entries) text = text " " $0; next }
    END     { finish() }
  ' CHANGELOG.md
}
changelog | gzip -9n >"$doc/changelog.Debian.gz"
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"

# --- control ---------------------------------------------------------------------------------------------------------

# dpkg-shlibdeps finds the libraries of the programs. It needs a source package around it.
printf 'Source: memtide\n\nPackage: memtide\nArchitecture: any\n' >"$work/debian/control"
libraries=$(cd "$work" && dpkg-shlibdeps -O -eroot/usr/bin/memtide -eroot/usr/bin/memtide-load | sed -n 's/^shlibs:Depends=//p')
[ -n "$libraries" ] || { echo "deb: found no libraries that the programs need" >&2; exit 1; }

cat >"$root/DEBIAN/control" <<END
Package: memtide
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size --exclude DEBIAN "$root" | cut -f 1)
Depends: $libraries, adduser
Suggests: qemu-system-x86, cockpit
Section: admin
Priority: optional
Description: memory manager for the virtual machines of a host
 memtide watches what each QEMU guest of this host uses and how it stalls, and
 moves memory from guests that do not need it to guests that do, through the
 balloon whose driver every Linux guest has already. Every change has a reason
 that is written down.
 .
 As installed it only observes and changes nothing. Also here: memtide-load, a
 program that uses memory at a known rate and proves that no byte has changed.
END
echo /etc/memtide/memtide.toml >"$root/DEBIAN/conffiles"
install -m 0755 -t "$root/DEBIAN" packaging/debian/{postinst,prerm,postrm}
(cd "$root" && find etc usr -type f -print0 | sort -z | xargs -0 md5sum) | sed '/ etc\//d' >"$root/DEBIAN/md5sums"

# --- package ---------------------------------------------------------------------------------------------------------

dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
rm -rf "$work"
echo "$package"
