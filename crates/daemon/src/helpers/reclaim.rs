//! The helper that makes the kernel reclaim memory from a guest's cgroup. Its one right is to write below the cgroups' mount points.

use std::path::Path;

use memtide_api::view::CgroupReclaimRequest;
use memtide_engine::with_causes;
use memtide_host::{Cgroup, CgroupVersion, Root, can_reclaim, reclaim};
use memtide_model::{Absence, Bytes};
use serde::{Deserialize, Serialize};

use super::{Helper, ask, client, find_again, phrase, serve};
use crate::confine::Confinement;

/// The name of the helper on the command line.
pub const NAME: &str = "reclaim";
/// systemd's socket for it.
const SOCKET: &str = "/run/memtide-reclaim.sock";
const MOST: Bytes = CgroupReclaimRequest::MOST;

const OBSERVES: &str = "memtide only observed when it started: restart it to reclaim";

/// A request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    /// Whether the helper may reclaim.
    Check,
    /// Reclaim up to `bytes` from the cgroup of the process `pid` that started at `start`.
    Reclaim { pid: u32, start: u64, bytes: Bytes },
}

/// The answer: the fall of the cgroup's charge (zero for a check), or why nothing was reclaimed.
type Reclaimed = Result<Bytes, String>;

/// The helper as the daemon uses it, or why there is none.
#[derive(Debug)]
pub struct Reclaimer(Result<Helper, Absence>);

impl Reclaimer {
    /// Starts the helper, if this host can reclaim. Must be called before the daemon gives its rights up.
    #[must_use]
    pub fn start(manages: bool) -> Self {
        Self(Self::helper(manages).map_err(Absence::Refused))
    }

    fn helper(manages: bool) -> Result<Helper, String> {
        if !manages {
            return Err(OBSERVES.to_owned());
        }
        let own = Cgroup::of(&Root::system(), std::process::id()).map_err(|error| error.to_string())?;
        if own.is_none_or(|cgroup| cgroup.version() != CgroupVersion::V2) {
            return Err("this host has no cgroup v2 with the memory controller".to_owned());
        }
        Helper::start_checked(NAME, Path::new(SOCKET), &Ask::Check)
    }

    /// Whether it works, in a phrase for the log and the status; `None` if this daemon only observes.
    #[must_use]
    pub fn phrase(&self) -> Option<String> {
        let observes = matches!(&self.0, Err(Absence::Refused(why)) if why == OBSERVES);
        (!observes).then(|| phrase(&self.0, NAME, "writes to cgroups only"))
    }

    /// Reclaims up to `bytes` from the cgroup of a process. Returns the fall of its charge. A reclaim that takes longer than a helper may take to answer goes
    /// on, and its yield is not told.
    ///
    /// # Errors
    /// If there is no helper, if it is busy, or if it refuses.
    pub fn reclaim(&mut self, pid: u32, start: u64, bytes: Bytes) -> Result<Bytes, Absence> {
        find_again(&mut self.0, Path::new(SOCKET), &Ask::Check);
        ask(&mut self.0, &Ask::Reclaim { pid, start, bytes })
    }
}

/// Runs the helper on its standard input until its client is gone.
///
/// # Errors
/// If the standard input is no socket of a client that speaks its protocol.
pub fn run() -> std::io::Result<()> {
    let stream = client(NAME, || Confinement::On.helper())?;
    let root = Root::system();
    serve(stream, |ask| answer(&root, ask))
}

