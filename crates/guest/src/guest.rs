//! A guest that lives: one step after the other, each short enough for what goes on.
//!
//! **Rule.** While nothing presses, a step lasts until something changes. While memory is short or a balloon moves, it lasts
//! [`SHORT`] milliseconds. Within a step the order is: the kernel frees, the balloon deflates or inflates, programs ask, files are
//! read, free pages are reported.

use std::sync::Arc;

use memtide_model::{Bytes, Span};

use crate::counters::Counters;
use crate::file::Reading;
use crate::pools::Pools;
use crate::program::{KILLED_AFTER, Running};
use crate::random::Random;
use crate::reclaim::{Budget, Marks};
use crate::spec::{Course, Kernel, Spec};

/// The length of a step while something presses, in milliseconds.
const SHORT: u64 = 100;
/// The longest step while a program or a balloon moves, in milliseconds.
const GROWING: u64 = 250;
/// Since 6.7 a kernel keeps freed pages on the per-CPU lists, in all as much as its low watermark, less an eighth that is on the
/// way (46 to 48 MiB of 1 GiB were seen once a guest had freed memory; for some seconds after that it is up to twice as much).
const READY_EIGHTHS: u64 = 7;
/// Earlier ones keep this much, in bytes.
const READY_BEFORE: u64 = 2 << 20;

/// A guest.
#[derive(Clone, Debug)]
pub struct Guest {
    pub(crate) spec: Arc<Spec>,
    /// Milliseconds since its start.
    pub(crate) now: u64,
    pub(crate) pools: Pools,
    pub(crate) marks: Marks,
    pub(crate) counters: Counters,
    pub(crate) driver: Driver,
    pub(crate) programs: Vec<Running>,
    pub(crate) files: Vec<Reading>,
    /// Page cache that nobody reads.
    pub(crate) cold: u64,
    pub(crate) kswapd_awake: bool,
    pub(crate) budget: Budget,
    pub(crate) next_report: Option<u64>,
    pub(crate) progress: Progress,
    random: Random,
    /// Of 1,000 parts of a processor, what balloon and host leave to its programs.
    speed: u64,
    /// Whether a program waits for memory.
    starves: bool,
    /// The host swaps: all that the guest does takes this many times as long, in thousandths.
    host_slows: u64,
    /// In want it waits for memory, and does not help itself.
    pub(crate) waits: bool,
}

/// What a guest has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Time in which programs would have worked, summed over them, in microseconds.
    pub busy_us: u64,
    /// Work done: time that it takes at full speed, in microseconds.
    pub done_us: u64,
    /// Time in which a program asked for memory and got less than a tenth of it, in milliseconds.
    pub starved_ms: u64,
    /// Bytes that were read again although the page cache once had them.
    pub refaults: u64,
    /// Bytes read from the disk.
    pub read: u64,
    /// Programs killed for want of memory.
    pub kills: u64,
    /// What its balloon has moved, up and down.
    pub moved: u64,
}

/// How much memory a guest has and needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// What it keeps.
    pub actual: Bytes,
    /// What kernel and programs have, in memory and in swap.
    pub used: Bytes,
    /// The same and all of the files that are read at the moment.
    pub needed: Bytes,
    /// What it costs the host.
    pub footprint: Bytes,
    /// Page cache.
    pub cache: Bytes,
    /// What stays with the host in torn huge pages, beside the footprint.
    pub torn: Bytes,
    /// Whether a program waits for memory now.
    pub starves: bool,
}

/// The balloon's driver.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Driver {
    /// What the VMM was last asked for: memory that the guest keeps.
    pub(crate) target: u64,
    /// It is on the way to its target.
    pub(crate) moves: bool,
    /// It does nothing, as a driver that hangs.
    pub(crate) hangs: bool,
    /// Before this moment no driver is there: the guest boots. In milliseconds.
    pub(crate) up_at: u64,
    /// What the VMM goes on to report until a new driver is there.
    pub(crate) reported: Option<u64>,
}

impl Guest {
    /// A guest at its start. Files that are `cached` and cold cache are there already.
    #[must_use]
    pub fn new(spec: Arc<Spec>, seed: u64) -> Self {
        let memory = spec.memory.get();
        let mut guest = Self {
            now: 0,
            pools: Pools::default(),
            marks: Marks::new(memory),
            counters: Counters::default(),
            driver: Driver { target: memory, up_at: spec.boots_for.as_millis(), ..Driver::default() },
            programs: Vec::new(),
            files: Vec::new(),
            cold: 0,
            kswapd_awake: false,
            budget: Budget::default(),
            next_report: None,
            progress: Progress::default(),
            random: Random::new(seed),
            speed: 1_000,
            starves: false,
            host_slows: 1_000,
            waits: false,
            spec,
        };
        guest.boot();
        guest
    }

