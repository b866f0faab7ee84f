#!/bin/bash
# Runs commands in a bare Debian 12, in a fresh clone of this repository, as a newcomer would.
#
# usage: scripts/bare.sh [--as root|user|container] [--kept] COMMAND...
#
#   --as root        the default: root, with the machine's devices and cgroups
#   --as user        an ordinary user who may use sudo without a password
#   --as container   root as in a container: no /dev/kvm, no cgroups, no CAP_SYS_ADMIN
#   --kept           reuses the system of the last run with --kept, with its packages and builds
#
# Each COMMAND is one argument for the shell and runs in the clone: scripts/bare.sh 'make demo' 'make test'. The clone has the last
# commit, not the uncommitted changes. The first command that fails ends the run with its exit code. If processes are left after
# the last command, the exit code is 5. If this machine cannot make a bare Debian, the exit code is 4; the last line has the reason.
#
# Of the calling machine's files, only its settings for package registries are visible: apt's mirror and options, name resolution, its
# own trust roots, cargo's configuration, and the variables for these. Mounts end with the script, and so do all processes whose root
# is the bare Debian. It is made once for each recipe (below: RECIPE) and kept. Each run works in a copy of it.
#
# From the environment:
#   MEMTIDE_BARE    where the bare Debian is kept (default: /var/cache/memtide-bare)
#   DEBIAN_MIRROR   the mirror of Debian 12 (default: the mirror in apt's sources)
set -euo pipefail

readonly RECIPE='debootstrap --variant=minbase --include=git,make,ca-certificates bookworm'
readonly UNAVAILABLE=4 LEFT_BEHIND=5 ENDS_WITHIN=10 NEWCOMER=newcomer
# What Docker lets root in a container do.
readonly CONTAINER=chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw,sys_chroot,mknod,audit_write,setfcap

say() { printf 'bare: %s\n' "$*"; }
unavailable() { printf 'bare: no bare Debian 12: %s\n' "$*" >&2; exit $UNAVAILABLE; }
usage() { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }

# --- in the namespaces: run_inside ROOT AS COMMAND... ----------------------------------------------------------------

# mount_kernel ROOT AS: mounts /proc, /dev and /sys.
mount_kernel() {
  local root=$1 device
  # `unshare` insists on a root that is a mount.
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  if [ "$2" != container ]; then
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    return
  fi
  mount -t tmpfs -o mode=755 dev "$root/dev"
  for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  ln -s /proc/self/fd "$root/dev/fd"
  mkdir "$root/dev/pts" "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
  ln -s pts/ptmx "$root/dev/ptmx"
  mount -t tmpfs shm "$root/dev/shm"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t tmpfs -o ro none "$root/sys/fs/cgroup"
  mount --bind -o ro "$root/proc/sys" "$root/proc/sys"
}

# registries: the variables of the calling machine that say where packages are.
# registries ROOT. A path that is not in the bare Debian says nothing there.
registries() {
  local line value
  env | grep -iE '^((https?|no|all|ftp)_proxy|CARGO_(HTTP|NET|REGISTR|SOURCE)[A-Z_]*|SSL_CERT_(FILE|DIR)|CURL_CA_BUNDLE|GIT_SSL_CAINFO|DEBIAN_MIRROR)=' |
    while IFS= read -r line; do
      value=${line#*=}
      [ "${value#/}" = "$value" ] || [ -e "$1$value" ] || continue
      printf '%s\n' "$line"
    done || true
}

run_inside() {
  local root=$1 as=$2 command begun variables code=0 home=/root
  shift 2
  mount_kernel "$root" "$as"
  mapfile -t variables < <(registries "$root")
  local enter=(chroot "$root")
  case "$as" in
    user) enter=(chroot --userspec=$NEWCOMER:$NEWCOMER "$root") home=/home/$NEWCOMER ;;
    container) enter=(setpriv --bounding-set "-all$(printf ',+%s' ${CONTAINER//,/ })" chroot "$root") ;;
  esac
  for command in "$@"; do
    say "\$ $command"
    begun=$SECONDS
    # A background job ignores interrupts, and so would everything below it.
    "${enter[@]}" env --default-signal=INT,QUIT -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=$home TERM=dumb "${variables[@]}" \
      bash -c "cd ~/memtide && $command" </dev/null || code=$?
    say "\$ $command: exit code $code after $((SECONDS - begun)) s"
    [ $code = 0 ] || exit $code
  done
  local left deadline=$((SECONDS + ENDS_WITHIN))
  left=$(processes "$root")
  # What was just killed takes a moment.
  while [ -n "$left" ] && [ $SECONDS -lt $deadline ]; do
    sleep 0.2
    left=$(processes "$root")
  done
  [ -z "$left" ] || { say "processes are left behind:" && show "$left" && exit $LEFT_BEHIND; }
}

# processes ROOT: those whose root this is. show PIDS: their command lines.
processes() {
  local dir
  for dir in /proc/[0-9]*; do
    [ "$(readlink "$dir/root" 2>/dev/null)" != "$1" ] || echo "${dir#/proc/}"
  done
}
show() {
  local pid
  for pid in $1; do printf '   %s %s\n' "$pid" "$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | cut -c1-150)"; done
}

if [ "${1:-}" = --inside ]; then
  shift
  run_inside "$@"
  exit
fi

# --- options ---------------------------------------------------------------------------------------------------------

as=root kept=false
while [ $# -gt 0 ]; do
  case "$1" in
    --as) [ $# -ge 2 ] || usage && as=$2 && shift 2 ;;
    --kept) kept=true && shift ;;
    -*) usage ;;
    *) break ;;
  esac
