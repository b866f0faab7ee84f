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
use super::super::start::too_small_a_room;
use super::super::walk::Order;
use super::Run;

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
                // When standard input ends, the orders end.
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

    /// Why an order cannot be carried out.
    fn refusal(&self, command: &Command) -> Option<String> {
        let over = self.touched_for.is_some();
        match command {
            Command::Rate(_) | Command::Shape(_) | Command::Writes(_) | Command::Order(_) if over => {
                Some("all touches are made".to_owned())
            }
            Command::Writes(writes) if !self.ours && writes.basis_points() > 0 => {
                Some("the file is not ours to be written".to_owned())
            }
            Command::Order(order) if self.options.passes.is_some() && *order != Order::Sequential => {
                Some("with --passes, only a sequential order comes by everywhere".to_owned())
            }
            Command::Size(size) => self.no_room_for(*size),
            _ => None,
        }
    }

    fn no_room_for(&self, size: Bytes) -> Option<String> {
        if size > self.most {
            return Some(format!("{size} cannot be had: at most {}", self.most));
        }
        if !self.ours && size.get() > self.memory.found() {
            return Some("the file is not ours to be extended".to_owned());
        }
        let more = size.saturating_sub(Bytes::new(self.board.orders().pages * PAGE as u64));
        let room = too_small_a_room(self.options, more)?;
        Some(format!("{size} cannot be had: {} leaves {}", room.set_by, room.bytes))
    }

    fn carry_out(&mut self, command: Command) -> Result<Value, RunError> {
        match command {
            Command::Rate(rate) => {
                self.change_schedule(|orders| orders.schedule.rate = rate);
            }
            Command::Shape(shape) => {
                self.change_schedule(|orders| {
                    orders.schedule.shape = shape;
                    orders.epoch = orders.epoch.map(|_| Instant::now());
                });
            }
            Command::Writes(writes) => {
                self.board.change(|orders| orders.writes = writes);
            }
            Command::Order(order) => {
                self.board.change(|orders| orders.order = order);
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
