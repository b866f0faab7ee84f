//! A pseudoterminal with `memtide top` in it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use memtide_testing::Mortal;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::common::{memtide, until};

/// The terminal, and the program in it.
pub struct Terminal {
    child: Mortal,
    keys: File,
    /// Kept open, so that its state can be read after the program's end.
    slave: File,
    parser: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Starts `memtide top` with these arguments in a terminal of 80 × 24, with these variables.
    pub fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        set_size(&slave, 80, 24);
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        // The terminal becomes that of the program's own session.
        let mut command = Command::new("setsid");
        command.arg("-c").arg(memtide()).arg("top").args(arguments);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").env("TZ", "UTC");
        command.envs(variables.iter().copied());
        let child = Mortal::start(command.stdin(stdio()).stdout(stdio()).stderr(stdio()));
        let parser = Arc::new(Mutex::new(vt100::Parser::new(cells(24), cells(80), 0)));
        let keys = File::from(master);
        let (mut output, screen) = (keys.try_clone().unwrap(), Arc::clone(&parser));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                screen.lock().unwrap().process(&bytes[..length]);
            }
        });
        Self { child, keys, slave, parser }
    }

    /// Presses keys.
    pub fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Gives the terminal another size.
    pub fn resize(&mut self, columns: u16, lines: u16) {
        self.parser.lock().unwrap().screen_mut().set_size(cells(lines), cells(columns));
        set_size(&self.slave, columns, lines);
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn screen(&self) -> String {
        self.parser.lock().unwrap().screen().contents()
    }

    /// Waits until the screen is as expected.
    pub fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        until(what, || is_so(&self.screen()), || self.screen());
    }

    /// Whether the program has the terminal for itself.
    pub fn is_taken(&self) -> bool {
        self.parser.lock().unwrap().screen().alternate_screen() && !self.echoes()
    }

    /// Whether the kernel shows what is typed, as for a shell.
    fn echoes(&self) -> bool {
        tcgetattr(self.slave.as_fd()).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    /// Waits until the program has ended and given the terminal back, and returns its exit code.
    pub fn end(mut self) -> Option<i32> {
        let parser = Arc::clone(&self.parser);
        let screen = || parser.lock().unwrap().screen().contents();
        until("the end", || self.child.try_wait().unwrap().is_some(), screen);
        until("the terminal as before", || self.is_as_before(), || self.screen());
        self.child.wait().unwrap().code()
    }

    fn is_as_before(&self) -> bool {
        let parser = self.parser.lock().unwrap();
        let screen = parser.screen();
        let no_mouse = screen.mouse_protocol_mode() == vt100::MouseProtocolMode::None;
        self.echoes() && !screen.alternate_screen() && !screen.hide_cursor() && no_mouse
    }
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).unwrap()
}

fn set_size(terminal: &File, columns: u16, lines: u16) {
    let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}
