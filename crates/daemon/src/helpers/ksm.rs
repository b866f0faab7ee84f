//! The helper that sets KSM. Its one right is to write to `/sys/kernel/mm/ksm`.
//!
//! **Property.** The settings are as it found them once its client is gone, whether the client has ended or was killed.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memtide_engine::with_causes;
use memtide_host::{HostError, Root, ksm::settings};
use memtide_model::{Absence, Bytes, KsmSettings, KsmState};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{Helper, ask, client, find_again, has_ended, phrase, serve};
use crate::confine::Confinement;

/// The name of the helper on the command line.
pub const NAME: &str = "ksm";
/// systemd's socket for it.
const SOCKET: &str = "/run/memtide-ksm.sock";

/// A request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    /// Whether the helper may write.
    Check,
    /// Set KSM.
    Set(KsmSettings),
    /// Put back what was found before the first of these.
    PutBack,
    /// Set KSM, and leave it so.
    Leave(KsmSettings),
}

/// The answer: nothing (as zero bytes), or why nothing was done.
type Done = Result<Bytes, String>;

/// The helper as the daemon uses it, or why there is none.
#[derive(Debug)]
pub struct Merger {
    helper: Result<Helper, Absence>,
    /// systemd's socket for it.
    socket: PathBuf,
    /// The tree with KSM's files.
    root: Root,
    /// What was there before the first order, and after the last one, for another helper if this one is killed.
    found: Option<KsmSettings>,
    written: Option<KsmSettings>,
    /// An order without an answer: it may have been carried out in part.
    tried: Option<KsmSettings>,
}

impl Drop for Merger {
    fn drop(&mut self) {
        // The helper does the same when its client is gone, unless it was killed as well. That shows at the first try only.
        let _ended = self.put_back();
        if has_ended(&self.helper) {
            let _not_yet = self.put_back();
        }
    }
}

impl Merger {
    /// Starts the helper if memtide governs KSM. Must be called before the daemon gives its rights up.
    #[must_use]
    pub fn start(governs: bool) -> Self {
        if !governs {
            return Self::none();
        }
        Self::with(Helper::start_checked(NAME, Path::new(SOCKET), &Ask::Check).map_err(Absence::Refused))
    }

    /// There is no helper, because this daemon does not govern KSM.
    #[must_use]
    pub fn none() -> Self {
        Self::with(Err(Absence::Unsupported))
    }

    fn with(helper: Result<Helper, Absence>) -> Self {
        Self { helper, socket: SOCKET.into(), root: Root::system(), found: None, written: None, tried: None }
    }

    /// Whether it works, in a phrase for the log and the status; `None` if this daemon does not govern KSM.
    #[must_use]
    pub fn phrase(&self) -> Option<String> {
        let governs = !matches!(self.helper, Err(Absence::Unsupported));
        governs.then(|| phrase(&self.helper, NAME, "writes to /sys/kernel/mm/ksm only"))
    }

    /// Sets KSM.
    ///
    /// # Errors
    /// If there is no helper, if it is busy, or if the kernel refuses.
    pub fn set(&mut self, wanted: KsmSettings) -> Result<(), Absence> {
        if self.found.is_none() {
            self.found = settings::read(&self.root).ok().map(KsmSettings::to_put_back);
        }
        self.tried = Some(wanted);
        self.ask(Ask::Set(wanted))?;
        (self.written, self.tried) = (Some(wanted), None);
        Ok(())
    }

    /// Whether there are settings to put back.
    #[must_use]
    pub const fn has_set(&self) -> bool {
        self.found.is_some()
    }

    /// Puts back the settings that were found, if this daemon has set KSM.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn put_back(&mut self) -> Result<(), Absence> {
        if self.found.is_none() {
            return Ok(());
        }
        self.ask(Ask::PutBack)?;
        (self.found, self.written, self.tried) = (None, None, None);
        Ok(())
    }

    /// Sets KSM for good: what a former helper has found is put back.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn leave(&mut self, wanted: KsmSettings) -> Result<(), Absence> {
        self.ask(Ask::Leave(wanted))
    }

    fn ask(&mut self, what: Ask) -> Result<(), Absence> {
        // Only a start with `govern` has a helper.
        if matches!(self.helper, Err(Absence::Unsupported)) {
            return Err(Absence::Refused("no helper ksm was started: restart memtide".to_owned()));
        }
        if find_again(&mut self.helper, &self.socket, &Ask::Check) {
            self.put_back_for_the_former()?;
        }
        ask::<_, Bytes>(&mut self.helper, &what).map(drop)
    }

    /// Lets a new helper put back what the former one, which was killed, has found. Then it finds the same.
    fn put_back_for_the_former(&mut self) -> Result<(), Absence> {
        let (Some(found), Ok(present)) = (self.found, settings::read(&self.root)) else { return Ok(()) };
        let back = present.left_over(found, self.written, self.tried);
        let back = back.or_else(|| Some(found.over(self.written?, present)));
        back.map_or(Ok(()), |back| ask::<_, Bytes>(&mut self.helper, &Ask::Leave(back)).map(drop))
    }
}

