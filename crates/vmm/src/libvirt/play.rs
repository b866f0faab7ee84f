//! Whether a guest is in play: its process works, or takes or gives memory.
//!
//! **Problem.** Each question costs libvirt's daemon half a millisecond of processor time, and one daemon answers for all guests. A guest that rests has nothing new to tell.
//!
//! **Rule.** Asking the kernel whether a process has run, or its memory has changed, costs 20 µs. In a guest that lacks memory, both happen. A guest is also in play for a while after memtide has asked it
//! for something.

use std::path::Path;
use std::time::{Duration, Instant};

use memtide_host::{ProcFs, Root, statm};
use memtide_model::{Bytes, Span};

/// A process that uses more of a processor is at work, in percent. A guest at rest uses 1 to 2 % under software emulation, less under KVM.
const AT_WORK_PERCENT: u64 = 5;
/// A process whose memory changes by more between two looks moves.
const STIR: Bytes = Bytes::from_mib(2);
/// The least time between two looks: the kernel counts processor time in steps of 10 ms.
const BETWEEN_LOOKS: Duration = Duration::from_millis(400);
/// A guest stays in play for this long after the last sign of it, and after a request.
const PLAYS_ON: Duration = Duration::from_secs(3);

/// What one process was seen to do.
#[derive(Debug)]
pub(super) struct Play {
    pid: u32,
    before: Option<(Instant, Span, Bytes)>,
    until: Instant,
}

impl Play {
    pub(super) fn new(pid: u32) -> Self {
        Self { pid, before: None, until: Instant::now() + PLAYS_ON }
    }

    /// Something was asked of the guest.
    pub(super) fn goes_on(&mut self) {
        self.until = Instant::now() + PLAYS_ON;
    }

    /// Whether the guest is in play.
    pub(super) fn is_on(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.before.is_none_or(|(at, ..)| now.saturating_duration_since(at) >= BETWEEN_LOOKS);
        if is_due {
            let Some((cpu, resident)) = look(self.pid) else {
                // Nobody knows.
                self.goes_on();
                return true;
            };
            if let Some((at, cpu_before, resident_before)) = self.before.replace((now, cpu, resident)) {
                let elapsed = Span::from(now.saturating_duration_since(at)).as_millis();
                let ran = cpu.as_millis().saturating_sub(cpu_before.as_millis());
                if ran * 100 > elapsed * AT_WORK_PERCENT || resident.abs_diff(resident_before) > STIR {
                    self.goes_on();
                }
            }
        }
        now < self.until
    }
}

/// The processor time and the resident memory of a process.
fn look(pid: u32) -> Option<(Span, Bytes)> {
    let stat = ProcFs::new(Path::new("/proc")).stat(pid)?;
    let resident = statm(&Root::system(), pid).ok()?.resident;
    Some((stat.cpu_time(), resident))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_is_in_play_and_one_that_rests_is_not() {
        let me = Play::new(std::process::id());
        let rests = |play: &mut Play| {
            play.until = Instant::now();
            play.before = play.before.map(|(at, cpu, resident)| {
                (at.checked_sub(Duration::from_secs(3600)).unwrap_or(at), cpu, resident)
            });
        };
        let mut play = me;
        assert!(play.is_on(), "a new guest is");
        rests(&mut play);
        assert!(!play.is_on(), "a second of work in an hour");
        play.goes_on();
        assert!(play.is_on(), "it was asked for something");
        rests(&mut play);
        let held = vec![1_u8; 8 << 20];
        assert!(play.is_on(), "it takes memory");
        drop(held);
    }
}
