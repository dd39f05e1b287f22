//! Whether the iterations of a loop are independent: who writes what, and who reads it.

use std::collections::BTreeMap;

use proc_macro2::{Span, TokenStream};
use syn::Block;

pub use crate::access::Op;
use crate::{
    access::{Access, Accesses, accesses},
    header::Header,
    poly::Poly,
    problem::{Problem, Result},
    text::tokens,
};

/// A slice of which every iteration has a row of its own: elements `width · i + base` and on.
#[derive(Debug, Clone)]
pub struct Rows {
    /// The variable.
    pub name: String,
    pub(crate) width: Poly,
    pub(crate) base: Poly,
    /// Where it is first used.
    pub span: Span,
}

impl Rows {
    /// The number of elements in a row, as Rust source of type `usize`.
    pub fn width_source(&self) -> TokenStream {
        tokens(&self.width.source(), self.span)
    }

    /// The first element of the row of iteration 0, as Rust source of type `usize`.
    pub fn base_source(&self) -> TokenStream {
        tokens(&self.base.source(), self.span)
    }

    /// The width, if it is a constant.
    pub fn constant_width(&self) -> Option<u64> {
        self.width.as_constant().and_then(|width| u64::try_from(width).ok())
    }
}

/// A variable into which all iterations are combined.
#[derive(Debug, Clone)]
pub struct Reduction {
    /// The variable.
    pub name: String,
    /// How.
    pub op: Op,
    /// Where it is first used.
    pub span: Span,
}

/// What the dependence test found in a loop whose iterations are independent.
#[derive(Debug, Clone)]
pub struct Independent {
    /// The slices that iterations write.
    pub writes: Vec<Rows>,
    /// The slices that iterations only read, each at a row of its own.
    pub reads: Vec<Rows>,
    /// The reductions.
    pub reductions: Vec<Reduction>,
    /// Ways out of the loop: it then runs on one thread.
    pub exits: Vec<Problem>,
}

/// Tests whether the iterations of a loop are independent.
pub fn depend(header: &Header, body: &Block) -> Result<Independent> {
    let index = header.index.to_string();
    let mut found = accesses(&index, body);
    let exits = std::mem::take(&mut found.exits);
    let reductions = reductions(&found, &header.shown)?;
    let mut slices: BTreeMap<&str, Vec<&Access>> = BTreeMap::new();
    for access in &found.elements {
        slices.entry(&access.name).or_default().push(access);
    }
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for (name, accesses) in slices {
        if accesses.iter().any(|access| access.is_write) {
            if let Some(reduction) = reductions.iter().find(|reduction| reduction.name == name) {
                return Err(Problem::new(
                    reduction.span,
                    format!("`{name}` is changed as a whole, and iterations write its elements too"),
                ));
            }
            writes.push(written_rows(name, &accesses, &index, &header.shown)?);
        } else if let Some(rows) = rows_of(name, &accesses, &index) {
            reads.push(rows);
        }
    }
    for (name, what, span) in &found.wholes {
        if writes.iter().any(|rows| rows.name == *name) {
            return Err(Problem::new(
                *span,
                format!("`{what}` uses all of `{name}`, of which other iterations write their elements"),
            ));
        }
    }
    if let Some((name, what, span)) = found.assigned.first() {
        let message = if what.starts_with("&mut") {
            format!("`{what}` lets every iteration change all of `{name}`")
        } else if what.contains(&format!("{name}.")) {
            format!("`{what}` changes `{name}` as a whole, which every iteration would do at once")
        } else {
            format!(
                "iteration `{0}` assigns to `{name}`, which is declared outside of the loop: only `+=`, `-=`, `*=`, `&=`, `|=`, `^=`, `min`, `max` and `push` can be combined",
                header.shown
            )
        };
        return Err(Problem::new(*span, message));
    }
    Ok(Independent { writes, reads, reductions, exits })
}

fn reductions(found: &Accesses, shown: &str) -> Result<Vec<Reduction>> {
    let mut reductions: Vec<Reduction> = Vec::new();
    for (name, op, span) in &found.reductions {
        match reductions.iter().find(|known| known.name == *name) {
            Some(known) if known.op != *op => {
                return Err(Problem::new(
                    *span,
                    format!("`{name}` is combined in two ways, whose order matters"),
                ));
            }
            Some(_) => {}
            None => reductions.push(Reduction { name: name.clone(), op: *op, span: *span }),
        }
    }
    for reduction in &reductions {
        let name = &reduction.name;
        let is_read = |(used, ..): &&(String, String, Span)| used == name;
        if let Some((_, what, span)) = found.wholes.iter().find(is_read) {
            return Err(Problem::new(
                *span,
                format!("iteration `{shown}` reads `{what}`, which all iterations before it change"),
            ));
        }
        if let Some((_, what, span)) = found.assigned.iter().find(is_read) {
            return Err(Problem::new(
                *span,
                format!("`{what}` changes `{name}`, into which iterations are combined"),
            ));
        }
        if let Some(access) = found.elements.iter().find(|access| access.name == *name) {
            return Err(Problem::new(
                access.span,
                format!(
                    "iteration `{shown}` reads `{name}[{}]`, and all iterations before it change `{name}`",
                    access.index_text
                ),
            ));
        }
    }
    Ok(reductions)
}

