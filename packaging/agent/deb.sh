#!/bin/bash
# Makes the Debian package for guests: target/deb/memtide-agent_VERSION_ARCH.deb. Run it as `make deb-agent`, which builds first.
#
# usage: packaging/agent/deb.sh PROGRAM
#
# PROGRAM is the static memtide-agent. Further settings are those of packaging/deb.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
umask 022

program=$(realpath "$1")
target=$(realpath "${CARGO_TARGET_DIR:-target}")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)-${DEB_REVISION:-1}
architecture=$(dpkg --print-architecture)
maintainer="${DEBFULLNAME:-memtide} <${DEBEMAIL:-packages@memtide.invalid}>"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

root=$target/deb/agent
package=$target/deb/memtide-agent_${version}_$architecture.deb
rm -rf "$root" "$target"/deb/memtide-agent_*.deb
mkdir -p "$root/DEBIAN"

install -D -m 0755 -t "$root/usr/bin" "$program"
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root/usr/bin/memtide-agent"
install -D -m 0644 -t "$root/usr/lib/systemd/system" packaging/agent/memtide-agent.service
install -D -m 0644 -t "$root/etc" packaging/agent/memtide-agent.toml
install -D -m 0644 -t "$root/usr/share/man/man8" packaging/agent/memtide-agent.8
gzip -9n "$root/usr/share/man/man8/memtide-agent.8"
install -D -m 0644 -t "$root/usr/share/doc/memtide-agent" packaging/debian/copyright

cat >"$root/DEBIAN/control" <<END
Package: memtide-agent
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size --exclude DEBIAN "$root" | cut -f 1)
Section: admin
Priority: optional
Description: agent of the memory manager memtide, for virtual machines
 memtide manages the memory of a host's virtual machines. This program runs
 inside one of them. It tells the host how its kernel does, and drops cold page
 cache if it is asked to, so that the host need not take memory blindly. The
 guest's administrator bounds what the host may ask for.
END
echo /etc/memtide-agent.toml >"$root/DEBIAN/conffiles"
install -m 0755 -t "$root/DEBIAN" packaging/agent/{postinst,prerm}
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
rm -rf "$root"
echo "$package"
