//! `evener explain`: every loop of a file, whether it could be split, and where it could run.

use syn::{ExprForLoop, ImplItem, Item, ItemFn, spanned::Spanned};

use crate::{
    emit::{Language, Source},
    items::Items,
    problem::Problem,
    split::{Context, split, visit_loops},
    text::text,
};

/// What can be done with one loop of a file.
#[derive(Debug, Clone)]
pub struct Explained {
    /// The line of the loop, from 1 on.
    pub line: usize,
    /// The function that it is in.
    pub function: String,
    /// The loop's first line.
    pub header: String,
    /// What stands in the way of splitting it: the line, the column and a sentence.
    pub refused: Option<(usize, usize, String)>,
    /// What keeps it from running on other devices than the processor.
    pub processor_only: Option<(usize, usize, String)>,
    /// What keeps it from WGSL or CUDA C alone.
    pub without: Vec<(Language, String)>,
    /// The kernels of a release build.
    pub sources: Vec<(Language, Source)>,
}

/// Reads a file. Fails with the line, the column and a sentence if it is not Rust.
pub fn explain(source: &str) -> Result<Vec<Explained>, (usize, usize, String)> {
    let file = syn::parse_file(source).map_err(|error| {
        let start = error.span().start();
        (start.line, start.column + 1, error.to_string())
    })?;
    let mut found = Vec::new();
    visit_items(&file.items, &mut found);
    Ok(found)
}

fn visit_items(items: &[Item], found: &mut Vec<Explained>) {
    let visible = Items::of(items);
    for item in items {
        match item {
            Item::Fn(function) => explain_function(function, &visible, found),
            Item::Mod(module) => {
                if let Some((_, items)) = &module.content {
                    visit_items(items, found);
                }
            }
            Item::Impl(block) => {
                for item in &block.items {
                    let ImplItem::Fn(method) = item else { continue };
                    let function = ItemFn {
                        attrs: method.attrs.clone(),
                        vis: method.vis.clone(),
                        sig: method.sig.clone(),
                        block: Box::new(method.block.clone()),
                    };
                    explain_function(&function, &visible, found);
                }
            }
            _ => {}
        }
    }
}

fn place(problem: &Problem) -> (usize, usize, String) {
    let start = problem.span.start();
    (start.line, start.column + 1, problem.message.clone())
}

fn explain_function(function: &ItemFn, items: &Items, found: &mut Vec<Explained>) {
    let context = Context::of(function, items, false);
    let name = function.sig.ident.to_string();
    visit_loops(&function.block, &mut |source: &ExprForLoop| {
        let header = format!("for {} in {}", text(&source.pat), text(&source.expr));
        let line = source.for_token.span().start().line;
        let mut explained = Explained {
            line,
            function: name.clone(),
            header,
            refused: None,
            processor_only: None,
            without: Vec::new(),
            sources: Vec::new(),
        };
        let is_split = match split(&name, source, &context) {
            Err(problem) => {
                explained.refused = Some(place(&problem));
                false
            }
            Ok(found) => {
                match found.devices {
                    Err(problem) => explained.processor_only = Some(place(&problem)),
                    Ok((_, kernels)) => {
                        for (language, sources) in
                            [(Language::Wgsl, kernels.wgsl), (Language::Cuda, kernels.cuda)]
                        {
                            match sources {
                                Ok([_, release]) => explained.sources.push((language, release)),
                                Err(problem) => explained.without.push((language, problem.message)),
                            }
                        }
                    }
                }
                true
            }
        };
        found.push(explained);
        // Loops inside of one that cannot be split may be split by themselves.
        is_split
    });
}
