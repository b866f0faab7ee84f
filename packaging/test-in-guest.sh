#!/bin/bash
# Tests the Debian package under systemd: in a Debian 12 of its own that boots in QEMU, with a guest of its own to manage.
#
# usage: packaging/test-in-guest.sh
#
# Run it by hand, as root. It needs debootstrap (not a dependency of memtide), a Debian mirror with backports, and the tools of
# `scripts/deps.sh --guests --deb`. It builds the packages of memtide and of its agent, and a disk image below $TMPDIR, and boots the image
# under software emulation, so KVM is not needed. In this virtual host, systemd starts the service of each package in its sandbox. memtide
# finds, observes and manages a QEMU guest, which also runs under software emulation, talks to the agent in it, and manages a guest of libvirt and a UML
# instance of another user. All of this takes about eight minutes. Processes and mounts have their own namespaces and end with the script, even if it fails. All files are deleted.
#
# From the environment:
#   DEBIAN_MIRROR   the mirror of Debian 12 (default: the mirror in apt's sources)
set -euo pipefail

# The longest wait for anything, in seconds: software emulation of software emulation is slow.
readonly PLENTY=900
readonly ALL_IS_WELL="== all is well"

say() { printf '== %s\n' "$*"; }
die() { printf 'test-in-guest: %s\n' "$*" >&2; exit 1; }
# check WHAT COMMAND...: prints WHAT, and whether it is so. The script goes on, and fails at its end if a check has failed.
failed=0
check() {
  local what=$1
  shift
  if "$@"; then
    printf '   ok: %s\n' "$what"
  else
    printf '   NOT SO: %s (%s)\n' "$what" "$*"
    failed=$((failed + 1))
  fi
}
# not COMMAND...: succeeds if the command fails, whatever it prints.
not() { ! "$@" >/dev/null 2>&1; }
# until_true COMMAND...: waits until the command succeeds.
until_true() {
  local deadline=$((SECONDS + PLENTY))
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 0.2
  done
}

# --- inside the virtual host -----------------------------------------------------------------------------------------

readonly CGROUPS=/sys/fs/cgroup/system.slice INNER=inner.service UML=uml.service

# port_9273 METHOD-AND-PATH: the answer at the port for Prometheus.
port_9273() {
  exec 3<>/dev/tcp/127.0.0.1/9273 || return
  printf '%s HTTP/1.1\r\nHost: localhost\r\n\r\n' "$1" >&3
  cat <&3
}
# listeners_9273: the addresses at which somebody listens there, as the kernel writes them.
listeners_9273() { awk '$2 ~ /:2439$/ && $4 == "0A" { print $2 }' /proc/net/tcp /proc/net/tcp6; }
is_active() { systemctl is-active --quiet "$1"; }
# says TEXT COMMAND...: whether the command's output, also that of a failing command, contains the text.
says() {
  local text=$1
  shift
  { "$@" 2>&1 || true; } | grep -qF -- "$text"
}
exits_with() {
  local codes=$1 code=0
  shift
  "$@" >/dev/null 2>&1 || code=$?
  [[ " $codes " == *" $code "* ]]
}
# helper_unit NAME: the unit of a running helper.
helper_unit() { systemctl list-units --no-legend --plain --state=active "memtide-$1@*" | cut -d ' ' -f 1; }
has_helper() { [ -n "$(helper_unit "$1")" ]; }
runs_memtide() { [ "$(readlink "/proc/$(main_pid "$1")/exe")" = /usr/bin/memtide ]; }
main_pid() { systemctl show --property MainPID --value "$1"; }
# within UNIT COMMAND...: runs the command as root with all capabilities, but with the file systems as the unit sees them.
within() {
  local pid
  pid=$(main_pid "$1")
  shift
  nsenter --target "$pid" --mount -- "$@"
}
# writable UNIT FILE: whether the unit's file systems let root open the file for writing. read_only UNIT FILE: whether they forbid it.
writable() { within "$1" sh -c ": >>'$2'"; }
read_only() { says 'Read-only file system' within "$1" sh -c ": >>'$2'"; }
# hides UNIT FILE: whether the unit's file systems have something in its place that nobody may use.
hides() { within "$1" sh -c "[ \"\$(stat -c %a '$2')\" = 0 ]"; }
fed_at() { systemctl show --property WatchdogTimestampMonotonic --value "$1"; }
is_fed_since() { [ "$(fed_at "$2")" -gt "$1" ]; }
# is_another PID UNIT: whether the unit runs with another main process.
is_another() { is_active "$2" && [ "$(main_pid "$2")" -gt 0 ] && [ "$(main_pid "$2")" != "$1" ]; }
status_of() { sed -n "s/^$2:[[:space:]]*//p" "/proc/$(main_pid "$1")/status"; }
charge() { cat "$CGROUPS/$INNER/memory.current"; }
# split_inner: asks the helper that splits, as the daemon does, and shows its answer.
split_inner() {
  local pid
  pid=$(main_pid "$INNER")
  perl -MIO::Socket::UNIX -e '
    my $helper = IO::Socket::UNIX->new(Peer => "/run/memtide-split.sock") or die "cannot connect: $!";
    print $helper "{\"number\":1,\"what\":{\"split\":{\"pid\":$ARGV[0],\"start\":$ARGV[1]}}}\n";
    $helper->flush;
    print scalar <$helper>' "$pid" "$(cut -d ' ' -f 22 "/proc/$pid/stat")"
}

