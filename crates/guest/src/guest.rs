//! A guest that advances step by step. Each step is short enough for the events in it.
//!
//! **Rule.** Without pressure, a step lasts until something changes. While memory is short or the guest boots, it lasts at most [`SHORT`]
//! milliseconds. While a program or a balloon moves, it lasts at most [`GROWING`]. Within a step, the order is: the kernel frees memory,
//! the balloon deflates or inflates, programs ask for memory, files are read, free pages are reported.

use std::sync::Arc;

use memtide_model::{Bytes, Span};

use crate::counters::Counters;
use crate::device::Device;
use crate::file::Reading;
use crate::limits::{Budget, Marks};
use crate::pools::Pools;
use crate::program::{KILLED_AFTER, Running};
use crate::random::Random;
use crate::spec::{Course, Kernel, Spec};

/// The length of a step while memory is short, in milliseconds.
const SHORT: u64 = 100;
/// The longest step while a program or a balloon moves, in milliseconds.
const GROWING: u64 = 250;
/// Since 6.7, a kernel keeps freed pages on the per-CPU lists: in total its low watermark, less about an eighth that is in transit.
/// (Measured: 46 to 48 MiB of 1 GiB once a guest had freed memory, and up to twice as much for a few seconds after that.)
const READY_EIGHTHS: u64 = 7;
/// Earlier kernels keep this much, in bytes.
const READY_BEFORE: u64 = 2 << 20;
/// The CPU time of a guest that does nothing, in microseconds for each millisecond.
const IDLE_CPU: u64 = 3;
/// Page cache that a CPU copies to a program in a microsecond, in bytes.
const COPIED: u64 = 1 << 10;

/// A guest.
#[derive(Clone, Debug)]
pub struct Guest {
    pub(crate) spec: Arc<Spec>,
    /// Milliseconds since its start.
    pub(crate) now: u64,
    pub(crate) pools: Pools,
    /// The most memory that the host ever backed.
    most_backed: u64,
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
    /// Free page reporting returns small pieces, too.
    pub(crate) pieces_return: bool,
    pub(crate) progress: Progress,
    random: Random,
    /// The part of a processor that the balloon and the host leave to its programs, in thousandths.
    speed: u64,
    /// Whether a program waits for memory.
    starves: bool,
    /// The host swaps: everything in the guest takes this many times as long, in thousandths.
    host_slows: u64,
    /// Others want the host's processors, too: what it does on its own takes this many times as long, in thousandths.
    crowded: u64,
    /// If it runs short, it waits for memory and does not help itself.
    pub(crate) waits: bool,
    /// The tier that the host has attached.
    pub(crate) tier: Option<Device>,
}

/// The work of a guest since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Time in which programs would have worked, summed over all programs, in microseconds.
    pub busy_us: u64,
    /// Work done, as the time that it takes at full speed, in microseconds.
    pub done_us: u64,
    /// Time in which a program asked for memory and got less than a tenth of it, in milliseconds.
    pub starved_ms: u64,
    /// Bytes read again after the page cache had already held them.
    pub refaults: u64,
    /// Bytes read from the disk.
    pub read: u64,
    /// Programs killed for lack of memory.
    pub kills: u64,
    /// Bytes that its balloon has moved, in both directions.
    pub moved: u64,
    /// CPU time that its VMM has used, in microseconds.
    pub cpu_us: u64,
    /// Bytes written to its tier.
    pub to_tier: u64,
    /// Bytes read back from it.
    pub from_tier: u64,
}

/// The memory that a guest has and needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Memory that it keeps.
    pub actual: Bytes,
    /// Memory of the kernel and the programs, resident or in its own swap. What lies in its tier does not count.
    pub used: Bytes,
    /// The same, plus the full size of all files that are being read.
    pub needed: Bytes,
    /// Its cost to the host.
    pub footprint: Bytes,
    /// Page cache.
    pub cache: Bytes,
    /// Memory that the host keeps in torn huge pages, in addition to the footprint.
    pub torn: Bytes,
    /// Whether a program is waiting for memory.
    pub starves: bool,
}

/// The balloon's driver.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Driver {
    /// The last target that the VMM was asked for: memory that the guest keeps.
    pub(crate) target: u64,
    /// Whether it is on the way to its target.
    pub(crate) moves: bool,
    /// Whether it hangs and does nothing.
    pub(crate) hangs: bool,
    /// The guest boots until this moment, without a driver. In milliseconds.
    pub(crate) up_at: u64,
    /// The value that the VMM still reports until a new driver starts.
    pub(crate) reported: Option<u64>,
}