/// The settings to put back after a memtide was killed: what it has found, if the present ones still are those that it has written, also in part.
#[must_use]
pub fn left_behind(root: &Root, ksm: &KsmState) -> Option<KsmSettings> {
    settings::read(root).ok()?.left_over(ksm.found?, ksm.written, ksm.tried)
}

/// Runs the helper on its standard input until its client is gone.
///
/// # Errors
/// If the standard input is no socket of a client that speaks its protocol, or if the settings cannot be put back.
pub fn run() -> std::io::Result<()> {
    // It ends with its client, and with nothing else: a service manager or a terminal may signal both at once.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let stream = client(NAME, || Confinement::On.merger())?;
    serve_until_gone(&Root::system(), stream)
}

fn serve_until_gone(root: &Root, stream: UnixStream) -> std::io::Result<()> {
    let mut kept = Kept::default();
    let served = serve(stream, |ask| -> Done {
        let done = match ask {
            Ask::Check => settings::can_write(root),
            Ask::Set(wanted) => kept.set(root, wanted),
            Ask::PutBack => kept.put_back(root),
            Ask::Leave(wanted) => settings::write(root, wanted),
        };
        done.map(|()| Bytes::ZERO).map_err(|error| with_causes(&error))
    });
    let back = kept.put_back(root).map_err(|error| std::io::Error::other(with_causes(&error)));
    served.and(back)
}

/// What the helper has found, and what it has written last.
#[derive(Debug, Default)]
struct Kept {
    found: Option<KsmSettings>,
    written: Option<KsmSettings>,
}

impl Kept {
    fn set(&mut self, root: &Root, wanted: KsmSettings) -> Result<(), HostError> {
        let before = settings::read(root)?;
        self.found.get_or_insert(before.to_put_back());
        let set = settings::write_over(root, before, wanted);
        // What failed half-way is not somebody else's.
        self.written = if set.is_ok() { Some(wanted) } else { settings::read(root).ok() };
        set
    }

    /// Puts back what was found, as far as nobody else has set KSM since.
    fn put_back(&mut self, root: &Root) -> Result<(), HostError> {
        let (Some(found), Some(written)) = (self.found, self.written) else { return Ok(()) };
        let present = settings::read(root)?;
        settings::write_over(root, present, found.over(written, present))?;
        *self = Self::default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::{KsmOrder, KsmRun};
    use std::fs;
    use std::thread;

    /// A tree of a kernel whose KSM is stopped.
    fn tree() -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let ksm = root.sys("kernel/mm/ksm");
        fs::create_dir_all(&ksm).unwrap();
        for (name, text) in
            [("run", "0"), ("pages_to_scan", "100"), ("sleep_millisecs", "20"), ("smart_scan", "1")]
        {
            fs::write(ksm.join(name), format!("{text}\n")).unwrap();
        }
        (directory, root)
    }

    fn merger(root: &Root) -> (Merger, thread::JoinHandle<std::io::Result<()>>) {
        let (ours, its) = UnixStream::pair().unwrap();
        let tree = root.clone();
        let serving = thread::spawn(move || serve_until_gone(&tree, its));
        let mut merger = Merger::with(Ok(Helper::new(ours, None)));
        merger.root = root.clone();
        (merger, serving)
    }

    /// A client whose helper was killed in a burst, and another helper that waits at the socket.
    fn killed_in_a_burst(
        root: &Root,
        socket: &Path,
    ) -> (Merger, KsmSettings, thread::JoinHandle<std::io::Result<()>>) {
        let found = settings::read(root).unwrap();
        let scans = KsmOrder::Scan { smart: true }.after(found);
        settings::write(root, scans).unwrap();
        let (ours, _) = UnixStream::pair().unwrap();
        let mut merger = Merger::with(Ok(Helper::new(ours, None)));
        (merger.found, merger.written) = (Some(found), Some(scans));
        (merger.root, merger.socket) = (root.clone(), socket.to_owned());
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        let root = root.clone();
        (merger, scans, thread::spawn(move || serve_until_gone(&root, listener.accept()?.0)))
    }

