#!/bin/bash
# Installs the tools that this machine lacks for building memtide and, on request, for its tests.
#
# usage: scripts/deps.sh [--guests] [--libvirt] [--lint] [--bench] [--deb] [--static] [--bare] [--pages]
#
#   (nothing)   a C linker, the C library for static programs, and Rust as new as Cargo.toml's rust-version
#   --guests    also QEMU 10 or newer, a static busybox, cpio, kmod and xz, for the tests with real guests. (The tests download
#               kernels for guests, and Debian 12's own older QEMU, and only unpack them.)
#   --libvirt   also libvirt's daemon and virsh, for the tests with guests of libvirt; continues without them
#   --lint      also clippy, rustfmt and promtool, if packages have them; continues without them. (promtool is only unpacked, below
#               target/: its package would start a server.)
#   --bench     also stress-ng and lookbusy, to compare with the exerciser, if packages have them; continues without them
#   --deb       also the tools for a Debian package
#   --static    also Rust's target for static programs, which only rustup has
#   --bare      also debootstrap, for scripts/bare.sh; continues without it
#   --pages     also Chromium, for the tests of the page in a browser (not Cockpit, whose package opens a port)
#
# It asks no questions, changes nothing that is already installed, and uses the network only if something is missing. If you are
# not root, it uses sudo. It installs packages on Debian and its derivatives; elsewhere it lists the missing tools. If it adds to
# apt's sources, it shows the addition and how to undo it.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:$PATH"

readonly QEMU_MAJOR=10
readonly BACKPORTS_LIST=/etc/apt/sources.list.d/memtide-backports.list
readonly RUSTUP_LINE="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
readonly MUSL_TARGET=x86_64-unknown-linux-musl
readonly PROMTOOL=${CARGO_TARGET_DIR:-target}/tools/promtool

say() { printf 'deps: %s\n' "$*"; }
die() { printf 'deps: %s\n' "$*" >&2; exit 1; }

want_guests=false want_libvirt=false want_lint=false want_bench=false want_deb=false want_static=false want_bare=false want_pages=false
for argument in "$@"; do
  case "$argument" in
    --guests) want_guests=true ;;
    --libvirt) want_libvirt=true ;;
    --lint) want_lint=true ;;
    --bench) want_bench=true ;;
    --deb) want_deb=true ;;
    --static) want_static=true ;;
    --bare) want_bare=true ;;
    --pages) want_pages=true ;;
    *) die "unknown argument $argument; usage: scripts/deps.sh [--guests] [--libvirt] [--lint] [--bench] [--deb] [--static] [--bare] [--pages]" ;;
  esac
done

# --- checks ----------------------------------------------------------------------------------------------------------

# at_least HAVE WANT: whether version HAVE is WANT or newer.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
[ -n "$rust_wanted" ] || die "Cargo.toml names no rust-version"

# version_of PROGRAM: the first version number in the output of PROGRAM --version; fails if there is no such program.
version_of() { "$1" --version 2>/dev/null | sed -n '1s/^[^0-9]*\([0-9][0-9.]*\).*$/\1/p' | grep .; }

has_linker() { command -v cc >/dev/null; }
has_static_libc() { has_linker && [ -e "$(cc -print-file-name=libc.a)" ]; }
has_rust() {
  local tool version
  for tool in rustc cargo; do
    version=$(version_of "$tool") && at_least "$version" "$rust_wanted" || return 1
  done
}
has_qemu() {
  local version
  version=$(version_of qemu-system-x86_64) && at_least "$version" "$QEMU_MAJOR"
}
# ldd fails on a statically linked program.
has_static_busybox() { command -v busybox >/dev/null && ! ldd "$(command -v busybox)" >/dev/null 2>&1; }
has_dpkg_dev() { command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null; }
has_musl() { [ -d "$(rustc --print sysroot)/lib/rustlib/$MUSL_TARGET" ]; }
has_clippy() { cargo clippy --version >/dev/null 2>&1; }
has_promtool() { command -v promtool >/dev/null || [ -x "$PROMTOOL" ]; }
has_rustfmt() { cargo fmt --version >/dev/null 2>&1; }

# missing: the missing tools, one word per line.
missing() {
  has_linker || echo linker
  has_static_libc || echo libc
  has_rust || echo rust
  if $want_deb && ! has_dpkg_dev; then echo dpkg-dev; fi
  if $want_pages; then
    command -v chromium >/dev/null || echo chromium
  fi
  if $want_guests; then
    has_qemu || echo qemu
    has_static_busybox || echo busybox
    local tool
    for tool in cpio depmod xz; do command -v "$tool" >/dev/null || [ -x "/sbin/$tool" ] || echo "$tool"; done
  fi
}