impl Guest {
    /// A guest at its start. Its cold cache and its `cached` files are already in memory.
    #[must_use]
    pub fn new(spec: Arc<Spec>, seed: u64) -> Self {
        let memory = spec.memory.get();
        let mut guest = Self {
            now: 0,
            pools: Pools::default(),
            most_backed: 0,
            marks: Marks::new(memory),
            counters: Counters::default(),
            driver: Driver { target: memory, up_at: spec.boots_for.as_millis(), ..Driver::default() },
            programs: Vec::new(),
            files: Vec::new(),
            cold: 0,
            kswapd_awake: false,
            budget: Budget::default(),
            next_report: None,
            pieces_return: false,
            progress: Progress::default(),
            random: Random::new(seed),
            speed: 1_000,
            starves: false,
            host_slows: 1_000,
            crowded: 1_000,
            waits: false,
            tier: None,
            spec,
        };
        guest.boot();
        guest
    }

    /// Fills memory to the state after boot.
    fn boot(&mut self) {
        let spec = Arc::clone(&self.spec);
        let memory = spec.memory.get();
        let most_ready = if spec.kernel >= Kernel::V6_12 {
            self.marks.low / 8 * READY_EIGHTHS
        } else {
            READY_BEFORE.min(memory)
        };
        self.pools = Pools::new(memory, spec.kernel_size.get() + spec.slab.get(), most_ready);
        self.forget_tier();
        self.programs = spec.programs.iter().cloned().map(Running::new).collect();
        self.files = spec.files.iter().cloned().map(Reading::new).collect();
        self.counters = Counters::default();
        (self.cold, self.kswapd_awake, self.next_report, self.pieces_return) = (0, false, None, false);
        // Anything that starts with the guest is already in memory: nobody looks at a guest before it has settled.
        let spare = |guest: &Self| guest.pools.free().saturating_sub(guest.marks.high);
        for index in 0..self.programs.len() {
            let program = &self.programs[index];
            if program.spec.starts == Span::ZERO && self.now == 0 {
                let bytes = self.pools.take(program.spec.size.get().min(spare(self)), 0);
                self.programs[index].resident = bytes;
                self.pools.programs += bytes;
            }
        }
        for index in 0..self.files.len() {
            if self.files[index].spec.cached {
                let bytes = self.pools.take(self.files[index].size().min(spare(self)), 0);
                (self.files[index].resident, self.files[index].seen) = (bytes, bytes);
                self.files[index].heat = self.files[index].spec.rate;
                self.pools.cache += bytes;
            }
        }
        let cold = if spec.full_of_cold { u64::MAX } else { spec.cold.get() };
        self.cold = self.pools.take(cold.min(spare(self)), 0);
        self.pools.cache += self.cold;
    }

    /// Advances to `to`, counted from its start.
    pub fn advance(&mut self, to: Span) {
        while self.now < to.as_millis() {
            let dt = self.stride(to.as_millis() - self.now);
            self.step(dt);
            self.most_backed = self.most_backed.max(self.pools.backed());
        }
    }

    /// The length of the next step, at most `left` milliseconds. It ends at the next change, and lasts no longer than free memory does.
    fn stride(&self, left: u64) -> u64 {
        let mut next = self.next_report.unwrap_or(u64::MAX);
        let (mut takes, mut moves) = (0_u64, self.driver.moves || self.reads_back());
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
        let spare = self.pools.free().saturating_sub(self.marks.low);
        let calm = !self.kswapd_awake && self.now >= self.driver.up_at;
        let lasts = match takes {
            0 => left,
            _ => u64::try_from(u128::from(spare) * 1_000 / u128::from(takes)).unwrap_or(u64::MAX),
        };
        let longest = if calm { lasts.max(SHORT) } else { SHORT };
        let longest = if moves { longest.min(GROWING) } else { longest };
        longest.min(left).min(next.saturating_sub(self.now)).max(1)
    }

