//! Help topics that concern all commands: exit codes and environment variables.

use clap::Command;

/// The exit codes and their meanings.
pub(crate) const EXIT_CODES: [(&str, &str); 4] = [
    ("0", "The command succeeded."),
    (
        "1",
        "The command failed. The message on standard error gives the reason. A witness without a proof, and a proof that cannot \
         be read, count as failures.",
    ),
    (
        "2",
        "The command line is invalid, or names an invalid device selection, score table, scenario, mesh layout, leaf size \
         or leaf index.",
    ),
    ("3", "A proof is invalid, or a root is not the expected one."),
];

/// The environment variables and their effects.
pub(crate) const VARIABLES: [(&str, &str); 20] = [
    ("EVENER_DEVICES", "Devices to use if --devices is not given."),
    (
        "EVENER_HOSTS",
        "Machines whose devices to use too if --hosts is not given. One that does not answer is left out, with a warning.",
    ),
    (
        "EVENER_VIEW",
        "If 1, lets `evener top` and `evener serve` find this program, through a socket that only this user can use.",
    ),
    (
        "EVENER_CACHE_DIR",
        "Folder for measured rates, compiled kernels and the scheduler's history. The default is the user's cache folder \
         (XDG_CACHE_HOME, or .cache in HOME).",
    ),
    (
        "EVENER_WORKER_LEASE",
        "On the machine of a worker: seconds after which it ends if its client gives no sign of life. The default is 120.",
    ),
    (
        "EVENER_WORKER_JOB",
        "Set by Evener for a worker in SLURM: the job that is the worker's own, which it cancels if its client is gone.",
    ),
    ("EVENER_SCORE_TABLE", "Score table if --score-table is not given."),
    ("EVENER_NVRTC", "Path of the NVRTC library, which compiles CUDA kernels."),
    ("EVENER_MPI", "Path of the MPI library."),
    (
        "EVENER_MPI_MESSAGES",
        "If not empty, MPI ranks on one host exchange messages instead of sharing memory.",
    ),
    ("EVENER_NCCL", "Path of the NCCL library."),
    ("CUDA_HOME, CUDA_PATH", "CUDA toolkits to search for NVRTC."),
    ("VIRTUAL_ENV, CONDA_PREFIX", "Python environments to search for NVRTC and NCCL."),
    (
        "PATH",
        "Folders in which `evener bench zk` looks for the program snarkrs, another Groth16 prover, to compare with.",
    ),
    ("NO_COLOR", "If not empty, no colors and no bold text, unless --color says otherwise."),
    ("CLICOLOR_FORCE", "If not empty and not 0, colors and bold text even if the output is not a terminal."),
    ("TMPDIR", "Folder for the trace of `evener demo` and for the keys that `evener bench zk` writes."),
    (
        "OMPI_COMM_WORLD_SIZE, PMI_SIZE, PMI_RANK, PMIX_RANK",
        "Set by mpirun and mpiexec: `evener mesh bench` then uses processes as ranks.",
    ),
    (
        "SLURM_PROCID, SLURM_STEP_NUM_TASKS",
        "Set by srun, with the same effect if there is more than one task.",
    ),
    (
        "SLURM_JOB_ID, SLURM_JOB_NODELIST, SLURMD_NODENAME",
        "Set by SLURM inside an allocation: slurm(...) then uses its nodes, and asks for no others.",
    ),
];

/// The last lines of the help of every command.
const REFERENCE: &str = "\
See also:
  evener help exit-codes, evener help environment";

/// Refers to the topics in the help of every command below this one.
pub(crate) fn refer(command: Command) -> Command {
    command.mut_subcommands(|command| match command.get_after_long_help() {
        Some(text) => {
            let text = format!("{text}\n\n{REFERENCE}");
            refer(command.after_long_help(text))
        }
        // The topics themselves.
        None => command,
    })
}

/// The width of help texts.
const WIDTH: usize = 78;

/// Returns the text of `evener help exit-codes`.
pub(crate) fn exit_codes() -> String {
    let lines = EXIT_CODES.iter().map(|(code, meaning)| format!("  {code}  {}", wrap(meaning, 5)));
    format!("Exit codes:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

/// Returns the text of `evener help environment`.
pub(crate) fn environment() -> String {
    let lines = VARIABLES.iter().map(|(names, effect)| format!("  {names}\n      {}", wrap(effect, 6)));
    format!("Environment variables:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

/// Breaks a text into lines, all but the first of which are indented.
fn wrap(text: &str, indent: usize) -> String {
    let (mut wrapped, mut column) = (String::new(), indent);
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > indent && column + 1 + width > WIDTH {
            wrapped += "\n";
            wrapped += &" ".repeat(indent);
            column = indent;
        } else if column > indent {
            wrapped += " ";
            column += 1;
        }
        wrapped += word;
        column += width;
    }
    wrapped
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn topics_fit_a_terminal_and_lose_no_word() {
        for text in [exit_codes(), environment()] {
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        }
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (_, text) in VARIABLES {
            assert_eq!(words(&wrap(text, 6)), words(text));
        }
    }
}