    #[test]
    fn the_settings_are_as_found_once_the_client_is_gone() {
        let (_directory, root) = tree();
        let found = settings::read(&root).unwrap();
        let (mut merger, serving) = merger(&root);
        for order in [KsmOrder::Scan { smart: true }, KsmOrder::Stop, KsmOrder::Scan { smart: false }] {
            let wanted = order.after(found);
            merger.set(wanted).unwrap();
            assert_eq!(settings::read(&root).unwrap(), wanted);
        }
        drop(merger);
        serving.join().unwrap().unwrap();
        assert_eq!(settings::read(&root).unwrap(), found);
    }

    #[test]
    fn they_are_put_back_on_request_and_set_again() {
        let (_directory, root) = tree();
        let found = settings::read(&root).unwrap();
        let (mut merger, serving) = merger(&root);
        merger.put_back().unwrap();
        merger.set(KsmOrder::Scan { smart: true }.after(found)).unwrap();
        merger.put_back().unwrap();
        assert_eq!(settings::read(&root).unwrap(), found);
        // Somebody sets it meanwhile: that is what the next one finds.
        let others = KsmSettings { pages_to_scan: 700, ..found };
        settings::write(&root, others).unwrap();
        merger.set(KsmOrder::Scan { smart: true }.after(others)).unwrap();
        drop(merger);
        serving.join().unwrap().unwrap();
        assert_eq!(settings::read(&root).unwrap(), others);
    }

    #[test]
    fn what_somebody_else_has_set_meanwhile_stays() {
        let (_directory, root) = tree();
        let found = settings::read(&root).unwrap();
        let (mut merger, serving) = merger(&root);
        merger.set(KsmOrder::Scan { smart: true }.after(found)).unwrap();
        let others = KsmSettings { run: KsmRun::Scanning, pages_to_scan: 700, ..found };
        settings::write(&root, others).unwrap();
        drop(merger);
        serving.join().unwrap().unwrap();
        assert_eq!(settings::read(&root).unwrap(), others);
    }

    #[test]
    fn the_rest_of_the_pace_is_put_back_if_somebody_else_has_set_a_part() {
        let (_directory, root) = tree();
        let found = settings::read(&root).unwrap();
        let (mut merger, serving) = merger(&root);
        merger.set(KsmOrder::Scan { smart: false }.after(found)).unwrap();
        let others = KsmSettings { pages_to_scan: 700, ..settings::read(&root).unwrap() };
        settings::write(&root, others).unwrap();
        drop(merger);
        serving.join().unwrap().unwrap();
        let left = KsmSettings { run: KsmRun::Scanning, pages_to_scan: 700, ..found };
        assert_eq!(settings::read(&root).unwrap(), left, "it does not scan without a pause");
    }

    #[test]
    fn another_helper_puts_back_what_a_killed_one_has_found() {
        let (directory, root) = tree();
        let found = settings::read(&root).unwrap();
        let (mut merger, scans, serving) = killed_in_a_burst(&root, &directory.path().join("ksm.sock"));
        assert!(merger.set(KsmOrder::Stop.after(scans)).is_err(), "nobody knew yet");
        merger.set(KsmOrder::Stop.after(scans)).unwrap();
        assert_eq!(settings::read(&root).unwrap(), KsmOrder::Stop.after(scans));
        drop(merger);
        serving.join().unwrap().unwrap();
        assert_eq!(settings::read(&root).unwrap(), found);
    }

    #[test]
    fn a_daemon_that_ends_puts_back_what_its_killed_helper_has_found() {
        let (directory, root) = tree();
        let found = settings::read(&root).unwrap();
        let (merger, _, serving) = killed_in_a_burst(&root, &directory.path().join("ksm.sock"));
        drop(merger);
        serving.join().unwrap().unwrap();
        assert_eq!(settings::read(&root).unwrap(), found);
    }

    #[test]
    fn what_is_merged_stays_merged() {
        let (_directory, root) = tree();
        let unmerged = KsmSettings { run: KsmRun::Unmerged, ..settings::read(&root).unwrap() };
        settings::write(&root, unmerged).unwrap();
        let (mut merger, serving) = merger(&root);
        merger.set(KsmOrder::Scan { smart: true }.after(unmerged)).unwrap();
        drop(merger);
        serving.join().unwrap().unwrap();
        assert_eq!(settings::read(&root).unwrap().run, KsmRun::Stopped);
    }

