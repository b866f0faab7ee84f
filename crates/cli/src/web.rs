//! `memtide web`: the page in a browser on this machine.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use memtide_api::Client;
use memtide_daemon::confine::Confinement;
use memtide_web::Web as Server;

use crate::Socket;

/// The options of `memtide web`.
#[derive(Args)]
#[command(
    after_help = "The page is at the printed address on this machine only. The address carries a token: without it, requests are refused. \
    The page can do what you can do: hold, release, resume and reclaim."
)]
pub struct Web {
    #[command(flatten)]
    socket: Socket,
    /// The port on 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

impl Web {
    /// Serves the page until the process is ended.
    pub fn execute(self) -> Result<ExitCode> {
        let socket = self.socket.path()?;
        // A daemon that is not there, or may not be asked, is told here: the page could only show the same.
        Client::at(&socket).status_answer()?;
        let server = Server::open(self.port, &socket)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", server.url())?;
        out.flush()?;
        drop(out);
        eprintln!("memtide: keep this address to yourself; Ctrl-C ends it");
        for phrase in Confinement::On.web().iter().filter(|phrase| phrase.contains(" not ")) {
            eprintln!("memtide: {phrase}");
        }
        server.serve()?;
        Ok(ExitCode::SUCCESS)
    }
}
