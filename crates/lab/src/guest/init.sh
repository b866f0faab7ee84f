#!/bin/busybox sh
# The first process of a lab guest: mounts, modules, the exerciser on its port, a shell on the console.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t cgroup2 cgroup2 /cg
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tmpfs -o size=90% tmpfs /tmp
while read -r module; do
    insmod "/mod/$module.ko" || echo "insmod $module failed"
done < /mod/order

# A kernel without virtio has terminals as ports, named on its command line: lab.control=/dev/ttyS0.
option() {
    sed -n "s/.*$1=\([^ ]*\).*/\1/p" /proc/cmdline
}

# UML's disk under the name that it has in other guests.
[ -b /dev/ubda ] && ln -s ubda /dev/vda

# There is no udev here: name the virtio-serial ports as it would.
name_ports() {
    mkdir -p /dev/virtio-ports
    for port in /sys/class/virtio-ports/*; do
        [ -s "$port/name" ] && ln -sf "/dev/${port##*/}" "/dev/virtio-ports/$(cat "$port/name")"
    done
}

# A port appears a moment after its driver; the exerciser is started again should it ever end.
terminal=$(option lab.control)
control=${terminal:-/dev/virtio-ports/org.memtide.lab.0}
while :; do
    if [ "$terminal" ]; then
        stty raw -echo < "$terminal"
    else
        name_ports 2> /dev/null
    fi
    [ -e "$control" ] && memtide-load lab-helper --control "$control"
    sleep 0.1
done &

# The agent, if the guest has its port. All ports appear at about the same time, and a guest without the agent must not pay for one.
agent=$(option memtide_agent)
agent=${agent:-/dev/virtio-ports/org.memtide.agent.0}
{
    until [ -e "$control" ]; do sleep 0.1; done
    sleep 1
    name_ports
    while [ -e "$agent" ]; do
        memtide-agent
        sleep 1
    done
} 2> /tmp/agent.log &

echo "GUEST-UP $(cut -d' ' -f1 /proc/uptime) $(uname -r)"
while :; do
    # The console of a kernel with terminals as ports reads nothing.
    if [ "$terminal" ]; then sleep 1000; else setsid cttyhack sh; fi
    sleep 1
done