    fn step(&mut self, dt: u64) {
        self.budget = self.reclaim_budget(dt);
        self.balance();
        let driver_takes = self.drive(dt);
        // The guest has two processors, and the driver works on one of them.
        self.speed = self.on_its_processor(2_000_000 / (2_000 + driver_takes) * 1_000 / self.host_slows);
        self.progress.cpu_us += self.on_its_processor(dt * (IDLE_CPU + driver_takes));
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

    /// What is left of `work` while others want its processors, too.
    pub(crate) const fn on_its_processor(&self, work: u64) -> u64 {
        work * 1_000 / self.crowded
    }

    /// Runs all programs for `dt` milliseconds. Returns whether any of them starved.
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
            done = done.min(self.swap_in(index, dt)).min(self.tier_in(index, dt));
            out_of_memory |= self.programs[index].unread >= KILLED_AFTER;
            if is_busy {
                self.progress.busy_us += dt * 1_000;
                self.progress.done_us += dt * done * self.speed / 1_000;
                self.progress.cpu_us += dt * done * self.speed / 1_000;
            }
        }
        if out_of_memory && !self.waits {
            self.kill();
        }
        starved
    }

    fn shrink(&mut self, index: usize, bytes: u64) {
        let program = &mut self.programs[index];
        let tiered = bytes.min(program.tiered);
        program.tiered -= tiered;
        let swapped = (bytes - tiered).min(program.swapped);
        program.swapped -= swapped;
        let resident = (bytes - tiered - swapped).min(program.resident);
        program.resident -= resident;
        self.pools.programs -= resident;
        self.pools.free_up(resident);
    }

    /// Gives up to `asked` bytes to a program.
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

    /// Reads back the swapped memory that a program accesses. Returns the speed left to the program, in thousandths.
    fn swap_in(&mut self, index: usize, dt: u64) -> u64 {
        let program = &self.programs[index];
        if program.swapped == 0 || program.touches == 0 {
            return 1_000;
        }
        let (swapped, has) = (u128::from(program.swapped), u128::from(program.has().max(1)));
        let (touches, disk) = (u128::from(program.touches), u128::from(self.spec.swap_speed.max(1)));
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

    /// The OOM killer ends the program with the most memory.
    fn kill(&mut self) {
        let largest = (0..self.programs.len()).max_by_key(|&index| self.programs[index].resident);
        let Some(index) = largest else { return };
        let resident = self.programs[index].resident;
        self.programs[index].is_killed(self.now);
        self.pools.programs -= resident;
        self.pools.free_up(resident);
        self.counters.oom_kills += 1;
        self.progress.kills += 1;
        self.programs.iter_mut().for_each(|program| (program.denied, program.unread) = (0, 0));
    }

    /// Frees the page cache of a file that is deleted, or of a block device that is closed.
    fn drop_file(&mut self, index: usize) {
        let file = &mut self.files[index];
        if file.spec.dropped {
            file.seen = 0;
            let freed = std::mem::take(&mut file.resident);
            self.pools.cache -= freed;
            self.pools.drop_cache(freed);
        }
    }

    /// Reads files for `dt` milliseconds.
    fn read_files(&mut self, dt: u64) {
        let now = self.now;
        let misses = |file: &&Reading| file.is_read(now) && (file.missing() > 0 || file.spec.size.is_none());
        let readers = self.files.iter().filter(misses).count().max(1) as u64;
        let disk = self.spec.disk / readers * 1_000 / self.host_slows;
        let mut longest_wait = 0;
        for index in 0..self.files.len() {
            let is_read = self.files[index].is_read(now);
            self.files[index].breathe(is_read, dt);
            if !is_read {
                self.drop_file(index);
                continue;
            }
            self.progress.busy_us += dt * 1_000;
            if self.files[index].spec.size.is_none() {
                let bytes = self.on_its_processor(self.files[index].spec.rate.min(disk) / 1_000 * dt);
                let got = self.allocate(bytes);
                self.cold += got;
                self.pools.cache += got;
                self.progress.read += bytes;
                self.progress.done_us += dt * self.speed;
                self.progress.cpu_us += bytes / COPIED;
                continue;
            }
            let misses = self.files[index].misses(dt, disk);
            longest_wait = longest_wait.max((dt * 1_000).saturating_sub(misses.done));
            let wanted = misses.read.min(self.files[index].missing());
            let got = if wanted > 0 { self.allocate(wanted) } else { 0 };
            // Reclaim may have taken some of this very file in the meantime.
            let file = &mut self.files[index];
            let is_working_set = file.missing() <= self.pools.cache;
            file.resident += got;
            file.seen = file.seen.max(file.resident);
            if file.spec.mapped {
                self.counters.major_faults += misses.read / 4_096;
            }
            self.pools.cache += got;
            self.progress.read += misses.read;
            self.progress.refaults += misses.refaults;
            if is_working_set {
                self.counters.activations += misses.refaults;
            }
            self.progress.done_us += misses.done * self.speed / 1_000;
            let copies = self.files[index].spec.rate / 1_000 * misses.done / 1_000 / COPIED;
            self.progress.cpu_us += self.on_its_processor(copies);
        }
        self.counters.disk_waits += longest_wait;
    }
}

