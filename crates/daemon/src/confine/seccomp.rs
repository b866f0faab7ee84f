//! The system calls that the threads may make.
//!
//! **Problem.** A list of allowed calls is tighter than a list of denied calls: calls of later kernels, and of a processor's other
//! modes, are not on it. But if another libc makes a call that is missing from the list, the daemon must not end.
//!
//! **Rule.** A call that is not on the list fails like a call that the kernel does not have (`ENOSYS`). A libc then uses an older call,
//! like on an older kernel. If no older call can replace it, as with `execve`, the operation fails.

use std::collections::BTreeMap;

use libc::{c_int, c_long};
use memtide_host::PAGEMAP_SCAN;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// The threads that a list is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All threads: no programs, no other processes, no namespaces, no network except Unix sockets, no code made at run time.
    Process,
    /// The same, and no opening for writing, and no change of a file system.
    Monitors,
    /// A helper: it opens files, and reads and writes them. No sockets, no processes, and no more changes of its confinement.
    Helper,
    /// The helper that writes the journal: a helper that makes and removes files, too.
    Writer,
    /// The helper that makes tiers: a helper that makes and removes files, and writes to devices.
    TierMaker,
    /// The helper that splits huge pages: it opens files for reading, and calls memory of processes cold. No sockets, no signals, no other
    /// advice.
    Splitter,
    /// `memtide audit`, once it has opened what it reads: it copies memory of other processes, and prints. No opening, no sockets, no writing to
    /// that memory.
    Auditor,
    /// Like the monitors' thread, and no opening, no connecting, and no more changes of its confinement. Also for the helper that asks the kernel
    /// about sockets.
    Api,
}

/// Memory, time, threads, signals and open descriptors.
const EVERY: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_membarrier,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_exit,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_pipe,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
];

/// Looking at files, their locks and processes (and waiting for their end), connecting, and further confinement.
const LOOK: &[c_long] = &[
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_flock,
    libc::SYS_connect,
    libc::SYS_pidfd_open,
    libc::SYS_prctl,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_seccomp,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
];

/// Looking at files and opening them.
const FILES: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// Making, removing, cutting and locking files.
const MAKE: &[c_long] = &[
    libc::SYS_flock,
    libc::SYS_ftruncate,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// Holding a process, and finding the one that started this one.
const HOLD: &[c_long] = &[libc::SYS_pidfd_open, libc::SYS_getppid];

/// Calls, besides [`MAKE`], for the guest locks, the end of the socket, and the sockets that consoles of UML instances answer to.
const WRITE: &[c_long] = &[
    libc::SYS_bind,
    libc::SYS_fchmodat,
    libc::SYS_openat,
    libc::SYS_pwrite64,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
];

/// The flags that open a file for writing, or create it. With musl, `O_ACCMODE` has `O_PATH`, too, which opens nothing.
const WRITES: c_int = (libc::O_ACCMODE & !libc::O_PATH) | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND;
/// The allowed commands of `fcntl` besides `F_SETFL`. `F_SETOWN` and `F_SETSIG` let the kernel send any signal to any process of the same user.
const FCNTLS: [c_int; 5] =
    [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL];
/// The allowed requests of `ioctl`: `FIONBIO`, `FIOCLEX`, `FIONREAD`, `TCGETS`, `TIOCGWINSZ`.
const IOCTLS: [u32; 5] = [0x5421, 0x5451, 0x541b, 0x5401, 0x5413];

/// Applies the list of `part` to this thread.
pub fn apply(part: Part) -> String {
    let (whose, applied) = match part {
        Part::Process => ("all threads", "seccomp: no programs, Unix sockets only"),
        Part::Monitors => ("monitors", "monitors: no writing"),
        Part::Helper | Part::Writer | Part::TierMaker => ("helper", "files only"),
        Part::Splitter => ("helper", "reads files, calls memory cold"),
        Part::Auditor => ("audit", "reads memory"),
        Part::Api => ("API", "no connections"),
    };
    match program(part)
        .and_then(|program| seccompiler::apply_filter(&program).map_err(|error| error.to_string()))
    {
        Ok(()) => applied.to_owned(),
        Err(error) => format!("seccomp not applied ({whose}): {error}"),
    }
}

fn program(part: Part) -> Result<BpfProgram, String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let (missing, listed) = (SeccompAction::Errno(libc::ENOSYS.cast_unsigned()), SeccompAction::Allow);
    let rules = rules(part).map_err(|error| error.to_string())?;
    let filter = SeccompFilter::new(rules, missing, listed, arch).map_err(|error| error.to_string())?;
    filter.try_into().map_err(|error: seccompiler::BackendError| error.to_string())
}

