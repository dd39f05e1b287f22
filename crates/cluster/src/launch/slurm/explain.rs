//! Errors of `srun` and of the shell on a node: what is wrong, in one sentence.

use std::io;

use crate::{launch::Ending, worker::DAMAGED};

/// Why a program of SLURM's could not be started.
pub(super) fn not_started(program: &str, why: &io::Error) -> String {
    match why.kind() {
        io::ErrorKind::NotFound => {
            format!(
                "this machine has no SLURM: `{program}` is not in the PATH (on some clusters, `module load slurm` adds it)"
            )
        }
        _ => format!("`{program}` cannot be started: {why}"),
    }
}

/// Why `srun` ended before the worker greeted, in SLURM's own words.
pub(super) fn refused(command: &[String], ending: &Ending) -> String {
    let said = |text: &str| {
        let said =
            ending.lines.iter().rev().find_map(|line| line.split_once(text).map(|(_, rest)| rest.trim()));
        said.filter(|said| !said.is_empty()).map(|said| said.trim_end_matches('.').to_owned())
    };
    let program = command.first().map_or("the program", String::as_str);
    if ending.lines.iter().any(|line| line.contains(DAMAGED)) {
        return format!(
            "`{program}` on the node differs from this program: build it once, in a folder that the nodes share"
        );
    }
    let is_missing = |line: &String| {
        line.contains(program) && (line.contains("not found") || line.contains("No such file"))
    };
    if ending.lines.iter().any(is_missing) {
        return format!(
            "the node has no `{program}`: put it into a folder that the nodes share, or give its path there as `evener` in \
             hosts.toml"
        );
    }
    if let Some(line) =
        ending.lines.iter().find(|line| line.contains("Permission denied") && line.contains(program))
    {
        return format!("`{program}` may not be executed on the node: run `chmod +x` on it ({line})");
    }
    if let Some(words) = said("Unable to allocate resources:").or_else(|| said("allocation failure:")) {
        return format!("SLURM refuses the request: {words}");
    }
    match said("srun: error:").or_else(|| ending.lines.last().cloned()) {
        Some(words) => format!("srun: {words}"),
        None => "srun ended without a word".into(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn explained(lines: &[&str]) -> String {
        let lines = lines.iter().map(|&line| line.to_owned()).collect();
        let ending = Ending { lines, code: Some(1), ..Ending::default() };
        refused(&["/opt/evener".to_owned(), "worker".to_owned()], &ending)
    }

    #[test]
    fn each_error_is_a_sentence_in_slurms_words() {
        for (lines, text) in [
            (
                &[
                    "srun: error: invalid partition specified: nope",
                    "srun: error: Unable to allocate resources: Invalid partition name specified",
                ][..],
                "SLURM refuses the request: Invalid partition name specified",
            ),
            (
                &["srun: error: Unable to allocate resources: Requested node configuration is not available"],
                "SLURM refuses the request: Requested node configuration is not available",
            ),
            (
                &[
                    "srun: error: Unable to allocate resources: Unable to contact slurm controller (connect failure)",
                ],
                "SLURM refuses the request: Unable to contact slurm controller (connect failure)",
            ),
            (&["sh: 2: exec: /opt/evener: not found"], "the node has no `/opt/evener`"),
            (&["sh: 2: exec: /opt/evener: Permission denied"], "run `chmod +x`"),
            (&["srun: error: something else."], "srun: something else"),
            (&[], "srun ended without a word"),
        ] {
            let explained = explained(lines);
            assert!(explained.contains(text), "`{text}` is not in: {explained}");
        }
        let missing = not_started("srun", &io::ErrorKind::NotFound.into());
        assert!(missing.contains("this machine has no SLURM"), "{missing}");
    }
}