# Starts a QEMU guest as a service, so that it has a cgroup of its own. The cgroup then holds page cache, too.
start_inner() {
  head -c 64M /dev/urandom >/var/tmp/file
  sync /var/tmp/file
  echo 1 >/proc/sys/vm/drop_caches
  systemd-run --quiet --unit "$INNER" --property MemoryAccounting=yes sh -c 'cat /var/tmp/file >/dev/null; exec "$@"' sh \
    qemu-system-x86_64 -name inner -accel tcg,tb-size=64 -M q35 -cpu qemu64 -m 160 -nodefaults -no-user-config -display none \
    -no-reboot -kernel /inner/vmlinuz -initrd /inner/initrd -append 'console=ttyS0 quiet panic=-1 mitigations=off nokaslr' \
    -serial file:/run/inner.log -qmp unix:/run/inner.qmp,server=on,wait=off \
    -device virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on \
    -device virtio-serial-pci -chardev socket,id=agent,path=/run/inner.agent,server=on,wait=off \
    -device virtserialport,chardev=agent,name=org.memtide.agent.0 -device pcie-root-port,id=hotplug0,chassis=40
}
# swaps_to_tier: whether the guest has a tier, and its agent was asked to use it and did not fail.
swaps_to_tier() {
  memtide explain inner >/tmp/explained
  grep -q '^  tier .* compressed to ' /tmp/explained && grep 'ago: swap to its tier: ' /tmp/explained | grep -qvF '(failed'
}