    #[test]
    fn what_a_former_helper_found_is_put_back_for_good() {
        let (_directory, root) = tree();
        let found = settings::read(&root).unwrap();
        settings::write(&root, KsmOrder::Scan { smart: true }.after(found)).unwrap();
        let (mut merger, serving) = merger(&root);
        merger.leave(found).unwrap();
        drop(merger);
        serving.join().unwrap().unwrap();
        assert_eq!(settings::read(&root).unwrap(), found);
    }

    #[test]
    fn only_what_memtide_wrote_is_left_behind() {
        let state = |found, written| KsmState { found, written, ..KsmState::default() };
        let (_directory, root) = tree();
        let found = settings::read(&root).unwrap();
        let scans = KsmOrder::Scan { smart: true }.after(found);
        assert_eq!(left_behind(&root, &state(Some(found), Some(scans))), None, "it was put back");
        settings::write(&root, scans).unwrap();
        assert_eq!(left_behind(&root, &state(Some(found), Some(scans))), Some(found));
        assert_eq!(left_behind(&root, &state(None, None)), None);
        settings::write(&root, KsmSettings { run: KsmRun::Unmerged, ..scans }).unwrap();
        assert_eq!(left_behind(&root, &state(Some(found), Some(scans))), None, "somebody else has set it");
    }

    #[test]
    fn an_order_that_was_killed_in_the_middle_is_left_behind() {
        let (_directory, root) = tree();
        let found = settings::read(&root).unwrap();
        let scans = KsmOrder::Scan { smart: false }.after(found);
        let killed = KsmState { found: Some(found), tried: Some(scans), ..KsmState::default() };
        let half = KsmSettings { pages_to_scan: scans.pages_to_scan, sleep_millisecs: 0, ..found };
        settings::write(&root, half).unwrap();
        assert_eq!(left_behind(&root, &killed), Some(found));
        let nothing_tried = KsmState { tried: None, ..killed.clone() };
        assert_eq!(left_behind(&root, &nothing_tried), None, "these may be somebody else's");
        settings::write(&root, KsmSettings { pages_to_scan: 700, ..half }).unwrap();
        assert_eq!(left_behind(&root, &killed), None, "somebody else has set it");
        // The helper was killed while it put back what the former run had found.
        let written = KsmState { found: Some(found), written: Some(scans), ..KsmState::default() };
        settings::write(&root, KsmSettings { sleep_millisecs: 0, ..found }).unwrap();
        assert_eq!(left_behind(&root, &KsmState { tried: None, ..written }), None);
        settings::write(&root, KsmSettings { smart_scan: Some(false), ..found }).unwrap();
        let written = KsmState { found: Some(found), written: Some(scans), ..KsmState::default() };
        assert_eq!(left_behind(&root, &written), Some(found));
        // It was killed before the order, and somebody has set `run` since, or it had been so.
        for run in [KsmRun::Stopped, KsmRun::Scanning, KsmRun::Unmerged] {
            let found = KsmSettings { run, ..found }.to_put_back();
            let tried = Some(KsmOrder::Scan { smart: false }.after(found));
            let killed = KsmState { found: Some(found), tried, ..KsmState::default() };
            for present in [KsmRun::Stopped, KsmRun::Scanning, KsmRun::Unmerged] {
                settings::write(&root, KsmSettings { run: present, ..found }).unwrap();
                assert_eq!(left_behind(&root, &killed), None, "{found:?}, then {present:?}");
            }
        }
    }

    #[test]
    fn another_helper_puts_back_what_a_helper_killed_at_its_first_order_has_found() {
        let (directory, root) = tree();
        let found = settings::read(&root).unwrap();
        let (mut merger, scans, serving) = killed_in_a_burst(&root, &directory.path().join("ksm.sock"));
        (merger.written, merger.tried) = (None, Some(scans));
        settings::write(&root, KsmSettings { run: KsmRun::Stopped, ..scans }).unwrap();
        assert!(merger.put_back().is_err(), "nobody knew yet");
        merger.put_back().unwrap();
        assert_eq!(settings::read(&root).unwrap(), found);
        drop(merger);
        serving.join().unwrap().unwrap();
        assert_eq!(settings::read(&root).unwrap(), found);
    }

    #[test]
    fn a_daemon_that_does_not_govern_says_nothing_about_it() {
        let mut none = Merger::start(false);
        assert_eq!(none.phrase(), None);
        assert!(matches!(none.set(KsmSettings::default()), Err(Absence::Refused(_))));
        let mut none = Merger::start(false);
        assert_eq!(none.put_back(), Ok(()), "it has set nothing");
    }
}