    /// Fills memory as it is once the guest has booted.
    fn boot(&mut self) {
        let spec = Arc::clone(&self.spec);
        let memory = spec.memory.get();
        let most_ready = if spec.kernel >= Kernel::V6_12 {
            self.marks.low / 8 * READY_EIGHTHS
        } else {
            READY_BEFORE.min(memory)
        };
        self.pools = Pools::new(memory, spec.kernel_size.get() + spec.slab.get(), most_ready);
        self.programs = spec.programs.iter().cloned().map(Running::new).collect();
        self.files = spec.files.iter().cloned().map(Reading::new).collect();
        self.counters = Counters::default();
        (self.cold, self.kswapd_awake, self.next_report) = (0, false, None);
        // What starts with the guest is there already: nobody looks at a guest before it has settled.
        let room = |guest: &Self| guest.pools.free().saturating_sub(guest.marks.high);
        for index in 0..self.programs.len() {
            let program = &self.programs[index];
            if program.spec.starts == Span::ZERO && self.now == 0 {
                let bytes = self.pools.take(program.spec.size.get().min(room(self)), 0);
                self.programs[index].resident = bytes;
                self.pools.programs += bytes;
            }
        }
        for index in 0..self.files.len() {
            if self.files[index].spec.cached {
                let bytes = self.pools.take(self.files[index].size().min(room(self)), 0);
                (self.files[index].resident, self.files[index].seen) = (bytes, bytes);
                self.files[index].heat = self.files[index].spec.rate;
                self.pools.cache += bytes;
            }
        }
        let cold = if spec.full_of_cold { u64::MAX } else { spec.cold.get() };
        self.cold = self.pools.take(cold.min(room(self)), 0);
        self.pools.cache += self.cold;
    }

    /// Lives up to `to`, counted from its start.
    pub fn advance(&mut self, to: Span) {
        while self.now < to.as_millis() {
            let dt = self.stride(to.as_millis() - self.now);
            self.step(dt);
        }
    }

    /// How long the next step may be, at most `left` milliseconds: to the next change, and no longer than free memory lasts.
    fn stride(&self, left: u64) -> u64 {
        let mut next = self.next_report.unwrap_or(u64::MAX);
        let (mut takes, mut moves) = (0_u64, self.driver.moves);
        for program in &self.programs {
            next = next.min(program.next_change(self.now));
            match program.spec.course {
                Course::Drift { rate, .. } => takes = takes.saturating_add(rate),
                _ if program.is_growing() => {
                    takes = takes.saturating_add(program.spec.rate);
                    moves = true;
                }
                _ => {}
            }
        }
        for file in &self.files {
            next = next.min(file.next_change(self.now));
            if file.is_read(self.now) && (file.spec.size.is_none() || file.missing() > 0) {
                takes = takes.saturating_add(file.spec.rate);
            }
        }
        if self.driver.moves {
            takes = takes.saturating_add(self.spec.inflates);
        }
        let room = self.pools.free().saturating_sub(self.marks.low);
        let calm = !self.kswapd_awake && self.now >= self.driver.up_at;
        let lasts = match takes {
            0 => left,
            _ => u64::try_from(u128::from(room) * 1_000 / u128::from(takes)).unwrap_or(u64::MAX),
        };
        let longest = if calm { lasts.max(SHORT) } else { SHORT };
        let longest = if moves { longest.min(GROWING) } else { longest };
        longest.min(left).min(next.saturating_sub(self.now)).max(1)
    }

    fn step(&mut self, dt: u64) {
        self.budget = self.reclaim_budget(dt);
        self.balance();
        let driver_takes = self.drive(dt);
        // The driver works on one of two processors.
        self.speed = 2_000_000 / (2_000 + driver_takes) * 1_000 / self.host_slows;
        let starved = self.run_programs(dt);
        self.read_files(dt);
        self.now += dt;
        self.report_free_pages();
        if starved {
            self.progress.starved_ms += dt;
        }
        self.starves = starved;
        debug_assert!({
            self.pools.check();
            true
        });
    }