fn answer(root: &Root, ask: Ask) -> Reclaimed {
    let done = match ask {
        Ask::Check => can_reclaim(root).map(|()| Bytes::ZERO),
        Ask::Reclaim { bytes, .. } if bytes > MOST => return Err(format!("more than {MOST} at a time")),
        Ask::Reclaim { pid, start, bytes } => reclaim(root, pid, start, bytes),
    };
    done.map_err(|error| with_causes(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::thread::{self, JoinHandle};
    use std::time::{Duration, Instant};

    use memtide_api::Client;
    use memtide_api::history::History;
    use memtide_api::view::CgroupReclaimAnswer;
    use memtide_config::Settings;
    use memtide_engine::{Engine, Wake};
    use memtide_host::{ProcFs, start_time};
    use memtide_model::{
        Backend as Vmm, Balloon, Capabilities, Config, GuestId, Mode, Reading, Request, Told,
    };
    use memtide_vmm::{Backend, Control, DiscoverError, Found, Later, Process, Wish};

    use crate::helpers::ksm::Merger;
    use crate::helpers::split::Splitter;
    use crate::helpers::tier::TierMaker;
    use crate::live::{LiveWorld, Rights, Shared};
    use crate::orders::Orders;
    use crate::routes::serve as serve_api;
    use crate::sources::Sources;

    const NAME: &str = "this-test";
    const FULL: Bytes = Bytes::from_mib(512);
    const PLENTY: Duration = Duration::from_secs(60);

    /// The one guest is this process.
    struct Ours {
        id: GuestId,
        /// Called in the middle of each tick: after the guests were asked, and before the orders are taken.
        mid_tick: Box<dyn Fn() + Send>,
    }

    impl Ours {
        fn new(mid_tick: impl Fn() + Send + 'static) -> Self {
            let start = start_time(&Root::system(), std::process::id()).unwrap();
            let boot = ProcFs::new(Path::new("/proc")).boot_id().unwrap();
            Self { id: GuestId::new(NAME, start, &boot), mid_tick: Box::new(mid_tick) }
        }
    }

    impl Backend for Ours {
        fn discover(&mut self, _ended: bool) -> Result<Option<Vec<Found>>, DiscoverError> {
            let process = Process { pid: std::process::id(), ..Process::default() };
            Ok(Some(vec![Found {
                id: self.id.clone(),
                vmm: Vmm::new("test"),
                capabilities: Capabilities::BALLOON,
                full: FULL,
                withheld: None,
                process,
                facts: Vec::new(),
                is_configured: true,
            }]))
        }

        fn control(&mut self, _guest: &GuestId) -> Result<Box<dyn Control>, Absence> {
            Ok(Box::new(Obeys))
        }

        fn warnings(&self) -> Vec<String> {
            (self.mid_tick)();
            Vec::new()
        }
    }

    struct Obeys;

    impl Control for Obeys {
        fn observe(&mut self, _wish: Wish, _deadline: Duration) -> Later<'_, Told> {
            let balloon = Balloon { actual: FULL, deflate_on_oom: true, free_page_reporting: true };
            let told = Told::nothing(FULL, Absence::Unsupported);
            Box::pin(async move { Told { balloon: Reading::now(balloon), ..told } })
        }

        fn apply(&mut self, _request: Request, _deadline: Duration) -> Later<'_, Result<(), Absence>> {
            Box::pin(async { Ok(()) })
        }
    }

    /// A helper that answers each request with `answer`, and the requests that it got.
    fn helper(answer: Reclaimed) -> (Reclaimer, Receiver<Ask>) {
        let (ours, its) = UnixStream::pair().unwrap();
        let (got, asked) = mpsc::channel();
        thread::spawn(move || {
            serve(its, |ask: Ask| -> Reclaimed {
                got.send(ask).unwrap();
                answer.clone()
            })
        });
        (Reclaimer(Ok(Helper::new(ours, None))), asked)
    }

    /// A guest has one manager, and the guest of all these tests is this process.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// A daemon that manages this process.
    struct Daemon {
        client: Client,
        guest: String,
        stop: Sender<Wake>,
        engine: Option<JoinHandle<()>>,
        _directory: tempfile::TempDir,
        _alone: MutexGuard<'static, ()>,
    }

    impl Drop for Daemon {
        fn drop(&mut self) {
            let _ended = self.stop.send(Wake::Stop);
            let _panicked = self.engine.take().map(JoinHandle::join);
        }
    }

    impl Daemon {
        fn start(mode: Mode, reclaimer: Reclaimer) -> Self {
            Self::with(mode, reclaimer, |_| Ours::new(|| {}))
        }

        fn with(mode: Mode, reclaimer: Reclaimer, ours: impl FnOnce(Orders) -> Ours) -> Self {
            let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let handle = runtime.handle().clone();
            thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
            let (wake, woken) = mpsc::channel();
            let (history, orders) = (History::default(), Orders::new(wake.clone()));
            let settings = Settings { config: Config { mode, ..Config::default() }, ..Settings::default() };
            let ours = ours(orders.clone());
            let guest = ours.id.name().to_owned();
            let world = LiveWorld::new(
                handle,
                vec![Box::new(ours)],
                &settings,
                wake.clone(),
                woken,
                Rights {
                    trigger: None,
                    reclaimer,
                    splitter: Splitter::none(),
                    merger: Merger::none(),
                    tier_maker: TierMaker::start(false),
                },
                Shared { history: history.clone(), orders: orders.clone() },
            );
            let engine = Engine::new(world.unwrap(), settings.config);
            let directory = tempfile::tempdir().unwrap();
            let socket = directory.path().join("memtide.sock");
            let listener = UnixListener::bind(&socket).unwrap();
            listener.set_nonblocking(true).unwrap();
            serve_api(listener, Sources::new(engine.board(), history, orders, Vec::new()), Vec::new).unwrap();
            let engine = thread::spawn(move || drop(engine.run()));
            let client = Client::at(&socket);
            let begun = Instant::now();
            while !client.status().is_ok_and(|status| status.guests.len() == 1) {
                assert!(begun.elapsed() < PLENTY, "still waiting for the guest");
                thread::sleep(Duration::from_millis(5));
            }
            Self { client, guest, stop: wake, engine: Some(engine), _directory: directory, _alone: alone }
        }

        fn reclaim(&self, guest: &str) -> Option<CgroupReclaimAnswer> {
            let request = CgroupReclaimRequest { guest: guest.to_owned(), bytes: Bytes::from_mib(64) };
            self.client.reclaim_from_cgroup(&request).unwrap()
        }

        /// What became of an order for the guest.
        fn tried(&self) -> (Option<String>, Option<Bytes>) {
            let answer = self.reclaim(&self.guest).unwrap();
            let tried = answer.tried.expect("the order was heard");
            assert_eq!(tried.change, "reclaim 64 MiB from its cgroup");
            (tried.failed, tried.yielded)
        }
    }

    #[test]
    fn a_helper_reclaims_no_more_than_a_gibibyte_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let ask = |bytes| answer(&Root::at(directory.path()), Ask::Reclaim { pid: 7, start: 1, bytes });
        let more = MOST.saturating_add(Bytes::new(1));
        assert_eq!(ask(more), Err("more than 1 GiB at a time".to_owned()));
        assert_ne!(ask(MOST), ask(more), "this one fails for another reason");
    }

    #[test]
    fn an_order_reaches_the_helper_and_its_yield_comes_back() {
        let (reclaimer, asked) = helper(Ok(Bytes::from_mib(48)));
        let daemon = Daemon::start(Mode::Manage, reclaimer);
        assert_eq!(daemon.tried(), (None, Some(Bytes::from_mib(48))));
        let Ok(Ask::Reclaim { pid, start, bytes }) = asked.try_recv() else { panic!("the helper was asked") };
        assert_eq!((pid, bytes), (std::process::id(), Bytes::from_mib(64)));
        assert_eq!(start, start_time(&Root::system(), pid).unwrap());
    }

    #[test]
    fn a_refusal_comes_back_with_its_reason() {
        let (reclaimer, _asked) = helper(Err("this kernel cannot reclaim without swapping".to_owned()));
        let daemon = Daemon::start(Mode::Manage, reclaimer);
        let (failed, yielded) = daemon.tried();
        assert_eq!(failed.unwrap(), "refused: this kernel cannot reclaim without swapping");
        assert_eq!(yielded, None);
    }

    #[test]
    fn without_a_helper_the_answer_says_why_there_is_none() {
        let why = "this host has no cgroup v2 with the memory controller";
        let daemon = Daemon::start(Mode::Manage, Reclaimer(Err(Absence::Refused(why.to_owned()))));
        assert_eq!(daemon.tried(), (Some(format!("refused: {why}")), None));
    }

    #[test]
    fn a_helper_that_has_ended_is_told_and_asked_no_more() {
        let (ours, its) = UnixStream::pair().unwrap();
        drop(its);
        let daemon = Daemon::start(Mode::Manage, Reclaimer(Ok(Helper::new(ours, None))));
        assert!(daemon.tried().0.is_some());
        assert_eq!(daemon.tried().0.unwrap(), "refused: the helper has ended: restart memtide");
    }

    #[test]
    fn an_unknown_guest_is_refused_and_an_observer_reclaims_nothing() {
        let (reclaimer, asked) = helper(Ok(Bytes::from_mib(48)));
        let daemon = Daemon::start(Mode::Observe, reclaimer);
        assert_eq!(daemon.reclaim("nobody"), None);
        let answer = daemon.reclaim(&daemon.guest).unwrap();
        assert_eq!((answer.mode, answer.tried), (Mode::Observe, None));
        assert!(asked.try_recv().is_err(), "the helper was asked");
    }

    #[test]
    fn an_order_that_a_tick_under_way_hears_is_answered_when_that_tick_ends() {
        let (reclaimer, _asked) = helper(Ok(Bytes::from_mib(48)));
        let (go, wait) = mpsc::channel::<()>();
        let (is_under_way, under_way) = mpsc::channel();
        let daemon = Daemon::with(Mode::Manage, reclaimer, |orders| {
            Ours::new(move || {
                // One tick that is under way waits for an order.
                if wait.try_recv().is_ok() {
                    is_under_way.send(()).unwrap();
                    let begun = Instant::now();
                    while orders.is_empty() && begun.elapsed() < PLENTY {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            })
        });
        go.send(()).unwrap();
        under_way.recv_timeout(PLENTY).unwrap();
        assert_eq!(daemon.tried(), (None, Some(Bytes::from_mib(48))));
    }
}
