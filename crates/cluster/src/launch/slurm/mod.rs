//! Workers on the nodes of a SLURM cluster.
//!
//! Each node is a job of its own, which one `srun` asks for, starts and connects to its pipes: so nodes are used as they
//! come, and one that is lost takes no other with it. A job ends with its `srun`, which gets SIGTERM when this program
//! ends, also by SIGKILL. Inside an allocation, each node is a step of that job instead.
//!
//! The worker says a nonce before it greets, which only the `srun` that was started for it knows: the worker of an older
//! job, which may still be alive after a node failed, is never taken for the new one.

mod command;
mod controller;
mod explain;
mod node;
mod request;
mod stage;

use std::{sync::Arc, time::Duration};

use self::{
    controller::Allocation,
    node::{Group, Node},
};
use crate::host::{Host, HostError};

/// A request for nodes of a SLURM cluster. What is not set is as the cluster's configuration says.
///
/// ```no_run
/// use evener_cluster::{Slurm, WithHosts};
/// use evener_device::Inventory;
///
/// let hosts = Slurm::new().nodes(4).gpus(2).partition("gpu").time("1:00:00").this_program()?.hosts("slurm")?;
/// let inventory = Inventory::discover().with_hosts(&hosts); // cpu, slurm-1/cuda:0, slurm-1/cuda:1, slurm-1/cpu …
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Slurm {
    nodes: Option<u32>,
    gpus: Option<u32>,
    cores: Option<u32>,
    memory_mib: Option<u64>,
    partition: Option<String>,
    account: Option<String>,
    qos: Option<String>,
    time: Option<String>,
    is_exclusive: bool,
    options: Vec<String>,
    setup: Vec<String>,
    /// The worker's program and its arguments.
    command: Vec<String>,
    wait: Duration,
}

/// How long a program waits for the first node, unless [`Slurm::wait`] says otherwise.
const WAIT: Duration = Duration::from_secs(10);

/// How long a worker has to greet once its job has started.
const GREETING: Duration = Duration::from_secs(30);

impl Default for Slurm {
    fn default() -> Self {
        Slurm {
            nodes: None,
            gpus: None,
            cores: None,
            memory_mib: None,
            partition: None,
            account: None,
            qos: None,
            time: None,
            is_exclusive: false,
            options: Vec::new(),
            setup: Vec::new(),
            command: vec!["evener".into(), "worker".into()],
            wait: WAIT,
        }
    }
}

impl Slurm {
    /// One node, whose worker is the `evener` in the `PATH` there.
    pub fn new() -> Self {
        Slurm::default()
    }

    /// Sets the number of nodes. Without it: one, or all of the allocation that this program runs in.
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// Sets the number of GPUs of each node (`--gres=gpu:…`).
    pub fn gpus(mut self, gpus: u32) -> Self {
        self.gpus = Some(gpus);
        self
    }

    /// Sets the number of cores of each node (`--cpus-per-task`).
    pub fn cores(mut self, cores: u32) -> Self {
        self.cores = Some(cores);
        self
    }

    /// Sets the memory of each node in mebibytes (`--mem`).
    pub fn memory_mib(mut self, memory: u64) -> Self {
        self.memory_mib = Some(memory);
        self
    }

    /// Sets the partition.
    pub fn partition(mut self, partition: impl Into<String>) -> Self {
        self.partition = Some(partition.into());
        self
    }

    /// Sets the account.
    pub fn account(mut self, account: impl Into<String>) -> Self {
        self.account = Some(account.into());
        self
    }

    /// Sets the quality of service.
    pub fn qos(mut self, qos: impl Into<String>) -> Self {
        self.qos = Some(qos.into());
        self
    }

    /// Sets the time limit as `srun` takes it: `30` (minutes), `1:00:00`, `2-12:00:00`. A device whose node comes near it
    /// gets no chunk that would not end in time.
    pub fn time(mut self, time: impl Into<String>) -> Self {
        self.time = Some(time.into());
        self
    }

    /// Asks for whole nodes (`--exclusive`). Without it, several of the nodes may be shares of one machine.
    pub fn exclusive(mut self) -> Self {
        self.is_exclusive = true;
        self
    }

    /// Adds an argument of `srun`, such as `--constraint=a100`.
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Adds a line that the shell on the node runs first, such as `module load cuda`.
    pub fn setup(mut self, line: impl Into<String>) -> Self {
        self.setup.push(line.into());
        self
    }

    /// Sets the worker's program and its arguments. The path is that on the nodes.
    pub fn command(mut self, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.command = command.into_iter().map(Into::into).collect();
        self
    }

    /// Makes this program the worker, by the path that it has here: in a folder that the nodes share. The first line of
    /// its `main` has to be [`worker::serve_if_asked()`](crate::worker::serve_if_asked).
    pub fn this_program(self) -> std::io::Result<Self> {
        let program = std::env::current_exe()?.to_string_lossy().into_owned();
        Ok(self.command([program, crate::worker::ARGUMENT.to_owned()]))
    }

    /// Sets how long to wait for the first node. Nodes that come later join what is going on then.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Makes a host of each node, named `NAME-1`, `NAME-2` and so on. Nothing is asked for before they are connected.
    ///
    /// Inside an allocation (`SLURM_JOB_ID` is set), these are the nodes of the allocation, without the one that this
    /// program runs on. Fails if the allocation has fewer nodes than are asked for, or cannot be read.
    pub fn hosts(self, name: &str) -> Result<Vec<Host>, HostError> {
        let refuse = |detail: String| HostError::new(name, detail);
        self.check().map_err(refuse)?;
        let allocation = Allocation::from_environment().map_err(refuse)?;
        let places = match &allocation {
            Some(allocation) => {
                allocation.places(self.nodes).map_err(refuse)?.into_iter().map(Some).collect()
            }
            None => vec![None; self.nodes.unwrap_or(1) as usize],
        };
        let timeout = self.wait + GREETING;
        let group = Group::new(self, allocation.map(|it| it.job));
        let host = |(number, place): (usize, Option<String>)| {
            let name = format!("{name}-{number}");
            let node: Arc<Node> = group.add_node(&name, place);
            Ok(Host::new(name, node)?.timeout(timeout))
        };
        (1..).zip(places).map(host).collect()
    }
}