    /// Lets all programs work for `dt` milliseconds. Whether one of them starved.
    fn run_programs(&mut self, dt: u64) -> bool {
        let (mut starved, mut out_of_memory) = (false, false);
        for index in 0..self.programs.len() {
            let wants = self.programs[index].wants(self.now, dt, &mut self.random);
            let has = self.programs[index].has();
            if wants < has {
                self.shrink(index, has - wants);
            }
            let is_busy = self.programs[index].is_busy();
            let mut done = 1_000;
            let lacks = wants.saturating_sub(self.programs[index].has());
            if lacks > 0 {
                let asked = (self.programs[index].spec.rate / 1_000 * dt).max(1) / 1_000 * self.speed;
                let asked = lacks.min(asked.max(1));
                let got = self.grow(index, asked, dt);
                done = 1_000 * got / asked;
                starved |= got < asked / 10;
                out_of_memory |= self.programs[index].denied >= KILLED_AFTER;
            }
            if self.programs[index].has() >= wants && wants > 0 {
                self.programs[index].is_served(self.now + dt);
            }
            done = done.min(self.swap_in(index, dt));
            if is_busy {
                self.progress.busy_us += dt * 1_000;
                self.progress.done_us += dt * done * self.speed / 1_000;
            }
        }
        if out_of_memory && !self.waits {
            self.kill();
        }
        starved
    }

    fn shrink(&mut self, index: usize, bytes: u64) {
        let program = &mut self.programs[index];
        let swapped = bytes.min(program.swapped);
        program.swapped -= swapped;
        let resident = (bytes - swapped).min(program.resident);
        program.resident -= resident;
        self.pools.programs -= resident;
        self.pools.free_up(resident);
    }

    /// Gives a program up to `asked` bytes.
    fn grow(&mut self, index: usize, asked: u64, dt: u64) -> u64 {
        let mut got = self.allocate(asked);
        if got < asked {
            self.deflate_for(asked - got, dt);
            got += self.pools.take(asked - got, self.marks.min);
        }
        self.pools.programs += got;
        self.counters.minor_faults += got / 4_096;
        let program = &mut self.programs[index];
        program.resident += got;
        program.denied = if got == 0 { program.denied + dt } else { 0 };
        got
    }

    /// Reads back what a program accesses of its swapped memory. The speed that is left to it, in thousandths.
    fn swap_in(&mut self, index: usize, dt: u64) -> u64 {
        let program = &self.programs[index];
        if program.swapped == 0 || program.spec.touches == 0 {
            return 1_000;
        }
        let (swapped, has) = (u128::from(program.swapped), u128::from(program.has().max(1)));
        let (touches, disk) = (u128::from(program.spec.touches), u128::from(self.spec.swap_speed.max(1)));
        // As with files: speed = disk × has / (disk × has + touches × swapped).
        let done = 1_000 * disk * has / (disk * has + touches * swapped);
        let read = touches * swapped / has * done / 1_000 * u128::from(dt) / 1_000;
        let read = u64::try_from(read).unwrap_or(u64::MAX).min(program.swapped);
        let got = self.allocate(read);
        let program = &mut self.programs[index];
        let got = got.min(program.swapped);
        program.swapped -= got;
        program.resident += got;
        self.pools.programs += got;
        self.counters.swapped_in += read;
        self.counters.major_faults += read / 4_096;
        u64::try_from(done).unwrap_or(1_000)
    }

    /// The OOM killer: the program with most memory ends.
    fn kill(&mut self) {
        let largest = (0..self.programs.len()).max_by_key(|&index| self.programs[index].resident);
        let Some(index) = largest else { return };
        let resident = self.programs[index].resident;
        self.programs[index].is_killed(self.now);
        self.pools.programs -= resident;
        self.pools.free_up(resident);
        self.counters.oom_kills += 1;
        self.progress.kills += 1;
        self.programs.iter_mut().for_each(|program| program.denied = 0);
    }

    /// Reads files for `dt` milliseconds.
    fn read_files(&mut self, dt: u64) {
        let now = self.now;
        let misses = |file: &&Reading| file.is_read(now) && (file.missing() > 0 || file.spec.size.is_none());
        let readers = self.files.iter().filter(misses).count().max(1) as u64;
        let disk = self.spec.disk / readers * 1_000 / self.host_slows;
        for index in 0..self.files.len() {
            let is_read = self.files[index].is_read(now);
            self.files[index].breathe(is_read, dt);
            if !is_read {
                continue;
            }
            self.progress.busy_us += dt * 1_000;
            if self.files[index].spec.size.is_none() {
                let bytes = self.files[index].spec.rate.min(disk) / 1_000 * dt;
                let got = self.allocate(bytes);
                self.cold += got;
                self.pools.cache += got;
                self.progress.read += bytes;
                self.progress.done_us += dt * self.speed;
                continue;
            }
            let misses = self.files[index].misses(dt, disk);
            let wanted = misses.read.min(self.files[index].missing());
            let got = if wanted > 0 { self.allocate(wanted) } else { 0 };
            // Reclaim may have taken of this very file meanwhile.
            let file = &mut self.files[index];
            file.resident += got;
            file.seen = file.seen.max(file.resident);
            if file.spec.mapped {
                self.counters.major_faults += misses.read / 4_096;
            }
            self.pools.cache += got;
            self.progress.read += misses.read;
            self.progress.refaults += misses.refaults;
            self.progress.done_us += misses.done * self.speed / 1_000;
        }
    }
}

