//! What every command writes: to standard output, to files, in tables.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use comfy_table::{Attribute, Cell, CellAlignment, Table, presets};
use evener_merkle::replace_file;
use evener_schedule::Trace;
use serde::Serialize;

use crate::escape;

/// Space between columns.
pub(crate) const GAP: u16 = 2;

/// Writes text to standard output. A terminal acts on nothing in it but ends of lines and bold headings.
pub(crate) fn write_out(text: &str) -> io::Result<()> {
    write_as_it_is(&escape::text(text, may_colour(io::stdout().is_terminal())))
}

/// Writes to standard output what is the command's own to the last character, such as a script.
pub(crate) fn write_as_it_is(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes to standard error what is not the result itself.
pub(crate) fn write_aside(text: &str) {
    // Where even that cannot be written to, nobody wants to know.
    let _ = io::stderr().lock().write_all(escape::text(text, false).as_bytes());
}

/// Writes a value to standard output, for programs.
pub(crate) fn write_json(value: &impl Serialize) -> Result<()> {
    Ok(write_as_it_is(&escape::json(&(serde_json::to_string_pretty(value)? + "\n")))?)
}

/// A path for people.
pub(crate) fn shown(path: &Path) -> String {
    escape::name(&path.display().to_string()).into_owned()
}

/// Writes a file whole or not at all. What is no file, such as a pipe or `/dev/stdout`, is written to as it is.
pub(crate) fn write_file(path: &Path, contents: &[u8]) -> Result<()> {
    let written = match is_special(path) {
        true => open_special(path).and_then(|mut special| special.write_all(contents)),
        false => replace_file(&target(path), |file| file.write_all(contents)),
    };
    written.with_context(|| format!("{}: cannot be written", shown(path)))
}

/// Lets a file that may not grow be an error like any other, and not the end of the process.
#[cfg(unix)]
pub(crate) fn survive_full_files() {
    use std::sync::{Arc, atomic::AtomicBool};

    use signal_hook::{consts::SIGXFSZ, flag};

    let came = Arc::new(AtomicBool::new(false));
    if let Err(error) = flag::register(SIGXFSZ, came) {
        tracing::debug!(%error, "a file that may not grow would end the process");
    }
}

/// Nowhere else does a file that may not grow end the process.
#[cfg(not(unix))]
pub(crate) fn survive_full_files() {}

/// Writes what every lane did, for Perfetto.
pub(crate) fn write_trace(path: &Path, trace: &Trace) -> Result<()> {
    write_file(path, &serde_json::to_vec(&trace.to_json())?)
}

/// Whether a path is there already and is no file: it is to be written to, and never to be replaced.
pub(crate) fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|there| !there.is_file() && !there.is_dir())
}

/// Opens what is no file to write to it. A pipe waits until somebody reads.
pub(crate) fn open_special(path: &Path) -> io::Result<File> {
    File::options().write(true).open(path)
}

/// Where a file really is: what a link points to is replaced, and not the link.
pub(crate) fn target(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.into())
}

/// Whether to use colours and bold letters: on a terminal, unless `NO_COLOR` asks for none.
pub(crate) fn may_colour(is_terminal: bool) -> bool {
    colours(std::env::var_os("NO_COLOR").as_deref(), is_terminal)
}

fn colours(no_color: Option<&OsStr>, is_terminal: bool) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

/// A heading of a table.
pub(crate) fn heading(text: &str) -> Cell {
    // comfy-table itself leaves attributes out where there is no terminal.
    if may_colour(true) { Cell::new(text).add_attribute(Attribute::Bold) } else { Cell::new(text) }
}

/// A table without lines. Each heading says whether its column holds numbers.
pub(crate) fn table(headings: &[(&str, bool)], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(headings.iter().map(|(text, _)| heading(&escape::name(text))));
    table.add_rows(rows.into_iter().map(|row| row.into_iter().map(|cell| escape::name(&cell).into_owned())));
    for (index, &(_, is_number)) in headings.iter().enumerate() {
        if let Some(cells) = table.column_mut(index) {
            cells.set_padding((0, if index + 1 == headings.len() { 0 } else { GAP }));
            cells.set_cell_alignment(if is_number { CellAlignment::Right } else { CellAlignment::Left });
        }
    }
    table.trim_fmt()
}

/// A time in the unit that suits it.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".into(),
        _ if seconds < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.3} s"),
    }
}

/// A large number, with commas.
pub(crate) fn count(number: u64) -> String {
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

/// A rate with the letter that suits it: `27.5 M`.
pub(crate) fn rate(each_second: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(unit, _)| each_second >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", each_second / unit),
        None => format!("{each_second:.1} "),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn colours_are_for_terminals_whose_user_has_not_refused_them() {
        assert!(colours(None, true));
        assert!(colours(Some("".as_ref()), true), "set to nothing is not set");
        assert!(!colours(Some("1".as_ref()), true));
        assert!(!colours(None, false));
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([7.0, 1500.0, 2.75e7, 3e9].map(rate), ["7.0 ", "1.5 k", "27.5 M", "3.0 G"]);
        assert_eq!([0.0, 2e-6, 0.5, 61.0].map(time), ["0", "2.0 µs", "500.00 ms", "61.000 s"]);
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
