//! Parsing of selections: `gpu,-cuda:1,cpu[8,8]` has three terms.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Term<'a> {
    /// The term as it was written.
    pub(super) text: &'a str,
    /// Whether it excludes the devices that it names: `-cpu`.
    pub(super) excludes: bool,
    /// The name: an id, an API, a group, an address, a UUID or a part of a device's name.
    pub(super) name: &'a str,
    /// The partitions to split it into: `cpu[8,8]`.
    pub(super) sizes: Option<Vec<u32>>,
}

/// A term that cannot be parsed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Malformed {
    pub(super) term: String,
    pub(super) detail: String,
}

/// Parses a selection. Returns at least one term.
pub(super) fn parse(selection: &str) -> Result<Vec<Term<'_>>, Malformed> {
    terms(selection).into_iter().map(|text| term(text, selection)).collect()
}

/// Splits at the commas outside of brackets.
fn terms(selection: &str) -> Vec<&str> {
    let (mut terms, mut start, mut inside) = (Vec::new(), 0, false);
    for (index, letter) in selection.char_indices() {
        match letter {
            '[' => inside = true,
            ']' => inside = false,
            ',' if !inside => {
                terms.push(selection[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(selection[start..].trim());
    terms
}

fn term<'a>(text: &'a str, selection: &str) -> Result<Term<'a>, Malformed> {
    let refuse = |detail: String| {
        let term = if text.is_empty() { selection } else { text };
        Err(Malformed { term: term.into(), detail })
    };
    let (excludes, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest.trim_start()),
        None => (false, text),
    };
    let (name, sizes) = match rest.split_once('[') {
        None if rest.contains(']') => return refuse("`]` without `[` before it".into()),
        None => (rest, None),
        Some((name, list)) => {
            let Some(list) = list.strip_suffix(']').filter(|list| !list.contains(['[', ']'])) else {
                return refuse("the term must end with one list in brackets, as in `cpu[8,8]`".into());
            };
            match list.split(',').map(size).collect() {
                Ok(sizes) => (name.trim_end(), Some(sizes)),
                Err(detail) => return refuse(detail),
            }
        }
    };
    if name.is_empty() {
        return refuse("a term is empty: remove the extra comma, or write a name".into());
    }
    if excludes && sizes.is_some() {
        return refuse("an excluded device cannot be split: remove the sizes or the `-`".into());
    }
    Ok(Term { text, excludes, name, sizes })
}

fn size(text: &str) -> Result<u32, String> {
    match text.trim().parse() {
        Ok(0) | Err(_) => {
            Err(format!("`{}` is not a number of compute units: write a number from 1 on", text.trim()))
        }
        Ok(size) => Ok(size),
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn plain(text: &str) -> Term<'_> {
        Term { text, excludes: false, name: text, sizes: None }
    }

    #[test]
    fn commas_in_brackets_do_not_separate_terms() {
        let split = |text, name, sizes: &[u32]| Term { sizes: Some(sizes.to_vec()), name, ..plain(text) };
        let terms = parse(" gpu, -cuda:1 ,cuda:0[40, 92],cpu[8]").unwrap();
        let excluded = Term { excludes: true, name: "cuda:1", ..plain("-cuda:1") };
        let first = split("cuda:0[40, 92]", "cuda:0", &[40, 92]);
        assert_eq!(terms, [plain("gpu"), excluded, first, split("cpu[8]", "cpu", &[8])]);
    }

    #[test]
    fn a_term_that_cannot_be_parsed_is_named_with_the_reason() {
        for (selection, term, says) in [
            ("", "", "empty"),
            ("cpu,,gpu", "cpu,,gpu", "empty"),
            ("cpu,", "cpu,", "empty"),
            ("cpu,-", "-", "empty"),
            ("[2]", "[2]", "empty"),
            ("cpu,cuda:0[8", "cuda:0[8", "brackets"),
            ("cpu[1[2]]", "cpu[1[2]]", "brackets"),
            ("cpu[1]x", "cpu[1]x", "brackets"),
            ("cpu[1][2]", "cpu[1][2]", "brackets"),
            ("cpu]", "cpu]", "without `[`"),
            ("cuda:0[x]", "cuda:0[x]", "`x` is not a number"),
            ("cuda:0[]", "cuda:0[]", "`` is not a number"),
            ("cuda:0[0]", "cuda:0[0]", "`0` is not a number"),
            ("cuda:0[8,4294967296]", "cuda:0[8,4294967296]", "`4294967296` is not"),
            ("-cpu[1,1]", "-cpu[1,1]", "excluded"),
        ] {
            let why = parse(selection).unwrap_err();
            assert_eq!(why.term, term, "{selection}");
            assert!(why.detail.contains(says), "{selection}: {}", why.detail);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(selection in any::<String>()) {
            let _ = parse(&selection);
        }

        #[test]
        fn text_that_looks_like_a_selection_is_read_or_refused(selection in r"[a-c:0-2\[\],\- /é]{0,24}") {
            if let Ok(terms) = parse(&selection) {
                prop_assert!(!terms.is_empty());
                prop_assert!(terms.iter().all(|term| !term.name.is_empty()));
            }
        }
    }
}
