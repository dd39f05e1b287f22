//! Text from files, drivers and names of files, for a terminal that must not act on it.

use std::borrow::Cow;

/// What [`output::heading`](crate::output::heading) makes of a heading, and nothing else.
const BOLD: [&str; 2] = ["\u{1b}[1m", "\u{1b}[0m"];

/// Whether a terminal acts on a character, or puts what follows in another order.
fn is_active(char: char) -> bool {
    let is_bidirectional = matches!(
        char,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    char.is_control() || is_bidirectional || matches!(char, '\u{2028}' | '\u{2029}')
}

/// A name, or whatever else has one line: every active character is written as it would be in a program.
pub(crate) fn name(text: &str) -> Cow<'_, str> {
    escape(text, |_| 0)
}

/// What a command writes: the same, but for ends of lines and tabs and, where they may be, the command's own bold letters.
pub(crate) fn text(text: &str, may_be_bold: bool) -> Cow<'_, str> {
    escape(text, |rest| match rest.as_bytes() {
        [b'\n' | b'\t', ..] => 1,
        _ if may_be_bold => BOLD.iter().find(|bold| rest.starts_with(**bold)).map_or(0, |bold| bold.len()),
        _ => 0,
    })
}

/// A line of the log, whose escape characters are the subscriber's own colours.
pub(crate) fn log(text: &str) -> Cow<'_, str> {
    escape(text, |rest| usize::from(matches!(rest.as_bytes(), [b'\n' | b'\t' | 0x1b, ..])))
}

/// JSON: active characters can only be within strings, where JSON has a way to write them.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    if !text.contains(is_escaped_in_json) {
        return text.into();
    }
    let mut escaped = String::new();
    for char in text.chars() {
        match is_escaped_in_json(char) {
            true => {
                char.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escaped += &format!("\\u{unit:04x}"))
            }
            false => escaped.push(char),
        }
    }
    escaped.into()
}

fn is_escaped_in_json(char: char) -> bool {
    is_active(char) && char != '\n'
}

/// Escapes active characters, but for what begins with so many bytes that are to be kept.
fn escape(text: &str, kept: impl Fn(&str) -> usize) -> Cow<'_, str> {
    if !text.contains(is_active) {
        return text.into();
    }
    let (mut escaped, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(is_active) {
        let (before, from) = rest.split_at(at);
        escaped += before;
        let kept = kept(from);
        let width = from.chars().next().map_or(0, char::len_utf8).max(kept);
        match kept {
            0 => escaped.extend(from[..width].chars().flat_map(char::escape_default)),
            _ => escaped += &from[..width],
        }
        rest = &from[width..];
    }
    (escaped + rest).into()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_written_out() {
        assert_eq!(name("plain, ünïcode, 漢字"), "plain, ünïcode, 漢字");
        assert_eq!(name("a\u{1b}[31mb\nc\u{9b}d\u{202e}e\u{7f}"), r"a\u{1b}[31mb\nc\u{9b}d\u{202e}e\u{7f}");
        assert_eq!(name(&name("\u{7}")), r"\u{7}", "twice is once");
    }

    #[test]
    fn lines_and_bold_headings_are_the_commands_own() {
        let heading = "\u{1b}[1mID\u{1b}[0m\n\tcpu\r\u{1b}[31m";
        assert_eq!(text(heading, true), "\u{1b}[1mID\u{1b}[0m\n\tcpu\\r\\u{1b}[31m");
        assert_eq!(text(heading, false), "\\u{1b}[1mID\\u{1b}[0m\n\tcpu\\r\\u{1b}[31m");
    }

    #[test]
    fn json_stays_the_same_to_whoever_reads_it() {
        for value in ["plain", "a\u{9b}b\u{202e}c\u{7f}\u{1b}\n"] {
            let written = serde_json::to_string_pretty(&[value]).unwrap();
            let escaped = json(&written);
            assert!(!escaped.contains(is_escaped_in_json), "{escaped:?}");
            assert_eq!(serde_json::from_str::<[String; 1]>(&escaped).unwrap(), [value]);
        }
    }
}