done
case "$as" in root | user | container) ;; *) usage ;; esac
[ $# -gt 0 ] || usage

# --- the bare Debian -------------------------------------------------------------------------------------------------

[ "$(id -u)" = 0 ] || unavailable "only root can make one"
command -v debootstrap >/dev/null || unavailable "there is no debootstrap (apt-get install debootstrap)"
unshare --mount --pid --fork --mount-proc true 2>/dev/null || unavailable "this machine does not allow new namespaces"

# mirror_of SUITE: the mirror of this suite in apt's sources.
mirror_of() {
  # shellcheck disable=SC2016 # apt-get expands it, not the shell
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' "Codename: $1" 'Component: main' 2>/dev/null | head -n 1 || true
}
mirror=${DEBIAN_MIRROR:-$(mirror_of bookworm)}
mirror=${mirror:-http://deb.debian.org/debian}
security=$(mirror_of bookworm-security)
security=${security:-http://deb.debian.org/debian-security}

# settings ROOT: this machine's settings for package registries.
settings() {
  local root=$1 key=/usr/share/keyrings/debian-archive-keyring.gpg
  printf 'deb [signed-by=%s] %s %s main\n' $key "$mirror" bookworm $key "$mirror" bookworm-updates $key "$security" bookworm-security \
    >"$root/etc/apt/sources.list"
  if command -v apt-config >/dev/null; then
    apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries|.*[Pp]roxy)' >"$root/etc/apt/apt.conf.d/99calling-machine" || true
  fi
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  if [ -d /usr/local/share/ca-certificates ]; then
    mkdir -p "$root/usr/local/share/ca-certificates"
    cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
    chroot "$root" update-ca-certificates >"$bare/certificates.log" 2>&1 ||
      unavailable "its trust roots cannot be set: $(tail -n 1 "$bare/certificates.log")"
  fi
}

# cargo_settings HOME: the same for cargo; not its compilers and flags.
cargo_settings() {
  local file=${CARGO_HOME:-$HOME/.cargo}/config.toml
  [ -e "$file" ] || return 0
  mkdir -p "$1/.cargo"
  awk '/^[[:space:]]*\[/ { keep = /\[(source|registries|registry|http|net)[].]/ } keep' "$file" >"$1/.cargo/config.toml"
}

# As /proc shows it.
cache=$(realpath -m "${MEMTIDE_BARE:-/var/cache/memtide-bare}")
bare=$cache/$(printf '%s' "$RECIPE" | sha256sum | cut -c1-16)
mkdir -p "$cache"
exec 8>"$cache/lock"
flock 8
if [ ! -e "$bare/bare" ]; then
  say "making a bare Debian 12 in $bare; about two minutes, and only once"
  rm -rf --one-file-system "$bare"
  mkdir -p "$bare"
  $RECIPE "$bare/making" "$mirror" >"$bare/debootstrap.log" 2>&1 ||
    unavailable "debootstrap failed: $(tail -n 1 "$bare/debootstrap.log")"
  mv "$bare/making" "$bare/bare"
fi
exec 8>&-

finish() {
  # The part in the namespaces ends with its parent.
  [ -z "${inside:-}" ] || kill -KILL "$inside" 2>/dev/null || true
  [ -n "${root:-}" ] || return 0
  # shellcheck disable=SC2046 # one word is one process
  kill -KILL $(processes "$root") 2>/dev/null || true
  [ -z "${scratch:-}" ] || rm -rf --one-file-system "$scratch"
}
trap finish EXIT
trap 'exit 143' TERM HUP
trap 'exit 130' INT

if $kept; then
  root=$bare/kept-$as
  exec 9>"$bare/kept-$as.lock"
  flock -n 9 || unavailable "another run works in $root"
else
  scratch=$(mktemp -d "$bare/run-XXXXXX")
  root=$scratch/root
fi
home=$root/root
[ $as != user ] || home=$root/home/$NEWCOMER
if [ ! -e "$root" ]; then
  cp -a --reflink=auto "$bare/bare" "$root.copy"
  settings "$root.copy"
  if [ $as = user ]; then
    chroot "$root.copy" sh -c "apt-get -q update && apt-get -qy install --no-install-recommends sudo && useradd -m -s /bin/bash $NEWCOMER &&
      echo '$NEWCOMER ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/$NEWCOMER" </dev/null >"$bare/user.log" 2>&1 ||
      unavailable "no user with sudo: $(tail -n 1 "$bare/user.log")"
  fi
  mv "$root.copy" "$root"
fi
cargo_settings "$home"
repository=$(cd "$(dirname "$0")/.." && pwd)
[ -z "$(git -C "$repository" status --porcelain 2>/dev/null)" ] || say "uncommitted changes are not in the clone"
if [ -d "$home/memtide" ]; then
  git -C "$home/memtide" -c safe.directory='*' fetch --quiet "$repository" HEAD
  git -C "$home/memtide" -c safe.directory='*' checkout --quiet --force --detach FETCH_HEAD
else
  git -c safe.directory='*' clone --quiet --no-hardlinks "$repository" "$home/memtide"
fi
[ $as != user ] || chroot "$root" chown -R $NEWCOMER:$NEWCOMER "/home/$NEWCOMER"

# A container does not see the processes of its host.
separate=()
[ $as != container ] || separate=(--pid --mount-proc)
# In the background: bash runs a trap only between two commands, and during a wait.
unshare --mount --propagation private --fork --kill-child "${separate[@]}" "$0" --inside "$root" "$as" "$@" &
inside=$!
code=0
wait $inside || code=$?
inside=
exit $code
