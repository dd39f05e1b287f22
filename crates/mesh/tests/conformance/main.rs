//! The conformance suite: what every back end of the collectives must do, run on each.
//!
//! Each trial is one behaviour, named `back end::behaviour`. For `local` the ranks are threads. For `mpi` they are
//! processes: run this program under `mpirun -n 4`, as `scripts/test` does with Open MPI, MPICH and a library with the
//! standard ABI; otherwise its trials are listed as ignored. Every behaviour runs twice there, in shared memory and by
//! messages. Started calls on device buffers also run on a Vulkan device, if there is one. `EVENER_TEST_FULL` tries long vectors of every type.
// A behaviour reports errors by panicking.
#![allow(clippy::panic, clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, unreachable_pub)]
// Under mpirun the environment is changed between two parts of the suite.
#![allow(unsafe_code)]

mod agreement;
mod buffers;
mod collectives;
mod gradients;
mod handles;
mod meshes;
mod reference;
mod rounds;
mod uneven;

use std::{
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use evener_device::{Api, Device, Inventory};
use evener_mesh::comm::{Communicator, GroupSpec, World};
use libtest_mimic::{Arguments, Failed, Trial};

/// One rank of a world that runs the suite.
pub struct Rank {
    world: World,
}

impl Rank {
    /// Returns a group of the first ranks, if this rank is one of them.
    fn first(&self, size: usize) -> Option<Communicator> {
        let spec = GroupSpec::new(format!("first{size}"), (0..size).collect::<Vec<_>>());
        // The last ranks wait for the first, which run smaller groups before.
        let spec = if is_full() { spec.timeout(TIMEOUT * 30) } else { spec };
        Some(self.world.new_group(spec).unwrap()).filter(|group| group.rank().is_some())
    }
}

/// Long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns whether long vectors are tried of every type, which takes minutes.
pub fn is_full() -> bool {
    std::env::var_os("EVENER_TEST_FULL").is_some()
}

type Behaviour = (&'static str, fn(&Rank));

/// What every back end must do, in a world of any size.
const EVERYWHERE: &[Behaviour] = &[
    ("everything_in_groups_of_every_size", |rank| {
        (1..=rank.world.size()).for_each(|size| collectives::everything(rank, size));
    }),
    ("long_vectors", |rank| (1..=rank.world.size()).for_each(|size| collectives::long(rank, size))),
    ("a_thousand_rounds_with_delays", rounds::a_thousand),
    ("two_groups_that_share_ranks_at_once", rounds::two_groups_at_once),
    ("started_calls_run_in_order", rounds::started_calls_run_in_order),
    ("a_different_collective_is_named", agreement::a_different_collective_is_named),
    (
        "a_different_size_type_operation_or_root_is_named",
        agreement::a_different_size_type_operation_or_root_is_named,
    ),
    (
        "a_different_call_after_many_equal_ones_is_named",
        agreement::a_different_call_after_many_equal_ones_is_named,
    ),
    ("what_is_received_must_be_what_is_sent", agreement::what_is_received_must_be_what_is_sent),
    (
        "an_exchange_that_fails_is_named_as_it_was_called",
        agreement::an_exchange_that_fails_is_named_as_it_was_called,
    ),
    ("a_wrong_argument_fails_all_ranks", agreement::a_wrong_argument_fails_all_ranks),
    (
        "a_mean_without_weight_is_an_error_and_keeps_the_data",
        agreement::a_mean_without_weight_is_an_error_and_keeps_the_data,
    ),
    ("only_members_take_part", agreement::only_members_take_part),
    ("groups_that_cannot_be_are_refused", agreement::groups_that_cannot_be_are_refused),
    (
        "derived_groups_inherit_timeout_and_generation",
        agreement::derived_groups_inherit_timeout_and_generation,
    ),
    ("uneven_batches_train_as_one", gradients::uneven_batches_train_as_one),
    ("uneven_vectors_arrive_whole_and_in_order", uneven::uneven_vectors_arrive_whole_and_in_order),
    ("uneven_buffers_arrive_whole_and_in_order", uneven::uneven_buffers_arrive_whole_and_in_order),
    (
        "a_buffer_that_does_not_fit_uneven_blocks_fails_all_ranks",
        uneven::a_buffer_that_does_not_fit_uneven_blocks_fails_all_ranks,
    ),
    ("uneven_lengths_that_do_not_add_up_fail_all_ranks", uneven::lengths_that_do_not_add_up_fail_all_ranks),
    ("an_uneven_call_is_not_taken_for_an_even_one", uneven::an_uneven_call_is_not_taken_for_an_even_one),
    ("started_calls_can_be_awaited", handles::started_calls_can_be_awaited),
    (
        "a_group_with_a_device_outlives_its_other_handles",
        handles::a_group_with_a_device_outlives_its_other_handles,
    ),
    ("started_calls_on_buffers_follow_their_stream", |rank| {
        handles::started_calls_on_buffers_follow_their_stream(rank, &Device::cpu());
    }),
    ("what_is_queued_after_a_started_call_does_not_wait_for_it", |rank| {
        handles::what_is_queued_after_a_started_call_does_not_wait_for_it(rank, &Device::cpu());
    }),
    ("buffers_give_what_host_memory_gives", buffers::buffers_give_what_host_memory_gives),
    ("every_axis_has_a_communicator", meshes::every_axis_has_a_communicator),
    (
        "after_a_reshape_old_groups_fail_and_new_ones_work",
        meshes::after_a_reshape_old_groups_fail_and_new_ones_work,
    ),
    (
        "ranks_that_wait_for_one_that_has_reshaped_are_notified",
        meshes::ranks_that_wait_for_one_that_has_reshaped_are_notified,
    ),
    (
        "a_reshape_during_a_call_ends_alike_on_all_ranks",
        meshes::a_reshape_during_a_call_ends_alike_on_all_ranks,
    ),
    ("a_mesh_goes_on_without_ranks_that_are_gone", meshes::a_mesh_goes_on_without_ranks_that_are_gone),
];

/// What started calls must do on any device, here on the first Vulkan device. Without one, these are ignored.
const ON_VULKAN: &[Behaviour] = &[
    ("started_calls_on_buffers_follow_their_stream", |rank| {
        handles::started_calls_on_buffers_follow_their_stream(rank, vulkan().unwrap());
    }),
    ("what_is_queued_after_a_started_call_does_not_wait_for_it", |rank| {
        handles::what_is_queued_after_a_started_call_does_not_wait_for_it(rank, vulkan().unwrap());
    }),
];

/// Returns the first Vulkan device, which may be software.
fn vulkan() -> Option<&'static Device> {
    static VULKAN: LazyLock<Option<Device>> = LazyLock::new(|| {
        let inventory = Inventory::discover_all_apis();
        inventory.devices().iter().find(|device| device.describe().api == Api::Vulkan).cloned()
    });
    VULKAN.as_ref()
}

/// The routes between processes of one host, tried in turn.
const ROUTES: [&str; 2] = ["memory", MESSAGES];
const MESSAGES: &str = "messages";

fn main() {
    if World::was_launched_by_mpi() {
        return as_process();
    }
    let mut arguments = Arguments::from_args();
    // Trials spawn their own threads.
    arguments.test_threads.get_or_insert(1);
    let mut trials = Vec::new();
    for (name, behaviour) in EVERYWHERE {
        let sizes: &[usize] =
            if name.starts_with("everything") || name.starts_with("long") { &[8] } else { &[1, 2, 4, 8] };
        for size in sizes {
            trials.push(Trial::test(format!("local::{size}::{name}"), move || on_threads(*size, *behaviour)));
        }
    }
    for (name, behaviour) in ON_VULKAN {
        for size in [1, 2, 4] {
            let run = move || on_threads(size, *behaviour);
            let trial = Trial::test(format!("vulkan::{size}::{name}"), run);
            trials.push(trial.with_ignored_flag(vulkan().is_none()));
        }
    }
    for family in ["openmpi", "mpich", "mpi_abi"] {
        for (route, (name, _)) in ROUTES.iter().flat_map(|route| EVERYWHERE.iter().map(move |it| (route, it)))
        {
            let absent = || Err("not started by mpirun".into());
            trials.push(Trial::test(format!("{family}::{route}::{name}"), absent).with_ignored_flag(true));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// Runs every behaviour as one process of several.
fn as_process() {
    let rank = Rank { world: World::mpi(TIMEOUT).unwrap() };
    let first = rank.world.rank() == 0;
    if first {
        println!(
            "\nrunning {} tests on {} ranks of {}",
            ROUTES.len() * EVERYWHERE.len(),
            rank.world.size(),
            rank.world.backend()
        );
    }
    for route in ROUTES {
        if route == MESSAGES {
            // SAFETY: this program has no other thread, and those of an MPI library only wait for events.
            unsafe { std::env::set_var("EVENER_MPI_MESSAGES", "1") };
        }
        for (name, behaviour) in EVERYWHERE {
            // A panic kills this process, and so the others.
            let start = Instant::now();
            behaviour(&rank);
            rank.world.communicator().barrier().unwrap();
            if first {
                println!("test mpi::{route}::{name} ... ok ({:.1} s)", start.elapsed().as_secs_f64());
            }
        }
    }
    if first {
        println!(
            "\ntest result: ok. {} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
            ROUTES.len() * EVERYWHERE.len()
        );
    }
}

/// Runs a behaviour on `size` threads, one per rank.
fn on_threads(size: usize, behaviour: fn(&Rank)) -> Result<(), Failed> {
    let ranks: Vec<_> = World::local_with_timeout(size, TIMEOUT)
        .into_iter()
        .map(|world| thread::spawn(move || behaviour(&Rank { world })))
        .collect();
    let failed = ranks.into_iter().enumerate().filter_map(|(rank, thread)| {
        let panic = thread.join().err()?;
        let says = panic.downcast_ref::<String>().cloned();
        let says =
            says.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned())).unwrap_or_default();
        Some(format!("rank {rank}: {says}"))
    });
    let failed: Vec<_> = failed.collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}