/// The allowed calls with their rules. One of the rules must hold; a call without rules is always allowed.
fn rules(part: Part) -> Result<BTreeMap<c_long, Vec<SeccompRule>>, seccompiler::BackendError> {
    let lists: &[&[c_long]] = match part {
        Part::Process => &[EVERY, LOOK, MAKE, WRITE],
        Part::Monitors => &[EVERY, LOOK],
        Part::Helper => &[EVERY, FILES],
        Part::Writer => &[EVERY, FILES, MAKE],
        Part::TierMaker => &[EVERY, FILES, MAKE, &[libc::SYS_pwrite64, libc::SYS_fsync]],
        Part::Splitter => &[EVERY, FILES, HOLD],
        Part::Auditor => &[EVERY, &[libc::SYS_process_vm_readv]],
        Part::Api => &[EVERY],
    };
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        lists.iter().flat_map(|list| list.iter()).map(|call| (*call, Vec::new())).collect();
    // No memory may become code.
    let no_code = |argument| without(argument, libc::PROT_EXEC);
    rules.insert(libc::SYS_mmap, vec![no_code(2)?]);
    rules.insert(libc::SYS_mprotect, vec![no_code(2)?]);
    // Threads, but no processes. The arguments of clone3 are in memory, which a filter cannot read, so clone3 is not on the list.
    rules.insert(libc::SYS_clone, vec![with(0, libc::CLONE_THREAD)?]);
    let mut fcntls = vec![SeccompRule::new(vec![
        equals(1, u64::from(libc::F_SETFL.cast_unsigned()))?,
        masks(2, libc::O_ASYNC, 0)?,
    ])?];
    for command in FCNTLS {
        fcntls.push(is(1, u64::from(command.cast_unsigned()))?);
    }
    rules.insert(libc::SYS_fcntl, fcntls);
    // The process may read its own limits, and signal its own end (abort).
    rules.insert(libc::SYS_prlimit64, vec![is(2, 0)?]);
    rules.insert(libc::SYS_tgkill, vec![is(0, u64::from(std::process::id()))?]);
    let looks_at_pages = (part == Part::Splitter).then_some(PAGEMAP_SCAN);
    let requests = IOCTLS.into_iter().chain(looks_at_pages);
    rules.insert(
        libc::SYS_ioctl,
        requests.map(|request| is(1, u64::from(request))).collect::<Result<_, _>>()?,
    );
    if part == Part::Splitter {
        rules.insert(libc::SYS_process_madvise, vec![is(3, u64::from(libc::MADV_COLD.cast_unsigned()))?]);
    }
    if matches!(part, Part::Process | Part::Monitors) {
        rules.insert(libc::SYS_socket, vec![is(0, u64::from(libc::AF_UNIX.cast_unsigned()))?]);
        rules.insert(libc::SYS_socketpair, vec![is(0, u64::from(libc::AF_UNIX.cast_unsigned()))?]);
    }
    if matches!(part, Part::Monitors | Part::Splitter) {
        rules.insert(libc::SYS_openat, vec![without(2, WRITES)?]);
        #[cfg(target_arch = "x86_64")]
        rules.insert(libc::SYS_open, vec![without(1, WRITES)?]);
    }
    Ok(rules)
}

/// The lower half of argument `argument` is `value`. The kernel uses only this half of an `int`.
fn is(argument: u8, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![equals(argument, value)?])
}

fn equals(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// None of `bits` is set in argument `argument`.
fn without(argument: u8, bits: c_int) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![masks(argument, bits, 0)?])
}

/// All of `bits` are set in argument `argument`.
fn with(argument: u8, bits: c_int) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![masks(argument, bits, u64::from(bits.cast_unsigned()))?])
}

fn masks(argument: u8, bits: c_int, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    let mask = SeccompCmpOp::MaskedEq(u64::from(bits.cast_unsigned()));
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, mask, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_list_is_a_program_and_tighter_than_the_one_before() {
        let calls = |part| rules(part).unwrap().into_keys().collect::<std::collections::BTreeSet<_>>();
        let (all, monitors, api) = (calls(Part::Process), calls(Part::Monitors), calls(Part::Api));
        assert!(monitors.is_subset(&all) && api.is_subset(&monitors));
        for part in [
            Part::Process,
            Part::Monitors,
            Part::Helper,
            Part::Writer,
            Part::Splitter,
            Part::Auditor,
            Part::Api,
        ] {
            assert!(!program(part).unwrap().is_empty());
        }
        for denied in [
            libc::SYS_execve,
            libc::SYS_ptrace,
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_kill,
            libc::SYS_clone3,
        ] {
            assert!(!all.contains(&denied), "{denied}");
        }
        for part in [Part::Process, Part::Monitors, Part::Helper, Part::Writer, Part::Api] {
            assert!(!calls(part).contains(&libc::SYS_process_madvise), "{part:?}");
        }
        let (splits, audits) = (calls(Part::Splitter), calls(Part::Auditor));
        assert!(audits.contains(&libc::SYS_process_vm_readv) && !all.contains(&libc::SYS_process_vm_readv));
        assert!(!audits.contains(&libc::SYS_openat));
        for denied in
            [libc::SYS_socket, libc::SYS_connect, libc::SYS_pidfd_send_signal, libc::SYS_process_vm_writev]
        {
            assert!(!splits.contains(&denied) && !audits.contains(&denied), "{denied}");
        }
    }
}