# Starts a UML instance of another user.
start_uml() {
  install -d -o nobody /var/tmp/uml
  systemd-run --quiet --unit "$UML" --uid nobody --setenv HOME=/var/tmp/uml --setenv TMPDIR=/dev/shm \
    --property StandardOutput=file:/run/uml.log \
    linux.uml mem=128M umid=uml-1 uml_dir=/var/tmp/uml initrd=/inner/uml con=null con0=null,fd:1 ssl=null quiet panic=-1
}
# Starts a guest of libvirt, with an agent, as its user would.
start_of_libvirt() {
  cat >/run/of-libvirt.xml <<'END'
<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>of-libvirt</name>
  <memory unit='MiB'>160</memory>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/inner/vmlinuz</kernel>
    <initrd>/inner/initrd</initrd>
    <cmdline>console=ttyS0 quiet panic=-1 mitigations=off nokaslr</cmdline>
  </os>
  <features><acpi/><tcg><tb-cache unit='MiB'>64</tb-cache></tcg></features>
  <cpu mode='custom'><model>qemu64</model></cpu>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <serial type='file'><source path='/run/of-libvirt.log'/></serial>
    <channel type='unix'><target type='virtio' name='org.memtide.agent.0'/></channel>
    <memballoon model='virtio' autodeflate='on' freePageReporting='on'/>
  </devices>
</domain>
END
  virsh --quiet create /run/of-libvirt.xml
}
# balloon_at_most MIB: whether libvirt's guest has no more memory than this.
balloon_at_most() { [ "$(virsh dommemstat of-libvirt | awk '$1 == "actual" { print $2 }')" -le $(($1 * 1024)) ]; }
# stats_period: the period, in seconds, in which libvirt's guest tells its statistics; empty if it does not.
stats_period() { virsh dumpxml of-libvirt | sed -n "s/.*<stats period='\([0-9]*\)'.*/\1/p"; }
has_stats_period() { [ "$(stats_period)" = "$1" ]; }
# uml_blocks: the memory that the instance costs, in blocks of 512 bytes.
uml_blocks() {
  local fd
  for fd in "/proc/$(main_pid "$UML")"/fd/*; do
    case $(readlink "$fd") in /dev/shm/*) stat -L -c %b "$fd"; return ;; esac
  done
  return 1
}
# merged_mib MIB: whether KSM saves this much.
merged_mib() { [ "$(cat /sys/kernel/mm/ksm/pages_sharing)" -ge $(($1 * 256)) ]; }
# resident_mib MIB PID...: whether each of these processes has this much resident.
resident_mib() {
  local mib=$1 pid
  shift
  for pid in "$@"; do
    [ "$(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status")" -ge $((mib * 1024)) ] || return 1
  done
}
# keeps_at_most MIB GUEST [OPTION...]: whether the guest keeps no more than this.
keeps_at_most() {
  local most=$1
  shift
  memtide explain "$@" | awk -v most="$most" '/^  keeps/ { is_so = $3 == "MiB" && $2 <= most } END { exit !is_so }'
}
# reclaims: whether memory is reclaimed from the guest's cgroup. On a slow machine, its VMM may not answer at first.
reclaims() { memtide reclaim inner 32M >/tmp/reclaimed 2>&1; }
uml_costs_less() { [ "$(uml_blocks)" -lt "$1" ]; }

in_guest() {
  local before after unit ksm_found fed pid
  export NO_COLOR=1 HOME=/root
  say "install under systemd"
  check "systemd is process 1" test "$(cat /proc/1/comm)" = systemd
  dpkg -i /memtide.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; die "dpkg -i failed"; }
  check "the service is active" is_active memtide.service
  check "the socket of the helper that writes the journal is active" is_active memtide-journal.socket
  check "the socket of the helper that reclaims is active" is_active memtide-reclaim.socket
  check "the socket of the helper that splits is active" is_active memtide-split.socket
  check "the socket of the helper that sets KSM is active" is_active memtide-ksm.socket
  check "the socket of the helper that makes tiers is active" is_active memtide-tier.socket
  check "the socket of the helper that asks about sockets is active" is_active memtide-knocks.socket
  check "only root may use the helpers' sockets" test "$(stat -c %a /run/memtide-{journal,reclaim,split,ksm,tier,knocks}.sock | sort -u)" = 600
  ksm_found=$(cat /sys/kernel/mm/ksm/{run,pages_to_scan,sleep_millisecs} | xargs)
  check "the service will start at boot" systemctl is-enabled --quiet memtide.service

  say "the port for Prometheus"
  check "the port is closed after the installation" not is_active memtide-metrics.socket
  check "the port stays closed at the next boot" not systemctl is-enabled memtide-metrics.socket
  systemctl enable --quiet --now memtide-metrics.socket
  check "it listens on 127.0.0.1 only" test "$(listeners_9273)" = 0100007F:2439
  check "Prometheus gets the metrics" says "memtide_decisions_total" port_9273 "GET /metrics"
  check "the port has nothing else" says "404 Not Found" port_9273 "GET /v1/status"
  check "the port takes no orders" says "405 Method Not Allowed" port_9273 "POST /v1/holds"
  # The service waits for a request on this connection.
  exec 4<>/dev/tcp/127.0.0.1/9273
  check "each connection has a service of its own" until_true has_helper metrics
  unit=$(helper_unit metrics)
  # Until then, systemd's own process makes the sandbox.
  check "it runs" until_true runs_memtide "$unit"
  check "the service for Prometheus has no capability" test "$(status_of "$unit" CapEff)" = 0000000000000000
  check "the service for Prometheus is not root" test "$(status_of "$unit" Uid | cut -f 1)" != 0
  check "the service for Prometheus filters system calls" test "$(status_of "$unit" Seccomp)" = 2
  check "the service for Prometheus cannot write to /etc" read_only "$unit" /etc/memtide/memtide.toml
  check "the service for Prometheus cannot use systemd's own socket" hides "$unit" /run/systemd/private
  exec 4>&-
  check "it ends with its connection" until_true not has_helper metrics
  systemctl disable --quiet --now memtide-metrics.socket
  check "the port is closed again" not port_9273 "GET /metrics"

  start_inner
  start_uml
  check "libvirt starts a guest" start_of_libvirt

  say "the agent under systemd"
  dpkg -i /memtide-agent.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; die "dpkg -i failed"; }
  check "the agent's service is active" is_active memtide-agent.service
  check "it will start at boot" systemctl is-enabled --quiet memtide-agent.service
  check "memtide-agent status answers" until_true says "connected to a host that speaks version 1" memtide-agent status
  check "it trims in its sandbox" until_true says "asked to trim 8 MiB: " memtide-agent status
  check "it compacts there" until_true says "asked to compact free memory: " memtide-agent status
  check "it may do all that it was asked for" not says "refused" memtide-agent status
  check "it may write to cgroups" writable memtide-agent.service /sys/fs/cgroup/system.slice/memory.reclaim
  check "it may write the order of free page reporting" writable memtide-agent.service /sys/module/page_reporting/parameters/page_reporting_order
  check "it cannot write to /etc" read_only memtide-agent.service /etc/memtide-agent.toml
  check "it has no more than three capabilities" test "$(status_of memtide-agent.service CapEff)" = 0000000001200002
  check "it filters system calls" test "$(status_of memtide-agent.service Seccomp)" = 2
  memtide-agent status | sed 's/^/   | /'

  say "observe"
  check "memtide status answers" until_true memtide status
  check "it observes" says "observing (changes nothing)" memtide status
  check "systemd has started the helper that writes the journal" until_true has_helper journal
  check "it writes the journal" until_true test -e /var/lib/memtide/journal/000001.mtj
  check "it finds the guest" until_true says inner memtide status
  check "the guest boots" until_true grep -q UP /run/inner.log
  check "it reads the guest's balloon" until_true says "deflate-on-oom on" memtide explain inner
  check "the guest of libvirt boots" until_true grep -q UP /run/of-libvirt.log
  check "it finds the guest of libvirt, and the way to it" until_true says "QEMU of libvirt" memtide explain of-libvirt
  check "it reads this guest's balloon" until_true says "deflate-on-oom on" memtide explain of-libvirt
  check "an observer sets no period of statistics" has_stats_period ""
  check "the UML instance boots" until_true grep -q UP /run/uml.log
  check "it leaves out the UML instance of a user who is not admitted" until_true says 'users = ["system", "nobody"]' memtide status
  sed -i 's/^#users = .*/users = ["system", "nobody"]/' /etc/memtide/memtide.toml
  check "a reload admits the user" systemctl reload memtide.service
  check "it finds the UML instance" until_true memtide explain uml-1
  check "it reads the instance's kernel" until_true says "guest says" memtide explain uml-1
  check "memtide doctor runs" exits_with "0 10 11" memtide doctor
  memtide doctor | sed 's/^/   | /' || true
  check "an observer reclaims nothing" says "this memtide only observes" memtide reclaim inner 16M
  check "an observer starts no helper that reclaims" not has_helper reclaim
  check "an observer starts no helper that splits" not has_helper split
  check "it shows KSM" says "memtide    observes" memtide ksm

  say "manage"
  sed -i 's/^#\?mode = .*/mode = "nonsense"/' /etc/memtide/memtide.toml
  grep -q '^mode = ' /etc/memtide/memtide.toml || die "the configuration names no mode"
  check "a reload refuses a wrong configuration" not systemctl reload memtide.service
  check "the service goes on" is_active memtide.service
  sed -i 's/^mode = .*/mode = "manage"/' /etc/memtide/memtide.toml
  sed -i 's/^#ksm = .*/ksm = { mode = "govern", cpu = "full" }/' /etc/memtide/memtide.toml
  printf '\n[class.small]\nmatch = ["uml-*"]\nlimit = "96 MiB"\n\n[class.of-libvirt]\nmatch = ["of-*"]\nlimit = "128 MiB"\n\n[class.shares]\nmatch = ["inner"]\nshare = true\n' >>/etc/memtide/memtide.toml
  before=$(uml_blocks)
  check "a reload takes a right one" systemctl reload memtide.service
  check "it manages" until_true says "managing" memtide status
  check "it changes the guest: its statistics are polled" until_true says "polled every" memtide explain inner
  check "the UML instance gives 16 MiB and more, of $((before / 2048)) MiB" until_true uml_costs_less $((before - 32768))
  memtide explain uml-1 | sed 's/^/   | /'
  check "the guest of libvirt keeps 129 MiB at most" until_true balloon_at_most 129
  check "libvirt has the period of its statistics from memtide" until_true has_stats_period 1
  check "it hears this guest's agent, over libvirt's channel" until_true says "could drop" memtide explain of-libvirt
  check "terms in the guest's metadata count" memtide libvirt set of-libvirt limit=120MiB
  check "the guest keeps 121 MiB at most" until_true balloon_at_most 121
  check "libvirt's daemon starts again" systemctl restart libvirtd.service
  check "and with it a new limit comes true" memtide libvirt set of-libvirt limit=112MiB
  check "the guest keeps 113 MiB at most" until_true balloon_at_most 113
  memtide explain of-libvirt | sed 's/^/   | /'
  check "only a restart starts the helper" until_true says "restart it to reclaim" memtide reclaim inner 16M
  # Before Linux 6.14, the kernel tells of processes that are no guests only once it has scanned them: they must be there before the burst.
  for i in 1 2; do
    memtide ksm run -- memtide-load --size 96M --identical 100 --seed 1 --instance "$i" --passes 0 --hold 1h --quiet >/dev/null &
  done
  # shellcheck disable=SC2046 # One word for each process.
  check "their memory is filled" until_true resident_mib 96 $(jobs -p)
  sed -i 's/^#commitment = .*/commitment = "elastic"/; s/^share = true$/&\ntier = "25%"/' /etc/memtide/memtide.toml
  systemctl restart memtide.service
  check "it manages after a restart" until_true says "managing" memtide status
  check "systemd has started the helper that reclaims" until_true has_helper reclaim
  check "systemd has started the helper that splits" until_true has_helper split
  check "this helper may call memory of other processes cold" until_true says "helper split: calls memory cold only" memtide status
  check "systemd has started the helper that sets KSM" until_true has_helper ksm
  check "systemd has started the helper that makes tiers" until_true has_helper tier
  check "this helper may make devices" until_true says "helper tier: makes swap in compressed memory only" memtide status
  check "systemd has started the helper that asks about sockets" until_true has_helper knocks
  check "the kernel tells this helper who waits" until_true says "helper knocks: asks the kernel about sockets only" memtide status
  check "it reads the guest again" until_true says "allocation stalls" memtide explain inner
  check "it hears the guest's agent" until_true says "could drop" memtide explain inner
  check "the guest swaps to a tier" until_true swaps_to_tier
  check "this tier is a zram that memtide has noted" test -e "/sys/block/zram$(ls /run/memtide-tier)"
  memtide status | sed 's/^/   | /'

  say "reclaim"
  before=$(charge)
  until_true reclaims || { cat /tmp/reclaimed; die "memtide reclaim failed"; }
  sed 's/^/   | /' /tmp/reclaimed
  after=$(charge)
  check "the guest's cgroup has at least 16 MiB less ($before, then $after bytes)" test $((before - after)) -ge $((16 << 20))
  check "an unknown guest is refused" exits_with 5 memtide reclaim nobody 16M
  # Whether the host has got it all is another question (exit status 1). The guest has little page cache: its balloon may have been asked instead.
  memtide reclaim inner --by 8M >/tmp/reclaimed 2>&1 || true
  sed 's/^/   | /' /tmp/reclaimed
  check "memory is reclaimed from within the guest" grep -q "; the host has " /tmp/reclaimed
  check "the guest runs on" is_active "$INNER"

  say "KSM"
  check "a burst merges equal pages" until_true merged_mib 64
  check "the burst ends" until_true says "sleeps: nothing new" memtide ksm
  memtide ksm | sed 's/^/   | /'
  check "the guest shares, because its class does" says "lets KSM merge" memtide explain inner

  say "sandboxes"
  unit=$(helper_unit reclaim)
  check "the service cannot write to cgroups" read_only memtide.service "$CGROUPS/$INNER/memory.reclaim"
  check "the service cannot write to /sys" read_only memtide.service /sys/kernel/mm/ksm/run
  check "the service cannot write to the journal" read_only memtide.service /var/lib/memtide/journal/000001.mtj
  check "the service cannot write to /etc" read_only memtide.service /etc/memtide/memtide.toml
  check "the service has no more than two capabilities" test "$(status_of memtide.service CapEff)" = 0000000000080002
  check "the service filters system calls" test "$(status_of memtide.service Seccomp)" = 2
  check "the helper can write to cgroups" writable "$unit" "$CGROUPS/$INNER/memory.reclaim"
  check "the helper cannot write to /sys" read_only "$unit" /sys/kernel/mm/ksm/run
  check "the helper cannot write to /etc" read_only "$unit" /etc/memtide/memtide.toml
  check "the helper has one capability" test "$(status_of "$unit" CapEff)" = 0000000000000002
  check "the helper filters system calls" test "$(status_of "$unit" Seccomp)" = 2
  unit=$(helper_unit journal)
  check "the helper that writes the journal can write to it" writable "$unit" /var/lib/memtide/journal/other
  check "the helper that writes the journal cannot write to /etc" read_only "$unit" /etc/memtide/memtide.toml
  check "the helper that writes the journal cannot write to cgroups" read_only "$unit" "$CGROUPS/$INNER/memory.reclaim"
  check "the helper that writes the journal has no capability" test "$(status_of "$unit" CapEff)" = 0000000000000000
  check "the helper that writes the journal filters system calls" test "$(status_of "$unit" Seccomp)" = 2
  unit=$(helper_unit ksm)
  check "the helper that sets KSM can write to KSM" writable "$unit" /sys/kernel/mm/ksm/run
  check "the helper that sets KSM cannot write elsewhere in /sys" read_only "$unit" /sys/kernel/mm/transparent_hugepage/enabled
  check "the helper that sets KSM cannot write to cgroups" read_only "$unit" "$CGROUPS/$INNER/memory.reclaim"
  check "the helper that sets KSM has no capability" test "$(status_of "$unit" CapEff)" = 0000000000000000
  check "the helper that sets KSM filters system calls" test "$(status_of "$unit" Seccomp)" = 2
  unit=$(helper_unit tier)
  check "the helper that makes tiers can write to block devices without hardware" writable "$unit" /sys/devices/virtual/block/zram0/mem_limit
  check "the helper that makes tiers cannot write elsewhere in /sys" read_only "$unit" /sys/kernel/mm/ksm/run
  check "the helper that makes tiers has no capability" test "$(status_of "$unit" CapEff)" = 0000000000000000
  check "the helper that makes tiers filters system calls" test "$(status_of "$unit" Seccomp)" = 2
  unit=$(helper_unit knocks)
  check "the helper that asks about sockets cannot write to /sys" read_only "$unit" /sys/kernel/mm/ksm/run
  check "the helper that asks about sockets cannot write to cgroups" read_only "$unit" "$CGROUPS/$INNER/memory.reclaim"
  check "the helper that asks about sockets has no capability" test "$(status_of "$unit" CapEff)" = 0000000000000000
  check "the helper that asks about sockets is not root" test "$(status_of "$unit" Uid | cut -f 1)" != 0
  check "the helper that asks about sockets filters system calls" test "$(status_of "$unit" Seccomp)" = 2
  unit=$(helper_unit split)
  check "the helper that splits cannot write to cgroups" read_only "$unit" "$CGROUPS/$INNER/memory.reclaim"
  check "the helper that splits cannot write to /sys" read_only "$unit" /sys/kernel/mm/ksm/run
  # CAP_DAC_READ_SEARCH (2), CAP_SYS_PTRACE (19), CAP_SYS_NICE (23).
  check "the helper that splits has three capabilities" test "$(status_of "$unit" CapEff)" = 0000000000880004
  check "the helper that splits filters system calls" test "$(status_of "$unit" Seccomp)" = 2
  check "it splits the huge pages of the guest" says '"Ok":' split_inner
  check "the guest runs on" is_active "$INNER"
  check "the service cannot use systemd's own socket" hides memtide.service /run/systemd/private

  say "watchdog"
  fed=$(fed_at memtide.service)
  check "decisions feed it" until_true is_fed_since "$fed" memtide.service
  pid=$(main_pid memtide.service)
  kill -STOP "$pid"
  check "a daemon that no longer decides is started again" until_true is_another "$pid" memtide.service
  check "it manages" until_true says "managing" memtide status
  check "the guest runs on" is_active "$INNER"

  say "a journal that stands still"
  pid=$(main_pid "$(helper_unit journal)")
  kill -STOP "$pid"
  check "status says so" until_true says "s behind: its disk takes no more" memtide status
  check "it manages" says "managing" memtide status
  systemctl restart memtide.service
  check "another one manages" until_true says "managing" memtide status
  check "the former helper is still there" test -e "/proc/$pid"
  kill -CONT "$pid"
  check "it ends" until_true test ! -e "/proc/$pid"
  check "the journal can be replayed" memtide replay /var/lib/memtide/journal

  say "end"
  systemctl stop memtide.service
  check "the helper that writes the journal ends with the service" until_true not has_helper journal
  check "the helper that reclaims ends with the service" until_true not has_helper reclaim
  check "the helper that splits ends with the service" until_true not has_helper split
  check "the helper that sets KSM ends with the service" until_true not has_helper ksm
  check "the helper that makes tiers ends with the service" until_true not has_helper tier
  check "the helper that asks about sockets ends with the service" until_true not has_helper knocks
  check "the period of statistics of libvirt's guest is as it was found" has_stats_period ""
  check "KSM is as it was found" test "$(cat /sys/kernel/mm/ksm/{run,pages_to_scan,sleep_millisecs} | xargs)" = "$ksm_found"
  check "no unit of memtide has failed" not says memtide systemctl list-units --failed --no-legend
  check "the guest runs on" is_active "$INNER"
  check "the UML instance runs on" is_active "$UML"
  check "no socket is left for its console" not ls /run/memtide/mconsole/*

  say "without root: the instance's user"
  cat >/var/tmp/uml/memtide.toml <<'END'
mode = "manage"
socket = "/var/tmp/uml/memtide.sock"
journal = { dir = "/var/tmp/uml/journal", max = "8 MiB" }
discover = ["uml-*"]
[class.default]
limit = "72 MiB"
END
  systemd-run --quiet --unit user.service --uid nobody memtide run --config /var/tmp/uml/memtide.toml
  check "it manages" until_true says "managing" memtide status --socket /var/tmp/uml/memtide.sock
  check "the UML instance keeps 74 MiB at most" until_true keeps_at_most 74 uml-1 --socket /var/tmp/uml/memtide.sock
  memtide explain uml-1 --socket /var/tmp/uml/memtide.sock | sed 's/^/   | /'
  systemctl stop user.service
  check "the UML instance runs on" is_active "$UML"
  dpkg --purge memtide >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; die "dpkg --purge failed"; }
  check "the units are gone" not systemctl cat memtide.service memtide-journal.socket memtide-reclaim.socket memtide-split.socket memtide-ksm.socket memtide-tier.socket memtide-knocks.socket memtide-metrics.socket
  [ "$failed" = 0 ] || die "$failed checks failed"
  printf '%s\n' "$ALL_IS_WELL"
}

if [ "${1-}" = --in-guest ]; then
  # Whatever happens, the virtual host ends.
  trap 'systemctl poweroff --force --force >/dev/null 2>&1' EXIT
  (in_guest) 2>&1 || { journalctl --no-pager --unit 'memtide*' --unit "$INNER" | tail -n 60; exit 1; }
  exit
fi

# --- the package -----------------------------------------------------------------------------------------------------

cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || die "run as root: a system is made"
for tool in debootstrap qemu-system-x86_64 busybox cpio mke2fs xz; do
  command -v "$tool" >/dev/null || die "needs $tool: apt-get install debootstrap e2fsprogs, and scripts/deps.sh --guests"
done

if [ $# = 0 ]; then
  say "the package"
  scratch=$(mktemp -d)
  trap 'rm -rf --one-file-system "$scratch"' EXIT
  make --silent deb deb-agent >/dev/null
  cp "${CARGO_TARGET_DIR:-target}"/deb/memtide_*.deb "$scratch/memtide.deb"
  cp "${CARGO_TARGET_DIR:-target}"/deb/memtide-agent_*.deb "$scratch/memtide-agent.deb"
  unshare --mount --pid --fork --kill-child --mount-proc --propagation private "$0" --outside "$scratch"
  exit
fi
[ "$1" = --outside ] || die "usage: packaging/test-in-guest.sh"
scratch=$2

# --- a Debian with QEMU ----------------------------------------------------------------------------------------------

# shellcheck disable=SC2016 # apt-get expands it, not the shell
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' \
  'Created-By: Packages' 'Origin: Debian' 'Codename: bookworm' 'Component: main' | head -n 1)}
[ -n "$mirror" ] || die "found no mirror of Debian 12 in apt's sources; set DEBIAN_MIRROR"

say "a Debian 12 with systemd, QEMU and a kernel"
root=$scratch/root
debootstrap --variant=minbase --include=systemd-sysv,dbus,adduser,udev bookworm "$root" "$mirror" >"$scratch/log" 2>&1 ||
  { tail -n 5 "$scratch/log" >&2; die "debootstrap failed"; }
echo "deb $mirror bookworm-backports main" >"$root/etc/apt/sources.list.d/backports.list"
mount -t proc proc "$root/proc"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@" </dev/null; }
# apt COMMAND...: shows apt-get's output if it fails.
apt() {
  inside apt-get -q -y --no-install-recommends -t bookworm-backports "$@" >"$scratch/log" 2>&1 ||
    { tail -n 20 "$scratch/log" >&2; die "apt-get $*"; }
}
apt update
# Under two layers of software emulation, guests of Debian 12's own QEMU (7.2) crash.
apt install qemu-system-x86 user-mode-linux libvirt-daemon-system libvirt-clients
# There is no AppArmor in this kernel, and no user for QEMU.
printf 'security_driver = "none"\nuser = "root"\ngroup = "root"\n' >>"$root/etc/libvirt/qemu.conf"
kernel=$(inside apt-cache depends -t bookworm-backports linux-image-cloud-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
[ -n "$kernel" ] || die "found no kernel behind linux-image-cloud-amd64"
inside sh -c "cd /tmp && apt-get -q download -t bookworm-backports $kernel" >"$scratch/log" 2>&1 ||
  { tail -n 5 "$scratch/log" >&2; die "cannot download $kernel"; }
dpkg-deb -x "$root"/tmp/linux-image-*.deb "$scratch/kernel"
inside apt-get clean
rm "$root"/tmp/linux-image-*.deb
umount "$root/proc"

# initrd NAME MODULE...: an initial file system with busybox, the agent, the modules that are not in the kernel, and the script on standard input as its first process.
initrd() {
  local name=$1 dir=$scratch/$1.dir module file
  shift
  mkdir -p "$dir"/{bin,dev,proc,sys,root,run}
  cp "$(command -v busybox)" "$dir/bin/busybox"
  dpkg-deb --fsys-tarfile "$scratch/memtide-agent.deb" | tar -xO ./usr/bin/memtide-agent >"$dir/bin/memtide-agent"
  chmod +x "$dir/bin/memtide-agent"
  for module; do
    # Some kernels have it inside.
    if grep -q "/$module\.ko$" "$scratch"/kernel/lib/modules/*/modules.builtin; then continue; fi
    file=$(find "$scratch/kernel" -name "$module.ko*")
    case $file in
      *.xz) xz -dc "$file" >"$dir/$module.ko" ;;
      *.ko) cp "$file" "$dir/$module.ko" ;;
      *) die "this kernel has no module $module that can be unpacked here" ;;
    esac
  done
  cat >"$dir/init"
  chmod +x "$dir/init"
  (cd "$dir" && find . | cpio -o -H newc --quiet | gzip -1) >"$scratch/$name"
}
# unix_diag and zram: a host has them among its modules, and loads them when somebody asks.
initrd outer virtio_blk virtio_console unix_diag lz4_compress lz4hc_compress zsmalloc zram <<'END'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for module in virtio_blk virtio_console unix_diag lz4_compress lz4hc_compress zsmalloc zram; do
  [ ! -e /$module.ko ] || /bin/busybox insmod /$module.ko