/// The actions of the guest's users, from inside.
impl Guest {
    /// Sets the size that the program with this number in the spec wants, and ends its course. A reset undoes this.
    pub fn wish(&mut self, program: usize, size: Bytes) {
        if let Some(program) = self.programs.get_mut(program) {
            (program.spec.size, program.spec.course) = (size, Course::Constant);
        }
    }

    /// Makes a guest that runs short wait for memory, or help itself again. While it waits, it neither deflates its own balloon nor kills.
    pub const fn wait(&mut self, waits: bool) {
        self.waits = waits;
    }
}

/// The actions of the VMM and the host, and their view of the guest.
impl Guest {
    /// The VMM writes the balloon's target: memory that the guest should keep.
    pub fn set_target(&mut self, target: Bytes) {
        self.driver.target = target.get().min(self.pools.memory);
        self.driver.moves = self.spec.balloon;
    }

    /// The target that the VMM was last asked for.
    #[must_use]
    pub const fn target(&self) -> Bytes {
        Bytes::new(self.driver.target)
    }

    /// The kept memory that the VMM reports; `None` if there has never been a driver.
    #[must_use]
    pub fn reported_actual(&self) -> Option<Bytes> {
        if self.now >= self.driver.up_at {
            return Some(Bytes::new(self.pools.memory - self.pools.balloon));
        }
        self.driver.reported.map(Bytes::new)
    }

    /// Whether a driver is running.
    #[must_use]
    pub fn has_driver(&self) -> bool {
        self.spec.balloon && self.now >= self.driver.up_at
    }

    /// Whether it was reset and its new driver has not started yet.
    #[must_use]
    pub fn was_reset(&self) -> bool {
        self.driver.reported.is_some() && self.now < self.driver.up_at
    }

    /// Makes the driver hang, or continue.
    pub const fn hang(&mut self, hangs: bool) {
        self.driver.hangs = hangs;
    }

    /// Deflates its whole balloon by itself, without any need.
    pub fn deflate_all(&mut self) {
        self.progress.moved += self.pools.deflate(self.pools.balloon);
        self.driver.moves = false;
    }

    /// Resets it: it boots for `boots_for`. The host keeps all touched memory. The balloon is empty, but the VMM reports the old size until
    /// the new driver starts.
    pub fn reset(&mut self, boots_for: Span) {
        let reported = self.reported_actual().map(Bytes::get);
        let backed = self.pools.backed();
        self.boot();
        // Programs that start with the guest are not in memory yet: the guest boots first.
        let bare = backed.saturating_sub(self.pools.backed()).min(self.pools.free_bare);
        self.pools.free_bare -= bare;
        self.pools.free_backed += bare;
        self.driver.up_at = self.now + boots_for.as_millis();
        self.driver.reported = reported;
        self.driver.moves = self.spec.balloon;
    }

    /// The host splits its torn huge pages and gets their memory back. Returns the amount.
    pub fn split_huge_pages(&mut self) -> Bytes {
        Bytes::new(std::mem::take(&mut self.pools.torn))
    }

    /// The host starts to swap: everything takes `times` / 1,000 as long.
    pub fn slow_down(&mut self, times: u64) {
        self.host_slows = times.max(1_000);
    }

    /// Others want the host's processors, too: its work takes `times` / 1,000 as long.
    pub fn crowd(&mut self, times: u64) {
        self.crowded = times.max(1_000);
    }

    /// The memory that it has and needs.
    #[must_use]
    pub fn size(&self) -> Size {
        let has: u64 = self.programs.iter().map(|program| program.has() - program.tiered).sum();
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

    /// Its cost to the host. During its first boot, it touches its memory gradually: of 186 MiB, QEMU under software emulation had touched
    /// 31 after 0.4 s, 117 after 1 s and 145 after 1.4 s.
    fn footprint(&self) -> u64 {
        let backed = self.pools.backed();
        let stays = if self.spec.gives_nothing { backed.max(self.most_backed) } else { backed };
        let whole = self.spec.overhead.get() + stays + self.tier_holds();
        let boots_until = self.spec.boots_for.as_millis();
        match self.now < boots_until && self.driver.reported.is_none() {
            true => whole * self.now / boots_until,
            false => whole,
        }
    }

    /// Its work since its start.
    #[must_use]
    pub const fn progress(&self) -> Progress {
        self.progress
    }

    /// Its description.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The time since its start.
    #[must_use]
    pub const fn age(&self) -> Span {
        Span::from_millis(self.now)
    }
}
