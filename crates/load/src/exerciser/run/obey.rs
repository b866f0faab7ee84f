//! Commands to a run: refuses some, and carries out the others.

use std::io::Write;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use memtide_model::Bytes;
use serde_json::{Value, json};

use super::super::command::{Asked, Command};
use super::super::content::PAGE;
use super::super::error::RunError;
use super::super::report::Ended;
use super::super::start::too_little;
use super::super::walk::Pattern;
use super::course::Run;

impl<W: Write> Run<'_, W> {
    /// Obeys commands for this time.
    pub(super) fn serve(&mut self, at_most: Duration) -> Result<(), RunError> {
        let Some(commands) = &self.commands else {
            thread::sleep(at_most);
            return Ok(());
        };
        match commands.channel().recv_timeout(at_most) {
            Ok(asked) => self.obey(asked),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                // When standard input ends, the commands end.
                self.commands = None;
                self.ended = Ended::Stopped;
                Ok(())
            }
        }
    }

    fn obey(&mut self, asked: Asked) -> Result<(), RunError> {
        let answer = match self.refusal(&asked.command) {
            Some(why) => Err(why),
            None => Ok(self.carry_out(asked.command.clone())?),
        };
        asked.answer(answer);
        Ok(())
    }

    /// Why a command cannot be carried out.
    fn refusal(&self, command: &Command) -> Option<String> {
        let over = self.touched_for.is_some();
        match command {
            Command::Rate(_) | Command::Shape(_) | Command::Writes(_) | Command::Pattern(_) if over => {
                Some("all touches are made".to_owned())
            }
            Command::Writes(writes) if !self.ours && writes.basis_points() > 0 => {
                Some("the file is not ours to be written".to_owned())
            }
            Command::Pattern(pattern) if self.options.passes.is_some() && *pattern != Pattern::Sequential => {
                Some("with --passes, only a sequential order comes by everywhere".to_owned())
            }
            Command::Size(size) => self.too_large(*size),
            _ => None,
        }
    }

    fn too_large(&self, size: Bytes) -> Option<String> {
        if size > self.most {
            return Some(format!("{size} is not available: at most {}", self.most));
        }
        if !self.ours && size.get() > self.memory.found() {
            return Some("the file is not ours to be extended".to_owned());
        }
        let more = size.saturating_sub(Bytes::new(self.shared.latest().pages * PAGE as u64));
        let available = too_little(self.options, more)?;
        Some(format!("{size} is not available: {} leaves {}", available.set_by, available.bytes))
    }

    fn carry_out(&mut self, command: Command) -> Result<Value, RunError> {
        match command {
            Command::Rate(rate) => {
                self.change_schedule(|instructions| instructions.schedule.rate = rate);
            }
            Command::Shape(shape) => {
                self.change_schedule(|instructions| {
                    instructions.schedule.shape = shape;
                    instructions.epoch = instructions.epoch.map(|_| Instant::now());
                });
            }
            Command::Writes(writes) => {
                self.shared.change(|instructions| instructions.writes = writes);
            }
            Command::Pattern(pattern) => {
                self.shared.change(|instructions| instructions.pattern = pattern);
            }
            Command::Size(size) => self.resize(size)?,
            Command::Free => self.resize(Bytes::ZERO)?,
            Command::Check => return Ok(json!(self.check()?)),
            Command::Status => return Ok(json!(self.summary())),
            Command::Stop => self.ended = Ended::Stopped,
        }
        Ok(Value::Null)
    }
}