done
/bin/busybox mount -t ext4 /dev/vda /root
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /lib/systemd/systemd
END
initrd inner virtio_balloon virtio_console virtio_blk <<'END'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t cgroup2 cgroup2 /sys/fs/cgroup
for module in virtio_balloon virtio_console virtio_blk; do
  [ ! -e /$module.ko ] || /bin/busybox insmod /$module.ko
done
# There is no udev that names the port.
until [ -e /dev/vport*p1 ]; do /bin/busybox sleep 0.1; done
/bin/memtide-agent --port /dev/vport*p1 --status-file /run/agent.json &
echo UP
while :; do /bin/busybox sleep 1000; done
END

initrd uml <<'END'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
# What it has used and freed stays in its memory file.
/bin/busybox dd if=/dev/zero of=/root/file bs=1M count=48
/bin/busybox rm /root/file
echo UP
while :; do /bin/busybox sleep 1000; done
END

mkdir "$root/inner"
cp "$scratch"/kernel/boot/vmlinuz-* "$root/inner/vmlinuz"
cp "$scratch/inner" "$root/inner/initrd"
cp "$scratch/uml" "$root/inner/uml"
cp "$scratch"/memtide{,-agent}.deb "$root/"
cp "$0" "$root/test-in-guest.sh"
cat >"$root/etc/systemd/system/test.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/test-in-guest.sh --in-guest
StandardOutput=file:/dev/ttyS1
StandardError=file:/dev/ttyS1
END
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../test.service "$root/etc/systemd/system/multi-user.target.wants/test.service"
truncate -s 3G "$scratch/disk"
mke2fs -q -F -t ext4 -d "$root" "$scratch/disk"