/// What its users do with a guest, from inside.
impl Guest {
    /// From now on the program with this number in the spec wants `size`, whatever its course says. A reset forgets this.
    pub fn wish(&mut self, program: usize, size: Bytes) {
        if let Some(program) = self.programs.get_mut(program) {
            (program.spec.size, program.spec.course) = (size, Course::Constant);
        }
    }

    /// In want the guest waits for memory, or helps itself again. While it waits it neither deflates its own balloon nor kills.
    pub const fn wait(&mut self, waits: bool) {
        self.waits = waits;
    }
}

/// What the VMM and the host do with a guest, and what they see of it.
impl Guest {
    /// The VMM writes the balloon's target: memory that the guest is to keep.
    pub fn set_target(&mut self, target: Bytes) {
        self.driver.target = target.get().min(self.pools.memory);
        self.driver.moves = self.spec.balloon;
    }

    /// What the VMM was last asked for.
    #[must_use]
    pub const fn target(&self) -> Bytes {
        Bytes::new(self.driver.target)
    }

    /// What the VMM reports as kept; `None` while no driver has ever been there.
    #[must_use]
    pub fn reported_actual(&self) -> Option<Bytes> {
        if self.now >= self.driver.up_at {
            return Some(Bytes::new(self.pools.memory - self.pools.balloon));
        }
        self.driver.reported.map(Bytes::new)
    }

    /// Whether a driver is at work.
    #[must_use]
    pub fn has_driver(&self) -> bool {
        self.spec.balloon && self.now >= self.driver.up_at
    }

    /// Whether it was reset, and the new driver is not there yet.
    #[must_use]
    pub fn was_reset(&self) -> bool {
        self.driver.reported.is_some() && self.now < self.driver.up_at
    }

    /// The driver hangs, or goes on.
    pub const fn hang(&mut self, hangs: bool) {
        self.driver.hangs = hangs;
    }

    /// It deflates all of its balloon by itself, although it needs nothing.
    pub fn deflate_all(&mut self) {
        self.progress.moved += self.pools.deflate(self.pools.balloon);
        self.driver.moves = false;
    }

    /// It is reset and boots for `boots_for`. What it touched stays with the host; its balloon is empty, and the VMM goes on to
    /// report the old size until the new driver is there.
    pub fn reset(&mut self, boots_for: Span) {
        let reported = self.reported_actual().map(Bytes::get);
        let backed = self.pools.backed();
        self.boot();
        // What starts with the guest is not there yet: it boots first.
        let bare = backed.saturating_sub(self.pools.backed()).min(self.pools.free_bare);
        self.pools.free_bare -= bare;
        self.pools.free_backed += bare;
        self.driver.up_at = self.now + boots_for.as_millis();
        self.driver.reported = reported;
        self.driver.moves = self.spec.balloon;
    }

    /// The host splits its torn huge pages and has their memory again. Returns how much that was.
    pub fn split_huge_pages(&mut self) -> Bytes {
        Bytes::new(std::mem::take(&mut self.pools.torn))
    }

    /// The host swaps: from now on everything takes `times` / 1,000 as long.
    pub fn slow_down(&mut self, times: u64) {
        self.host_slows = times.max(1_000);
    }

    /// How much memory it has and needs.
    #[must_use]
    pub fn size(&self) -> Size {
        let has: u64 = self.programs.iter().map(Running::has).sum();
        let used = self.pools.kernel + has;
        let read = self.files.iter().filter(|file| file.is_read(self.now));
        let needed = used + read.map(Reading::size).sum::<u64>();
        Size {
            actual: Bytes::new(self.pools.memory - self.pools.balloon),
            used: Bytes::new(used),
            needed: Bytes::new(needed),
            footprint: Bytes::new(self.footprint()),
            cache: Bytes::new(self.pools.cache),
            torn: Bytes::new(self.pools.torn),
            starves: self.starves,
        }
    }

    /// What it costs the host. While it boots for the first time it touches its memory bit by bit: of 186 MiB, QEMU under
    /// software emulation had 31 after 0.4 s, 117 after 1 s and 145 after 1.4 s.
    fn footprint(&self) -> u64 {
        let whole = self.spec.overhead.get() + self.pools.backed();
        let boots_until = self.spec.boots_for.as_millis();
        match self.now < boots_until && self.driver.reported.is_none() {
            true => whole * self.now / boots_until,
            false => whole,
        }
    }

    /// What it has done since its start.
    #[must_use]
    pub const fn progress(&self) -> Progress {
        self.progress
    }

    /// What it is made of.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// How long it lives.
    #[must_use]
    pub const fn age(&self) -> Span {
        Span::from_millis(self.now)
    }
}
