//! What a loop runs over: ranges, and iterators over slices that become ranges.

use syn::{Expr, Ident, Pat, RangeLimits, Stmt, parse_quote_spanned, spanned::Spanned};

use crate::{
    problem::{Problem, Result},
    text::text,
};

/// What a loop runs over, as a range.
#[derive(Debug, Clone)]
pub struct Header {
    /// The variable that counts the iterations.
    pub index: Ident,
    /// The user's name for it, or what stands for it in messages.
    pub shown: String,
    /// The first value.
    pub start: Expr,
    /// The value after the last, or the last if inclusive.
    pub end: Expr,
    /// Whether the range includes its end.
    pub is_inclusive: bool,
    /// What iterators bind in each iteration, as statements.
    pub prologue: Vec<Stmt>,
    /// Whether the range is that of the user, and not the length of slices.
    pub is_range: bool,
}

enum Source {
    /// The bounds, and whether the second is included.
    Range(Box<(Expr, Expr)>, bool),
    /// The elements of a slice: by reference, by exclusive reference or by value.
    Elements {
        base: Box<Expr>,
        is_mut: bool,
        is_value: bool,
    },
    Zip(Box<Source>, Box<Source>),
    Enumerate(Box<Source>),
}

/// Reads `for pat in source`.
pub(crate) fn header(pat: &Pat, source: &Expr) -> Result<Header> {
    let parsed = read(source)?;
    if let Source::Range(bounds, is_inclusive) = &parsed {
        let (index, shown) = match strip(pat) {
            Pat::Ident(name) if name.by_ref.is_none() && name.mutability.is_none() => {
                (name.ident.clone(), name.ident.to_string())
            }
            Pat::Wild(wild) => (Ident::new("__index", wild.span()), "i".into()),
            other => {
                return Err(Problem::new(
                    other.span(),
                    format!("the loop's variable is `{}`, not a name", text(other)),
                ));
            }
        };
        let ((start, end), is_inclusive) = ((**bounds).clone(), *is_inclusive);
        return Ok(Header { index, shown, start, end, is_inclusive, prologue: Vec::new(), is_range: true });
    }
    let span = source.span();
    let mut index = Ident::new("__index", span);
    let mut shown = "i".to_owned();
    // `for (i, x) in xs.iter().enumerate()`: the user's own name counts.
    if let (Source::Enumerate(_), Pat::Tuple(tuple)) = (&parsed, strip(pat))
        && let Some(Pat::Ident(name)) = tuple.elems.first()
        && name.mutability.is_none()
    {
        (index, shown) = (name.ident.clone(), name.ident.to_string());
    }
    let mut prologue = Vec::new();
    let mut lengths = Vec::new();
    bind(pat, &parsed, &index, &mut prologue, &mut lengths)?;
    let mut lengths = lengths.into_iter();
    let Some(first) = lengths.next() else { return Err(Problem::new(span, "the loop has no length")) };
    let end = lengths
        .fold(first, |shortest, next| parse_quote_spanned!(span=> ::core::cmp::Ord::min(#shortest, #next)));
    let start = parse_quote_spanned!(span=> 0usize);
    Ok(Header { index, shown, start, end, is_inclusive: false, prologue, is_range: false })
}

fn strip(pat: &Pat) -> &Pat {
    match pat {
        Pat::Paren(inner) => strip(&inner.pat),
        Pat::Type(typed) => strip(&typed.pat),
        other => other,
    }
}

fn bind(
    pat: &Pat,
    source: &Source,
    index: &Ident,
    prologue: &mut Vec<Stmt>,
    lengths: &mut Vec<Expr>,
) -> Result<()> {
    let pat = strip(pat);
    match source {
        Source::Range(bounds, is_inclusive) => {
            let (start, end) = &**bounds;
            let span = start.span();
            if *is_inclusive {
                return Err(Problem::new(
                    span,
                    "an inclusive range in a `zip` is not supported: write `a..b + 1`",
                ));
            }
            lengths.push(parse_quote_spanned!(span=> ((#end) - (#start)) as usize));
            prologue.push(parse_quote_spanned!(span=> let #pat = (#start) + #index;));
        }
        Source::Elements { base, is_mut, is_value } => {
            let span = pat.span();
            lengths.push(parse_quote_spanned!(base.span()=> #base.len()));
            // `&x` binds the value behind the reference.
            let (pat, is_value) = match pat {
                Pat::Reference(reference) if !is_mut => (&*reference.pat, true),
                other => (other, *is_value),
            };
            prologue.push(match (is_mut, is_value) {
                (true, _) => parse_quote_spanned!(span=> let #pat = &mut #base[#index];),
                (false, true) => parse_quote_spanned!(span=> let #pat = #base[#index];),
                (false, false) => parse_quote_spanned!(span=> let #pat = &#base[#index];),
            });
        }
        Source::Zip(left, right) => match pat {
            Pat::Tuple(tuple) if tuple.elems.len() == 2 => {
                bind(&tuple.elems[0], left, index, prologue, lengths)?;
                bind(&tuple.elems[1], right, index, prologue, lengths)?;
            }
            other => {
                return Err(Problem::new(
                    other.span(),
                    "the pattern of a `zip` must be a pair, as in `(a, b)`",
                ));
            }
        },
        Source::Enumerate(inner) => match pat {
            Pat::Tuple(tuple) if tuple.elems.len() == 2 => {
                let (number, rest) = (&tuple.elems[0], &tuple.elems[1]);
                let is_index = matches!(number, Pat::Ident(name) if name.ident == *index);
                if !is_index && !matches!(number, Pat::Wild(_)) {
                    prologue.push(parse_quote_spanned!(number.span()=> let #number = #index;));
                }
                bind(rest, inner, index, prologue, lengths)?;
            }
            other => {
                return Err(Problem::new(
                    other.span(),
                    "the pattern of an `enumerate` must be a pair, as in `(i, x)`",
                ));
            }
        },
    }
    Ok(())
}

fn read(source: &Expr) -> Result<Source> {
    let refuse = |expr: &Expr, why: &str| {
        Err(Problem::new(expr.span(), format!("the loop runs over `{}`, {why}", text(expr))))
    };
    match source {
        Expr::Paren(inner) => read(&inner.expr),
        Expr::Group(inner) => read(&inner.expr),
        Expr::Range(range) => match (&range.start, &range.end) {
            (Some(start), Some(end)) => {
                let is_inclusive = matches!(range.limits, RangeLimits::Closed(_));
                Ok(Source::Range(Box::new(((**start).clone(), (**end).clone())), is_inclusive))
            }
            _ => refuse(source, "which has no end"),
        },
        Expr::Reference(reference) if is_path(&reference.expr) => Ok(Source::Elements {
            base: reference.expr.clone(),
            is_mut: reference.mutability.is_some(),
            is_value: false,
        }),
        Expr::Path(_) => {
            Ok(Source::Elements { base: Box::new(source.clone()), is_mut: false, is_value: false })
        }
        Expr::MethodCall(call) => {
            let method = call.method.to_string();
            match (method.as_str(), call.args.len()) {
                ("iter" | "iter_mut", 0) if is_path(&call.receiver) => Ok(Source::Elements {
                    base: call.receiver.clone(),
                    is_mut: method == "iter_mut",
                    is_value: false,
                }),
                ("into_iter", 0) => read(&call.receiver),
                ("copied" | "cloned", 0) => match read(&call.receiver)? {
                    Source::Elements { base, is_mut: false, .. } => {
                        Ok(Source::Elements { base, is_mut: false, is_value: true })
                    }
                    _ => refuse(source, "which copies something other than the elements of a slice"),
                },
                ("enumerate", 0) => Ok(Source::Enumerate(Box::new(read(&call.receiver)?))),
                ("zip", 1) => {
                    Ok(Source::Zip(Box::new(read(&call.receiver)?), Box::new(read(&call.args[0])?)))
                }
                ("rev", 0) => {
                    refuse(source, "whose order is reversed: iterations are numbered from the first")
                }
                _ => refuse(
                    source,
                    "and only ranges, `iter()`, `iter_mut()`, `enumerate()` and `zip()` can be split",
                ),
            }
        }
        other => {
            refuse(other, "and only ranges, `iter()`, `iter_mut()`, `enumerate()` and `zip()` can be split")
        }
    }
}

fn is_path(expr: &Expr) -> bool {
    match expr {
        Expr::Path(path) => path.path.get_ident().is_some(),
        Expr::Paren(inner) => is_path(&inner.expr),
        _ => false,
    }
}

/// Rewrites `source.map(|pat| value).collect()` as a loop that pushes. Returns the pattern, the source and the value.
pub(crate) fn collected(expr: &Expr) -> Option<(Pat, Expr, Expr)> {
    let Expr::MethodCall(collect) = expr else { return None };
    if collect.method != "collect" || !collect.args.is_empty() {
        return None;
    }
    let Expr::MethodCall(map) = &*collect.receiver else { return None };
    let (true, Some(Expr::Closure(closure))) = (map.method == "map" && map.args.len() == 1, map.args.first())
    else {
        return None;
    };
    if closure.inputs.len() != 1 {
        return None;
    }
    Some((closure.inputs[0].clone(), (*map.receiver).clone(), (*closure.body).clone()))
}
