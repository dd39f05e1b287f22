//! Programs that are sent to other machines, once, and kept there by the hash of their contents.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
};

use evener_device::remote::program_hash;

use crate::worker;

/// Days after which a program that was not used is removed, when another one is sent.
const KEPT_DAYS: u32 = 30;

/// This program, as it is sent to other machines. It is kept there in the user's cache folder, which nobody else may
/// read, under the hash of its contents. A worker checks that hash before it serves anything.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    hash: String,
    bytes: u64,
    /// Its arguments as a worker, before the hash.
    arguments: String,
}

impl Program {
    /// This program. The first line of its `main` has to be [`worker::serve_if_asked()`](worker::serve_if_asked).
    pub fn this() -> io::Result<Self> {
        Program::with_arguments(worker::ARGUMENT)
    }

    /// This program, which becomes a worker by these arguments and the hash that it must have.
    pub fn with_arguments(arguments: &str) -> io::Result<Self> {
        let linux = PathBuf::from("/proc/self/exe");
        let path = if linux.exists() { linux } else { std::env::current_exe()? };
        let hash =
            program_hash().ok_or_else(|| io::Error::other("this program's executable cannot be read"))?;
        let bytes = path.metadata()?.len();
        Ok(Program { hash: worker::hexadecimal(&hash), bytes, path, arguments: arguments.into() })
    }

    /// The hash of its contents, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The command that makes a worker of this very program, by the path that it has on this machine.
    pub(crate) fn command(&self) -> io::Result<Vec<String>> {
        let path = std::env::current_exe()?.to_string_lossy().into_owned();
        let arguments = self.arguments.split_whitespace().map(str::to_owned);
        Ok([path].into_iter().chain(arguments).chain([self.hash.clone()]).collect())
    }

    pub(super) fn open(&self) -> io::Result<impl Read + use<>> {
        File::open(&self.path)
    }

    /// A line of a shell that sets `p` to the path that the program has on a machine.
    fn find(&self) -> String {
        format!("d=${{XDG_CACHE_HOME:-$HOME/.cache}}/evener/programs; p=$d/{}", self.hash)
    }

    /// Returns the command that starts a worker where the program was sent to, and otherwise runs another command.
    pub(super) fn start_or(&self, otherwise: &str) -> String {
        let Program { hash, bytes, arguments, .. } = self;
        let find = self.find();
        // A file of another size, as a machine that went down may leave, could not say that it is damaged. The time of its
        // last use decides when it is removed.
        in_shell(&format!(
            "{find}; [ -x \"$p\" ] && [ $(wc -c <\"$p\") -eq {bytes} ] && {{ touch -c \"$p\" 2>/dev/null; exec \"$p\" {arguments} {hash}; }}; {otherwise}"
        ))
    }

    /// Returns the command that stores the program, which comes from standard input, and prints its path. It removes other
    /// programs that were not used for [`KEPT_DAYS`], and parts of some whose connection was lost.
    pub(super) fn receive(&self) -> String {
        let (find, bytes) = (self.find(), self.bytes);
        // Made under another name, so that no worker starts a part of it: one that nobody else has, also not another machine
        // with the same home folder.
        in_shell(&format!(
            "umask 077; {find}; mkdir -p \"$d\" && chmod 700 \"$d\" || exit 1; \
             find \"$d\" -type f -mtime +{KEPT_DAYS} -exec rm -f {{}} + 2>/dev/null; t=$(mktemp \"$p.XXXXXX\") || exit 1; trap \"rm -f \\\"$t\\\"\" 0; \
             trap \"exit 1\" 1 2 13 15; cat >\"$t\" || exit 1; \
             [ $(wc -c <\"$t\") -eq {bytes} ] || {{ echo \"a part of the program is missing\" >&2; exit 1; }}; \
             chmod 700 \"$t\" && mv \"$t\" \"$p\" && echo \"$p\""
        ))
    }
}

/// Returns a command that runs a script with `sh`, whatever the shell is that reads the command.
fn in_shell(script: &str) -> String {
    format!("exec sh -c '{}'", script.replace('\'', r"'\''"))
}