/// The row that all accesses are within, if there is one.
fn rows_of(name: &str, accesses: &[&Access], index: &str) -> Option<Rows> {
    let mut rows: Option<(Poly, Vec<(Poly, Poly)>)> = None;
    for access in accesses {
        let (low, high) = access.bounds.as_ref()?;
        let ((width, low), (same, high)) = (low.split(index)?, high.split(index)?);
        let is_invariant = |poly: &Poly| poly.names().all(|name| !name.contains('#'));
        if width != same || width == Poly::default() || ![&width, &low, &high].into_iter().all(is_invariant) {
            return None;
        }
        match &mut rows {
            None => rows = Some((width, vec![(low, high)])),
            Some((known, offsets)) if *known == width => offsets.push((low, high)),
            Some(_) => return None,
        }
    }
    let (width, offsets) = rows?;
    if !width.is_positive() {
        return None;
    }
    let (first, _) = offsets.first()?;
    // The row begins at the smallest offset, of those that differ by constants; at zero if that is the smallest possible.
    let mut base = first.clone();
    for (low, _) in &offsets {
        if low.sub(&base).as_constant()? < 0 {
            base = low.clone();
        }
    }
    if let (Some(smallest), Some(width)) = (base.as_constant(), width.as_constant())
        && smallest >= 0
        && smallest < width
        && offsets.iter().all(|(_, high)| high.as_constant().is_some_and(|high| high < width))
    {
        base = Poly::default();
    }
    let is_within = |(_, high): &(Poly, Poly)| {
        width.sub(&Poly::constant(1)).sub(&high.sub(&base)).as_constant().is_some_and(|room| room >= 0)
    };
    let span = accesses.first()?.span;
    offsets.iter().all(is_within).then(|| Rows { name: name.to_owned(), width, base, span })
}

/// The row of a slice that iterations write, or why there is none.
fn written_rows(name: &str, accesses: &[&Access], index: &str, shown: &str) -> Result<Rows> {
    if let Some(rows) = rows_of(name, accesses, index) {
        return Ok(rows);
    }
    let writes: Vec<&Access> = accesses.iter().copied().filter(|access| access.is_write).collect();
    let Some(rows) = rows_of(name, &writes, index) else {
        return Err(refuse_writes(name, &writes, index, shown));
    };
    // The writes are disjoint: a read reaches into another iteration's row.
    for read in accesses.iter().filter(|access| !access.is_write) {
        let mut with_read = writes.clone();
        with_read.push(read);
        if rows_of(name, &with_read, index).is_some() {
            continue;
        }
        let what = format!("iteration `{shown}` reads `{name}[{}]`", read.index_text);
        let distance = read.index.as_ref().and_then(|poly| {
            let (width, offset) = poly.split(index)?;
            let distance = offset.sub(&rows.base).as_constant()?;
            let row = rows.width.as_constant()?;
            (width == rows.width).then(|| distance.div_euclid(row))
        });
        let message = match distance {
            Some(0) | None => format!("{what}, which another iteration may write"),
            Some(steps) if steps < 0 => format!("{what}, which iteration `{shown} - {}` writes", -steps),
            Some(steps) => format!("{what}, which iteration `{shown} + {steps}` writes"),
        };
        return Err(Problem::new(read.span, message));
    }
    Err(refuse_writes(name, &writes, index, shown))
}

fn refuse_writes(name: &str, writes: &[&Access], index: &str, shown: &str) -> Problem {
    for write in writes {
        if rows_of(name, &[write], index).is_some() {
            continue;
        }
        let target = format!("`{name}[{}]`", write.index_text);
        let coefficient = write.index.as_ref().and_then(|poly| poly.split(index)).map(|(width, _)| width);
        let message = match (&write.index, coefficient) {
            (Some(_), Some(width)) if width == Poly::default() => {
                let depends =
                    write.index.as_ref().is_some_and(|poly| poly.names().any(|name| name.contains('#')));
                match depends {
                    true => format!(
                        "two iterations may write {target}: its index is data, not of the form `c * {shown} + k`"
                    ),
                    false => format!("every iteration writes {target}"),
                }
            }
            (Some(_), Some(_)) => format!(
                "two iterations may write {target}: the row of iteration `{shown}` may reach into that of `{shown} + 1`"
            ),
            _ => format!("two iterations may write {target}: its index is not of the form `c * {shown} + k`"),
        };
        return Problem::new(write.span, message);
    }
    let (first, last) = (writes[0], writes[writes.len() - 1]);
    Problem::new(
        last.span,
        format!(
            "iteration `{shown}` writes `{name}[{}]` and `{name}[{}]`, of which one is also written by another iteration",
            first.index_text, last.index_text
        ),
    )
}
