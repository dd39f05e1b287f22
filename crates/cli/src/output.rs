//! Output to standard output, standard error and files, and numbers for people.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use evener_merkle::replace_file;
use evener_schedule::Trace;
use serde::Serialize;

use crate::{color, escape, inline::above_view};

/// The version of all JSON that commands print. It changes if a key is renamed or removed, or changes its meaning.
const SCHEMA_VERSION: u32 = 1;

/// Writes text to standard output. Escapes all control characters but line ends and the bold headings of tables.
pub(crate) fn write_out(text: &str) -> io::Result<()> {
    write_raw(&escape::multi_line(text, color::is_enabled(&io::stdout())))
}

/// Writes text that comes from no input, such as a completion script, to standard output without escaping.
pub(crate) fn write_raw(text: &str) -> io::Result<()> {
    above_view(|| {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    })
}

/// Writes a message to standard error. A closed standard error is not an error.
pub(crate) fn write_stderr(text: &str) {
    let text = escape::multi_line(text, false);
    let _ = above_view(|| io::stderr().lock().write_all(text.as_bytes()));
}

/// Writes a JSON object to standard output, with the version of the schema as its first key.
pub(crate) fn write_json(object: &impl Serialize) -> Result<()> {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        schema_version: u32,
        #[serde(flatten)]
        object: &'a T,
    }
    write_json_unversioned(&Versioned { schema_version: SCHEMA_VERSION, object })
}

/// Writes JSON of a file format, such as proofs, to standard output.
pub(crate) fn write_json_unversioned(value: &impl Serialize) -> Result<()> {
    Ok(write_raw(&escape::json(&(serde_json::to_string_pretty(value)? + "\n")))?)
}

/// Returns a path for messages, with control characters escaped.
pub(crate) fn display_path(path: &Path) -> String {
    escape::single_line(&path.display().to_string()).into_owned()
}

/// Writes a file atomically. Something that is not a regular file, such as a pipe or `/dev/stdout`, is written in place.
pub(crate) fn write_file(path: &Path, contents: &[u8]) -> Result<()> {
    let written = match is_special(path) {
        true => open_special(path).and_then(|mut special| special.write_all(contents)),
        false => replace_file(&resolve_links(path), |file| file.write_all(contents)),
    };
    written.with_context(|| format!("{}: cannot be written", display_path(path)))
}

/// Makes writes beyond the file size limit return an error. By default, SIGXFSZ ends the process.
#[cfg(unix)]
pub(crate) fn return_file_size_errors() {
    use std::sync::{Arc, atomic::AtomicBool};

    use signal_hook::{consts::SIGXFSZ, flag};

    if let Err(error) = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))) {
        tracing::debug!(%error, "cannot handle SIGXFSZ: a file at its size limit will end the process");
    }
}

/// Other systems have no SIGXFSZ.
#[cfg(not(unix))]
pub(crate) fn return_file_size_errors() {}

/// Writes a trace for `evener report` and Perfetto.
pub(crate) fn write_trace(path: &Path, trace: &Trace) -> Result<()> {
    write_file(path, &serde_json::to_vec(&trace.to_json())?)
}

/// Returns whether a path exists and is neither a regular file nor a folder, so that it must not be replaced.
pub(crate) fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

/// Opens something that is not a regular file for writing. A pipe blocks until it has a reader.
pub(crate) fn open_special(path: &Path) -> io::Result<File> {
    File::options().write(true).open(path)
}

/// Follows symbolic links, so that their target is replaced and not the link.
pub(crate) fn resolve_links(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.into())
}

/// Formats a time with a suitable unit.
pub(crate) fn format_time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".into(),
        _ if seconds < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.3} s"),
    }
}

/// Formats a number with thousands separators.
pub(crate) fn format_count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of things: `1 leaf`, `2 leaves`.
pub(crate) fn format_counted(number: u64, one: &str, several: &str) -> String {
    format!("{} {}", format_count(number), if number == 1 { one } else { several })
}

/// Formats a number of bytes with the largest binary unit that it reaches.
pub(crate) fn format_bytes(bytes: u64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / *unit as f64),
        None => format_counted(bytes, "byte", "bytes"),
    }
}

/// Formats a rate with an SI prefix: `27.5 M`.
pub(crate) fn format_rate(per_second: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(unit, _)| per_second >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", per_second / unit),
        None => format!("{per_second:.1}"),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(format_count), ["0", "999", "1,000", "1,234,567"]);
        let bytes = [0, 1, 1023, 2 << 20, 65_536 * 33, (1 << 30) + (1 << 29)].map(format_bytes);
        assert_eq!(bytes, ["0 bytes", "1 byte", "1,023 bytes", "2 MiB", "2.06 MiB", "1.50 GiB"]);
        let leaves = [0, 1, 2].map(|count| format_counted(count, "leaf", "leaves"));
        assert_eq!(leaves, ["0 leaves", "1 leaf", "2 leaves"]);
        assert_eq!([7.0, 1500.0, 2.75e7, 3e9].map(format_rate), ["7.0", "1.5 k", "27.5 M", "3.0 G"]);
        assert_eq!([0.0, 2e-6, 0.5, 61.0].map(format_time), ["0", "2.0 µs", "500.00 ms", "61.000 s"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_file(&link, b"new").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert!(link.symlink_metadata().unwrap().is_symlink());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_no_file_is_written_to_and_not_replaced() {
        write_file("/dev/null".as_ref(), b"anything").unwrap();
        assert!(write_file("/dev/full".as_ref(), b"anything").is_err());
        for path in ["/dev/null", "/dev/full"] {
            assert!(!Path::new(path).metadata().unwrap().is_file(), "{path}");
        }
    }
}
