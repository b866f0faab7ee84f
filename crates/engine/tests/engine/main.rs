//! The engine with a toy world, its journal on a real disk, and replays of that journal.

#[cfg(test)]
mod again;
#[cfg(test)]
mod journal;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod replaying;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod resuming;
#[cfg(test)]
mod slow_disk;
#[cfg(test)]
mod ticks;
#[cfg(test)]
mod toy;
