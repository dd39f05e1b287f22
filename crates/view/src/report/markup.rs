//! Text in markup: names come from drivers, files and other machines, and must not become markup or control characters.

use std::fmt::Write;

/// Returns whether a character controls a terminal, or changes the direction of text.
fn is_control(char: char) -> bool {
    let is_bidirectional = matches!(
        char,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    // The last two are no characters, which XML forbids.
    char.is_control() || is_bidirectional || matches!(char, '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}')
}

/// A text of one line, with control characters as Rust escapes.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for char in text.chars() {
        match is_control(char) {
            true => plain.extend(char.escape_default()),
            false => plain.push(char),
        }
    }
    plain
}

/// A text for the contents of an element or an attribute of HTML or SVG.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            _ if is_control(char) => escaped.extend(char.escape_default()),
            _ => escaped.push(char),
        }
    }
    escaped
}

/// A text for an element, cut if it is long: a compiler's log may be.
pub(super) fn escape_short(text: &str) -> String {
    const MAX_CHARS: usize = 600;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => escape(&text[..end]) + "…",
        None => escape(text),
    }
}

/// A row of a table with two columns.
pub(super) fn pair(markup: &mut String, name: &str, value: &str) {
    let _ =
        writeln!(markup, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(name), escape_short(value));
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn no_text_becomes_markup_or_a_control_character() {
        assert_eq!(escape("<a href='x'>\"&"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;");
        assert_eq!(escape("a\u{1b}[2J\n\u{202e}b"), "a\\u{1b}[2J\\n\\u{202e}b");
        assert_eq!(plain("a\u{1b}<b>"), "a\\u{1b}<b>");
        assert!(escape_short(&"é".repeat(10_000)).ends_with("é…"));
    }
}
