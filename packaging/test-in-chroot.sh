#!/bin/bash
# Tests the Debian package in a bare Debian 12: installs, runs, upgrades, removes and purges it, and checks each result.
#
# usage: packaging/test-in-chroot.sh
#
# Run it by hand, as root. It needs debootstrap (not a dependency of memtide) and a Debian mirror. It builds the package twice,
# at two revisions, and tests both in a chroot below $TMPDIR. Mounts and processes have their own namespaces and end with the
# script, even if it fails. The chroot is deleted.
#
# From the environment:
#   DEBIAN_MIRROR   the mirror of Debian 12 (default: the mirror in apt's sources)
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '== %s\n' "$*"; }
die() { printf 'test-in-chroot: %s\n' "$*" >&2; exit 1; }
# check WHAT COMMAND...: prints WHAT, or exits if the command fails.
check() {
  local what=$1
  shift
  if "$@"; then printf '   ok: %s\n' "$what"; else die "not so: $what ($*)"; fi
}

[ "$(id -u)" = 0 ] || die "run as root: a chroot is made"
command -v debootstrap >/dev/null || die "needs debootstrap: apt-get install debootstrap"

# --- packages --------------------------------------------------------------------------------------------------------

if [ $# = 0 ]; then
  say "two packages"
  scratch=$(mktemp -d)
  trap 'rm -rf --one-file-system "$scratch"' EXIT
  for revision in 1 2; do
    make --silent deb DEB_REVISION=$revision >/dev/null
    mv "${CARGO_TARGET_DIR:-target}"/deb/memtide_*-${revision}_*.deb "$scratch/memtide_$revision.deb"
  done
  unshare --mount --pid --fork --kill-child --mount-proc --propagation private "$0" --inside "$scratch"
  exit
fi
[ "$1" = --inside ] || die "usage: packaging/test-in-chroot.sh"
scratch=$2

# --- a bare Debian ---------------------------------------------------------------------------------------------------

# shellcheck disable=SC2016 # apt-get expands it, not the shell
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' \
  'Created-By: Packages' 'Origin: Debian' 'Codename: bookworm' 'Component: main' | head -n 1)}
[ -n "$mirror" ] || die "found no mirror of Debian 12 in apt's sources; set DEBIAN_MIRROR"

say "a bare Debian 12"
root=$scratch/root
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$scratch/debootstrap.log" 2>&1 ||
  { tail -n 5 "$scratch/debootstrap.log" >&2; die "debootstrap failed"; }
mount -t proc proc "$root/proc"
trap 'umount "$root/proc"' EXIT
mkdir "$root/packages"
cp "$scratch"/*.deb "$root/packages/"

inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@" </dev/null; }
# apt COMMAND...: runs apt-get as an operator would. Shows its output if it fails.
apt() { inside apt-get -q -y "$@" >"$scratch/apt.log" 2>&1 || { tail -n 20 "$scratch/apt.log" >&2; die "apt-get $*"; }; }
# files: all files except the package manager's own state.
files() {
  (cd "$root" && find . -xdev \( -path ./proc -o -path ./packages -o -path ./var/log -o -path ./var/cache -o -path ./var/lib/apt \
    -o -path ./var/lib/dpkg -o -path ./run/adduser \) -prune -o -print | grep -vE '^\./etc/(group|gshadow)-?$' | sort)
}
absent() { ! test -e "$1"; }
empty() { ! test -s "$1"; }
contains() { grep -q "$2" "$1"; }
# until_true COMMAND...: waits until the command succeeds, at most ten seconds.
until_true() {
  local deadline=$((SECONDS + 10))
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 0.05
  done
}

apt update
files >"$scratch/before"

# --- install ---------------------------------------------------------------------------------------------------------

say "install"
apt install --no-install-recommends /packages/memtide_1.deb
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
check "memtide --version says $version" test "$(inside memtide --version)" = "memtide $version"
check "memtide-load --version says $version" test "$(inside memtide-load --version)" = "memtide-load $version"
for file in usr/share/man/man1/memtide{,-run,-status,-load}.1.gz usr/share/man/man5/memtide.toml.5.gz \
  usr/share/memtide/prometheus/memtide{.rules.yml,-scrape.yml,-dashboard.json} usr/lib/systemd/system/memtide-metrics{.socket,@.service} \
  usr/lib/systemd/system/memtide.service usr/share/bash-completion/completions/memtide \
  usr/share/cockpit/memtide/{manifest.json,index.html,page.js,palette.css,names.js}; do
  if [ ! -e "$root/$file" ]; then die "/$file is missing"; fi
done
printf '   ok: man pages, service, completions, files for Prometheus and the page for Cockpit are there\n'
check "the group is there" contains "$root/etc/group" "^memtide:"
check "the service will start at boot" test -L "$root/etc/systemd/system/multi-user.target.wants/memtide.service"
check "the port for Prometheus stays closed at boot" test ! -L "$root/etc/systemd/system/sockets.target.wants/memtide-metrics.socket"
check "all files are as the package says" inside dpkg --verify memtide
check "its configuration is valid" inside memtide run --check

say "run"
inside memtide run --observe >"$scratch/daemon.log" 2>&1 &
check "memtide status answers" until_true inside memtide status
inside memtide status | sed 's/^/   | /'
check "its socket is for owner and group" test "$(stat -c %a "$root/run/memtide/memtide.sock")" = 660
check "it observes" test "$(inside memtide status --json | grep -c '"mode": *"observe"')" = 1

# --- upgrade ---------------------------------------------------------------------------------------------------------

say "upgrade"
echo 'reserve = "7%"' >>"$root/etc/memtide/memtide.toml"
# What `systemctl enable` does; a bare Debian has no systemctl.
mkdir -p "$root/etc/systemd/system/sockets.target.wants"
ln -s /usr/lib/systemd/system/memtide-metrics.socket "$root/etc/systemd/system/sockets.target.wants/"
apt install --no-install-recommends /packages/memtide_2.deb
# shellcheck disable=SC2016 # dpkg-query expands it, not the shell
check "revision 2 is installed" test "$(inside dpkg-query -W -f '${Version}' memtide)" = "$version-2"
check "the configuration is as the operator left it" contains "$root/etc/memtide/memtide.toml" '^reserve = "7%"$'
check "the port for Prometheus stays open at boot" test -L "$root/etc/systemd/system/sockets.target.wants/memtide-metrics.socket"
check "the daemon of before still answers" until_true inside memtide status
daemon=$(pgrep -x memtide)
kill "$daemon"
check "it ends when told" until_true absent "$root/run/memtide/memtide.sock"
wait
inside memtide run --observe >"$scratch/daemon.log" 2>&1 &
check "the new one answers" until_true inside memtide status
kill "$(pgrep -x memtide)"
wait

# --- remove and purge ------------------------------------------------------------------------------------------------

say "remove"
apt remove memtide
check "the programs are gone" absent "$root/usr/bin/memtide"
check "the service is gone" absent "$root/usr/lib/systemd/system/memtide.service"
check "the configuration stays" contains "$root/etc/memtide/memtide.toml" '^reserve = "7%"$'
check "the journal stays" test -e "$root/var/lib/memtide/journal/000001.mtj"

say "install again, and purge"
apt install --no-install-recommends /packages/memtide_2.deb
check "the configuration is as the operator left it" contains "$root/etc/memtide/memtide.toml" '^reserve = "7%"$'
apt purge memtide
files >"$scratch/after"
diff "$scratch/before" "$scratch/after" >"$scratch/left" || sed 's/^/   /' "$scratch/left"
check "nothing is left but the group" empty "$scratch/left"

say "all is well"
