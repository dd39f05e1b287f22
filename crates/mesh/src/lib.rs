//! Who talks to whom: devices arranged by parallelism axes, process groups, and collectives.

mod backend;
pub mod comm;