# --- apt -------------------------------------------------------------------------------------------------------------

# as_root COMMAND...: runs the command as root, through sudo if necessary.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif ! command -v sudo >/dev/null; then
    die "run as root, this user has no sudo: $*"
  elif [ -t 0 ]; then
    sudo "$@"
  else
    sudo -n "$@" || die "failed as root (sudo must work without a password where there is no terminal): $*"
  fi
}

apt_get() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"; }

# candidate PACKAGE: the upstream version that apt would install; nothing if apt does not know the package.
candidate() {
  apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: \([0-9]*:\)\?\([0-9][0-9.]*\).*$/\2/p'
}

# Rust's packages that are new enough. Debian has a newer Rust for browsers beside the plain one.
rust_packages() {
  local suffix
  for suffix in "" -web; do
    if at_least "$(candidate "rustc$suffix" | grep . || echo 0)" "$rust_wanted"; then
      echo "rustc$suffix cargo$suffix"
      return
    fi
  done
}

lint_packages() {
  has_clippy || case "$1" in *-web*) echo rust-web-clippy ;; *) echo rust-clippy ;; esac
  has_rustfmt || case "$1" in *-web*) echo rustfmt-web ;; *) echo rustfmt ;; esac
}

# add_backports CODENAME: adds the backports of this release, with the mirror and the key of the machine's own sources.
add_backports() {
  local codename=$1 entry mirror source key options=
  # shellcheck disable=SC2016 # apt-get expands these, not the shell
  entry=$(apt-get indextargets --format '$(REPO_URI) $(SOURCESENTRY)' \
    'Created-By: Packages' 'Origin: Debian' "Codename: $codename" 'Component: main' | head -n 1)
  [ -n "$entry" ] || die "found no Debian mirror in apt's sources, so no backports for QEMU $QEMU_MAJOR"
  mirror=${entry%% *} source=${entry##* }
  key=$(sed -n 's/^.*[Ss]igned-[Bb]y[:=] *\(\/[^] ]*\).*$/\1/p' "${source%:*}" | head -n 1)
  [ -z "$key" ] || options="[signed-by=$key] "
  echo "deb $options$mirror $codename-backports main" | as_root tee "$BACKPORTS_LIST" >/dev/null
  say "added $codename-backports to apt's sources; undo: rm $BACKPORTS_LIST && apt-get update"
  apt_get update
}

# Sets $qemu_release to the arguments with which apt-get installs a QEMU that is new enough.
qemu_release=()
choose_qemu() {
  at_least "$(candidate qemu-system-x86 | grep . || echo 0)" "$QEMU_MAJOR" && return
  local codename
  codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  if ! apt-cache policy | grep -q "n=$codename-backports,"; then add_backports "$codename"; fi
  qemu_release=(-t "$codename-backports")
}

install_missing() {
  local words=$1 rust packages=()
  apt_get update
  case "$words" in *linker*) packages+=(gcc) ;; esac
  case "$words" in *libc*) packages+=(libc6-dev) ;; esac
  case "$words" in *rust*)
    rust=$(rust_packages)
    [ -n "$rust" ] || die "no package brings Rust $rust_wanted; install it with: $RUSTUP_LINE"
    # Rust's packages conflict with each other and with rustup: never remove the owner's choice.
    read -ra pair <<<"$rust"
    apt_get install -y --no-install-recommends --no-remove "${pair[@]}" ||
      die "could not install $rust (does another Rust stand in the way?); or use rustup: $RUSTUP_LINE"
    ;;
  esac
  case "$words" in *dpkg-dev*) packages+=(dpkg-dev) ;; esac
  case "$words" in *busybox*) packages+=(busybox-static) ;; esac
  case "$words" in *cpio*) packages+=(cpio) ;; esac
  case "$words" in *depmod*) packages+=(kmod) ;; esac
  case "$words" in *xz*) packages+=(xz-utils) ;; esac
  case "$words" in *chromium*) packages+=(chromium fonts-dejavu-core) ;; esac
  if [ ${#packages[@]} -gt 0 ]; then apt_get install -y --no-install-recommends "${packages[@]}"; fi
  case "$words" in *qemu*)
    choose_qemu
    apt_get install -y --no-install-recommends "${qemu_release[@]}" qemu-system-x86
    ;;
  esac
}

# --- optional tools --------------------------------------------------------------------------------------------------

