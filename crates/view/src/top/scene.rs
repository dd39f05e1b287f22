//! What `top` shows at one moment: the devices of this machine, and the programs.

use std::collections::VecDeque;

use evener_schedule::LeftOut;
use serde::Serialize;

use crate::{
    hardware::DeviceHardware,
    state::{DeviceView, LaneView, Program, RunView},
};

/// The devices and programs at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Scene {
    /// The devices of this machine and of the hosts that were asked for.
    pub devices: Vec<DeviceHardware>,
    /// Hosts that cannot be used, with the reason as in [`LeftOut`].
    pub absent: Vec<LeftOut>,
    /// The programs, without what a list has no room for: bars of chunks, and past runs.
    pub programs: Vec<Program>,
    /// What went wrong when programs were looked for.
    pub problems: Vec<String>,
}

/// Copies what `top` shows of a program: neither bars nor reports.
pub(super) fn without_bars(program: &Program) -> Program {
    Program {
        pid: program.pid,
        name: program.name.clone(),
        version: program.version,
        unix_s: program.unix_s,
        lost_events: program.lost_events,
        runs: program.runs.iter().map(run).collect(),
        past: VecDeque::new(),
        log: program.log.clone(),
        totals: Vec::new(),
    }
}

fn run(run: &RunView) -> RunView {
    RunView {
        summary: run.summary.clone(),
        devices: run.devices.iter().map(device).collect(),
        left_out: run.left_out.clone(),
        max_bars: 0,
    }
}

fn device(device: &DeviceView) -> DeviceView {
    let lane = |lane: &LaneView| LaneView {
        state: lane.state,
        in_hand: lane.in_hand.clone(),
        bars: VecDeque::new(),
    };
    DeviceView {
        id: device.id.clone(),
        totals: device.totals.clone(),
        throughput: device.throughput.clone(),
        lanes: device.lanes.iter().map(lane).collect(),
    }
}