# --- the virtual host ------------------------------------------------------------------------------------------------

# ask_agent SOCKET: plays memtide at the port of an agent: greets it until it answers, then asks for all that it does. Prints its answers.
ask_agent() {
  perl -MIO::Socket::UNIX -e '
    alarm 3600;
    $| = 1;
    my ($port, $id, $heard);
    sleep 1 until $port = IO::Socket::UNIX->new(Peer => $ARGV[0]);
    $port->autoflush(1);
    sub ask {
      my ($ask, $within) = @_;
      printf $port "{\"id\":%d,%s}\n", ++$id, $ask;
      my $until = time + $within;
      while (time < $until) {
        vec(my $ready = "", fileno $port, 1) = 1;
        select($ready, undef, undef, 1) or next;
        sysread($port, $heard, 4096, length $heard) or exit 1;
        while ($heard =~ s/^(.*)\n//) {
          my $line = $1;
          if ($line =~ /"id":$id,/) { print "$line\n"; return 1 }
        }
      }
      return 0;
    }
    1 until ask(q("do":"hello","version":1), 5);
    ask($_, 300) for q("do":"pressure","stall_us":70000,"window_us":1000000), q("do":"trim","bytes":8388608), q("do":"compact");
    sleep 3600;
  ' "$1"
}