install_lint() {
  has_clippy && has_rustfmt && return
  if command -v rustup >/dev/null; then
    timeout 120 rustup component add clippy rustfmt >/dev/null 2>&1 || true
  elif command -v apt-get >/dev/null; then
    local packages
    read -ra packages <<<"$(lint_packages "$(dpkg-query -W -f '${Package} ' 'rustc*' 2>/dev/null)" | tr '\n' ' ')"
    apt_get install -y --no-install-recommends --no-remove "${packages[@]}" || true
  fi
  has_clippy || say "clippy is not available here: checks that need it are left out"
  has_rustfmt || say "rustfmt is not available here: checks that need it are left out"
}

# promtool tries the rules for Prometheus.
unpack_promtool() {
  if ! has_promtool && command -v apt-get >/dev/null; then
    local dir
    dir=$(mktemp -d)
    mkdir -p "$(dirname "$PROMTOOL")"
    {
      { [ -n "$(candidate prometheus)" ] || apt_get update; } &&
        (cd "$dir" && timeout 120 apt-get -q -o APT::Sandbox::User=root download prometheus) &&
        dpkg-deb --fsys-tarfile "$dir"/prometheus_*.deb | tar -xO ./usr/bin/promtool >"$dir/promtool" &&
        chmod +x "$dir/promtool" && mv "$dir/promtool" "$PROMTOOL"
    } || true
    rm -rf "$dir"
  fi
  has_promtool || say "promtool is not available here: the rules for Prometheus are not tried"
}

install_peers() {
  local peer
  for peer in stress-ng lookbusy; do
    command -v "$peer" >/dev/null || [ -z "$(candidate "$peer")" ] || apt_get install -y --no-install-recommends "$peer" || true
    command -v "$peer" >/dev/null || say "$peer is not available here: nothing is compared with it"
  done
}

# All of one origin: a driver of another version does not load.
install_libvirt() {
  local has=true program
  for program in libvirtd virsh; do command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || has=false; done
  $has && return
  if command -v apt-get >/dev/null; then
    apt_get install -y --no-install-recommends libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients ||
      say "libvirt is not available here: tests with its guests are left out"
  fi
}

# Programs for guests are smaller with musl; without it, they are linked statically against glibc. Tried once per compiler, since
# rustup needs the network for it.
add_musl() {
  command -v rustup >/dev/null || return 0
  ! has_musl || return 0
  local tried
  tried="${CARGO_TARGET_DIR:-target}/.musl-tried-$(version_of rustc)"
  [ ! -e "$tried" ] || return 0
  mkdir -p "$(dirname "$tried")" && : >"$tried"
  timeout 30 rustup target add "$MUSL_TARGET" >/dev/null 2>&1 ||
    say "no $MUSL_TARGET target to be had: programs for guests are linked statically against glibc"
}

# --- the work --------------------------------------------------------------------------------------------------------

words=$(missing | tr '\n' ' ')
if [ -n "$words" ]; then
  say "missing: $words"
  case "$words" in *rust*)
    if command -v rustup >/dev/null; then die "rustup's Rust is older than $rust_wanted; run: rustup update stable"; fi ;;
  esac
  if ! command -v apt-get >/dev/null; then
    case "$words" in *rust*) say "Rust: $RUSTUP_LINE" ;; esac
    die "this script installs Debian packages only; install what is missing with this machine's package manager"
  fi
  install_missing "$words"
  words=$(missing | tr '\n' ' ')
  [ -z "$words" ] || die "installed, and still missing: $words"
fi
# The lab finds kernels through apt's lists, which many machine images do not include.
if $want_guests && command -v apt-cache >/dev/null && [ -z "$(candidate linux-image-cloud-amd64)" ]; then
  (apt_get update) || say "apt's lists could not be renewed: kernels for guests may not be found"
fi
if $want_lint; then install_lint; unpack_promtool; fi
if $want_libvirt; then install_libvirt; fi
if $want_bench; then install_peers; fi
if $want_bare && ! command -v debootstrap >/dev/null && command -v apt-get >/dev/null; then
  { apt_get update && apt_get install -y --no-install-recommends debootstrap; } || true
fi
add_musl
if $want_static && ! has_musl; then
  command -v rustup >/dev/null || die "only rustup's Rust makes static programs (target $MUSL_TARGET): $RUSTUP_LINE"
  rustup target add "$MUSL_TARGET" || die "no $MUSL_TARGET target to be had; where there is a network, run: rustup target add $MUSL_TARGET"
fi
