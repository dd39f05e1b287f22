//! The view in a terminal: `evener top`, and the view of one run below the output of a command.
//!
//! ```text
//!  gather ── threads that find programs and read hardware ──► Scene, some times a second
//!                                                               │
//!  terminal ── keys and signals ──► Model (rows, selection, what is in front) ──► draw ──► cells
//!                                     │
//!                                     └─ Action: quit, suspend, cancel a run after a question
//! ```
//!
//! The `Model` has no thread, clock or terminal, and `draw` is a function of it alone. A frame is drawn if
//! something has changed, and has only the rows that are visible, so a thousand devices cost little more than ten.

mod draw;
mod format;
mod gather;
mod inline;
mod look;
mod model;
mod rows;
mod scene;
mod snapshot;
mod terminal;
#[cfg(test)]
mod test;

use std::{io, time::Duration};

use evener_schedule::LeftOut;

pub use self::{inline::Inline, look::Look, scene::Scene, snapshot::text};
use crate::hardware::Hardware;

/// What is shown, and how.
#[derive(Debug)]
pub struct Options {
    /// What the terminal can show.
    pub look: Look,
    /// Time between two looks at the programs.
    pub interval: Duration,
    /// The devices whose counters are shown.
    pub hardware: Hardware,
    /// Hosts that cannot be used, and why.
    pub absent: Vec<LeftOut>,
}

/// How [`run`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By a key.
    ByUser,
    /// By a signal, which was kept from ending the process so that the terminal could be restored.
    BySignal(i32),
}

/// Shows all programs of this user and the devices of this machine on the whole terminal, until the user or a signal ends it.
/// The terminal is as before when this returns, and also after a panic. Call it once in a process.
pub fn run(options: Options) -> io::Result<Ended> {
    terminal::run(options)
}

/// Looks once: at programs as they are now, and at hardware twice, because a processor's utilization needs it.
pub fn look_once(hardware: &Hardware, absent: Vec<LeftOut>) -> Scene {
    gather::once(hardware, absent)
}

/// The width of the terminal, if there is one that tells.
pub fn terminal_width() -> Option<u16> {
    ratatui::crossterm::terminal::size().ok().map(|(width, _)| width).filter(|&width| width > 0)
}