say "boot it"
ask_agent "$scratch/agent" >"$scratch/answers" &
timeout --kill-after=10 $((PLENTY * 2)) qemu-system-x86_64 -accel tcg,thread=multi -M q35 -cpu max -smp 2 -m 1536 \
  -nodefaults -no-user-config -display none -no-reboot \
  -kernel "$root/inner/vmlinuz" -initrd "$scratch/outer" -append "console=ttyS0 quiet panic=-1 systemd.show_status=0" \
  -serial "file:$scratch/console" -chardev stdio,id=out,signal=off -serial chardev:out \
  -drive "file=$scratch/disk,if=none,id=disk,format=raw,cache=unsafe" -device virtio-blk-pci,drive=disk \
  -device virtio-serial-pci -chardev "socket,id=agent,path=$scratch/agent,server=on,wait=off" \
  -device virtserialport,chardev=agent,name=org.memtide.agent.0 </dev/null |
  sed -u 's/\r$//' | tee "$scratch/checks" || true
if ! grep -qxF "$ALL_IS_WELL" "$scratch/checks"; then
  tail -n 20 "$scratch/console" >&2
  die "a check has failed, or the virtual host has not come to the end"
fi
# The PSI trigger, too, was opened in the sandbox: the agent answers each request once, and nothing was refused.
[ "$(grep -c '"done"' "$scratch/answers")" = 3 ] || { cat "$scratch/answers" >&2; die "the agent has not done what it was asked for"; }
