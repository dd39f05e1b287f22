//! Rewrites a function: its loops run on a pool.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{format_ident, quote, quote_spanned};
use syn::{
    Block, Expr, ExprForLoop, FnArg, Ident, ItemFn, Pat, Stmt, Type, parse_quote,
    spanned::Spanned,
    visit_mut::{self, VisitMut},
};

use super::{FieldSource, Kernels};
use crate::{
    access::{compound, is_assigning, name_of, take_if},
    depend::{Op, Reduction},
    ir::{Body, Role, Ty},
    items::Items,
    problem::Problem,
    split::{Context, SplitLoop, collect_loop, has_inner_loop, split},
};

/// What the attribute says.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `fast`: the device's own functions, fused operations and sums in any order.
    pub is_fast: bool,
    /// `gpu`: what keeps a loop from GPUs is an error.
    pub needs_gpu: bool,
    /// `cpu`: the processor only.
    pub is_cpu: bool,
    /// `min = N`: fewer iterations run on the calling thread.
    pub min: Option<u64>,
    /// `devices = "…"`: as `EVENER_DEVICES`.
    pub devices: Option<String>,
}

/// A rewritten function, or the problems that keep it from being rewritten.
pub fn expand(function: &ItemFn, items: &Items, options: &Options) -> Result<TokenStream, Vec<Problem>> {
    let mut rewritten = function.clone();
    let mut expand = Expand {
        context: Context::of(function, items, options.is_fast),
        options,
        name: function.sig.ident.to_string(),
        by_reference: references(function),
        loops: 0,
        problems: Vec::new(),
        notes: Vec::new(),
    };
    expand.block(&mut rewritten.block);
    if expand.loops == 0 && expand.problems.is_empty() {
        let message = "this function has no loop that can be split: `#[parallel]` looks for `for` loops and `.map(…).collect()`";
        expand.problems.push(Problem::new(function.sig.ident.span(), message));
    }
    if !expand.problems.is_empty() {
        return Err(expand.problems);
    }
    let notes = expand.notes.iter().enumerate().map(|(number, (problem, is_plain))| {
        let name = Ident::new(&format!("parallel_note_{number}"), problem.span);
        let place = if *is_plain { "on one thread, as it was written" } else { "on the processor only" };
        let text = format!(
            "this loop runs {place}: {}. `#[parallel(cpu)]` says that this is meant.",
            problem.message
        );
        quote_spanned! {problem.span=> {
            #[deprecated(note = #text)]
            #[allow(non_upper_case_globals)]
            const #name: () = ();
            let _ = #name;
        }}
    });
    let notes: TokenStream = notes.collect();
    if !notes.is_empty() {
        rewritten
            .block
            .stmts
            .insert(0, parse_quote!(const _: () = { #[allow(dead_code)] fn notes() { #notes } };));
    }
    // The loops are blocks within blocks now, of which the user knows nothing.
    rewritten.attrs.push(parse_quote!(#[allow(unused_braces)]));
    let module = module(function);
    Ok(own_names(quote!(#rewritten #module)))
}

/// Gives the names that the attribute makes one place in the source: they then mean the same inside of other macros.
fn own_names(tokens: TokenStream) -> TokenStream {
    let tokens = tokens.into_iter().map(|token| match token {
        TokenTree::Group(group) => {
            let mut inner = Group::new(group.delimiter(), own_names(group.stream()));
            inner.set_span(group.span());
            TokenTree::Group(inner)
        }
        TokenTree::Ident(mut ident) if ident.to_string().starts_with("__") => {
            ident.set_span(Span::call_site());
            TokenTree::Ident(ident)
        }
        other => other,
    });
    tokens.collect()
}

/// Parameters that are references to numbers: `*total += x`.
fn references(function: &ItemFn) -> Vec<String> {
    let inputs = function.sig.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(typed) => match (&*typed.pat, &*typed.ty) {
            (Pat::Ident(name), Type::Reference(_)) => Some(name.ident.to_string()),
            _ => None,
        },
        FnArg::Receiver(_) => None,
    });
    inputs.collect()
}

/// `name::on(&pool).run(…)`.
fn module(function: &ItemFn) -> TokenStream {
    let signature = &function.sig;
    if signature.receiver().is_some() {
        return TokenStream::new();
    }
    let (visibility, name, generics, output) =
        (&function.vis, &signature.ident, &signature.generics, &signature.output);
    let (mut inputs, mut arguments) = (Vec::new(), Vec::new());
    for (number, input) in signature.inputs.iter().enumerate() {
        let FnArg::Typed(typed) = input else { continue };
        let (argument, ty) = (format_ident!("argument_{number}"), &typed.ty);
        inputs.push(quote!(#argument: #ty));
        arguments.push(argument);
    }
    let value: Type = match output {
        syn::ReturnType::Default => parse_quote!(()),
        syn::ReturnType::Type(_, ty) => (**ty).clone(),
    };
    let clause = &generics.where_clause;
    // The visibility of the module must reach one level further than that of the function.
    let doc = format!("`{name}::on(&pool).run(…)` runs [`{name}`](fn@{name}) on a pool, with its report.");
    quote! {
        #[doc = #doc]
        #[allow(unused_imports, dead_code, clippy::too_many_arguments)]
        #visibility mod #name {
            use super::*;
            /// The function on a pool.
            pub fn on(pool: &::evener::Pool) -> On<'_> {
                On(::evener::parallel::On::new(pool))
            }
            /// The function on a pool: call `run` with its arguments.
            pub struct On<'pool>(::evener::parallel::On<'pool>);
            impl On<'_> {
                /// Runs the function on the pool. The report is in the result.
                pub fn run #generics (self, #(#inputs),*) -> ::evener::parallel::Run<#value> #clause {
                    self.0.run(move || super::#name(#(#arguments),*))
                }
            }
        }
    }
}

struct Expand<'a> {
    context: Context<'a>,
    options: &'a Options,
    name: String,
    by_reference: Vec<String>,
    loops: usize,
    problems: Vec<Problem>,
    /// What keeps loops from devices, and whether they run as they were written.
    notes: Vec<(Problem, bool)>,
}

impl Expand<'_> {
    fn block(&mut self, block: &mut Block) {
        for stmt in &mut block.stmts {
            match stmt {
                Stmt::Expr(expr, _) => self.expr(expr),
                Stmt::Local(local) => {
                    if let Some(init) = &mut local.init {
                        self.expr(&mut init.expr);
                    }
                }
                _ => {}
            }
        }
    }

    fn expr(&mut self, expr: &mut Expr) {
        match expr {
            Expr::ForLoop(source) if source.label.is_none() => match self.for_loop(source) {
                Some(tokens) => *expr = Expr::Verbatim(tokens),
                None => {
                    let mut body = source.body.clone();
                    self.block(&mut body);
                    source.body = body;
                }
            },
            Expr::While(inner) => self.block(&mut inner.body),
            Expr::Loop(inner) => self.block(&mut inner.body),
            Expr::Block(inner) => self.block(&mut inner.block),
            Expr::Unsafe(inner) => self.block(&mut inner.block),
            Expr::If(branch) => {
                self.block(&mut branch.then_branch);
                if let Some((_, other)) = &mut branch.else_branch {
                    self.expr(other);
                }
            }
            other => {
                let Some((source, vec)) = collect_loop(other) else { return };
                if let Some(tokens) = self.for_loop(&source) {
                    let span = other.span();
                    let into: TokenStream = match other {
                        Expr::MethodCall(call) => {
                            let turbofish = &call.turbofish;
                            quote_spanned!(span=> #vec.into_iter().collect #turbofish ())
                        }
                        _ => quote!(#vec),
                    };
                    *other = Expr::Verbatim(
                        quote_spanned!(span=> { let mut #vec = ::std::vec::Vec::new(); #tokens #into }),
                    );
                }
            }
        }
    }

    /// The code of a loop that is split; `None` if the loop stays as it is, and loops inside of it may be split.
    fn for_loop(&mut self, source: &ExprForLoop) -> Option<TokenStream> {
        let name = match self.loops {
            0 => self.name.clone(),
            number => format!("{}_{}", self.name, number + 1),
        };
        let found = match split(&name, source, &self.context) {
            Ok(found) => found,
            Err(problem) => {
                // Loops inside of it may still be split: a loop over time steps, for example.
                let (before, problems) = (self.loops, self.problems.len());
                if has_inner_loop(source) {
                    let mut body = source.body.clone();
                    let notes = self.notes.len();
                    self.block(&mut body);
                    let is_split = self.loops > before && self.problems.len() == problems;
                    self.problems.truncate(problems);
                    self.notes.truncate(notes);
                    self.loops = before;
                    if is_split {
                        return None;
                    }
                }
                self.problems.push(problem);
                return None;
            }
        };
        self.loops += 1;
        let note = match &found.devices {
            Err(problem) => Some(problem.clone()),
            Ok((_, kernels)) if self.options.needs_gpu => kernels.wgsl.as_ref().err().cloned(),
            Ok(_) => None,
        };
        if let Some(note) = &note {
            if self.options.needs_gpu {
                let message = format!("this loop does not run on every GPU: {}", note.message);
                self.problems.push(Problem::new(note.span, message));
            } else if !self.options.is_cpu {
                self.notes.push((note.clone(), !found.independent.exits.is_empty()));
            }
        }
        Some(self.code(&name, source, &found))
    }

    fn code(&self, name: &str, source: &ExprForLoop, found: &SplitLoop) -> TokenStream {
        let SplitLoop { header, body, independent, devices } = found;
        let (index, start, end) = (&header.index, &header.start, &header.end);
        let span = source.for_token.span;
        let private = quote!(::evener::parallel::__private);
        let space = match header.is_inclusive {
            true => quote_spanned!(span=> #private::Space::inclusive(#start, #end)),
            false => quote_spanned!(span=> #private::Space::new(#start, #end)),
        };
        let stmts = &body.stmts;
        let plain = quote_spanned!(span=> for #index in __space.range(__part) { #(#stmts)* });
        // The loop as it was written.
        let whole = quote_spanned!(span=> { #source });
        if !independent.exits.is_empty() {
            return quote_spanned!(span=> #source);
        }
        let rows: Vec<(Ident, TokenStream, TokenStream)> = independent
            .writes
            .iter()
            .map(|rows| (Ident::new(&rows.name, rows.span), rows.width_source(), rows.base_source()))
            .collect();
        let names: Vec<&Ident> = rows.iter().map(|(name, ..)| name).collect();
        let make_rows = rows.iter().map(|(name, width, base)| {
            quote_spanned!(span=> #private::Rows::new(&mut #name[..], #width, __space.element(#width, #base)),)
        });
        let reduced: Vec<(Ident, &Reduction)> =
            independent.reductions.iter().map(|it| (Ident::new(&it.name, it.span), it)).collect();
        let accumulators = reduced.iter().map(|(name, it)| {
            let fast = self.options.is_fast;
            match it.op {
                Op::Add => quote_spanned!(span=> let mut #name = #private::Sum::like(&#name, #fast);),
                _ => quote_spanned!(span=> let mut #name = #private::Terms::new();),
            }
        });
        let mut part_body = body.clone();
        Reduce { reductions: &independent.reductions, is_slot: false, span }.visit_block_mut(&mut part_body);
        let part_stmts = &part_body.stmts;
        let reduced_names: Vec<&Ident> = reduced.iter().map(|(name, _)| name).collect();
        let folded: Vec<Ident> =
            reduced_names.iter().map(|name| format_ident!("__folded_{}", name)).collect();
        let folds = reduced.iter().zip(&folded).map(|((name, it), folded)| {
            let place = self.place(name);
            let apply = apply(it.op, &place, name, span);
            match it.op {
                Op::Add => quote_spanned!(span=> if !#folded.combine(&mut #place, |__sum, __term| *__sum += __term) { #plain continue; }),
                _ => quote_spanned!(span=> for __term in #folded.into_values() { #apply }),
            }
        });
        let min = self.options.min.map_or(quote!(None), |min| quote!(Some(#min as usize)));
        let chosen = self.options.devices.as_ref().map_or(quote!(None), |devices| quote!(Some(#devices)));
        let is_cpu = self.options.is_cpu;
        let note = match devices {
            Err(problem) => problem.message.clone(),
            Ok(_) => String::new(),
        };
        let device_plan = match devices {
            Ok((typed, kernels)) if !is_cpu => self.device_code(found, typed, kernels, &plain, span),
            _ => quote!({
                let _ = __devices;
            }),
        };
        let has_kernel = devices.is_ok() && !is_cpu;
        quote_spanned! {span=> {
            #[allow(unused_mut, unused_variables, unused_parens, clippy::all)]
            {
                static __LOOP: #private::Loop = #private::Loop::new(#name, #min, #chosen, #has_kernel, #note);
                let __space = #space;
                match __LOOP.plan(__space.count()) {
                    #private::Plan::Plain(__timer) => { #whole __timer.finish(); }
                    #private::Plan::Threads(__threads) => {
                        let __parts = __threads.run(__space.count(), (#(#make_rows)*), |__part: ::core::ops::Range<usize>, __rows| {
                            let (#(mut #names,)*) = __rows;
                            #(#accumulators)*
                            for #index in __space.range(__part) { #(#part_stmts)* }
                            (#(#reduced_names,)*)
                        });
                        for (__part, (#(#folded,)*)) in __parts.done { #(#folds)* }
                        #private::resume(__parts.panic);
                    }
                    #private::Plan::Devices(__devices) => #device_plan
                }
            };
        }}
    }

    /// The variable itself, behind a reference if it is one.
    fn place(&self, name: &Ident) -> TokenStream {
        let is_reference = self.by_reference.iter().any(|it| name == it);
        if is_reference { quote!(*#name) } else { quote!(#name) }
    }

    fn device_code(
        &self,
        found: &SplitLoop,
        typed: &Body,
        kernels: &Kernels,
        plain: &TokenStream,
        span: Span,
    ) -> TokenStream {
        let private = quote!(::evener::parallel::__private);
        let independent = &found.independent;
        let ident = |number: usize| Ident::new(&typed.slices[number].name, span);
        let ty = |ty: &Ty| -> TokenStream { ty.rust().parse().unwrap_or_default() };
        let rows = |number: usize| {
            let rows = super::rows(independent, &typed.slices[number].name);
            match rows {
                Some(rows) => (rows.width_source(), rows.base_source()),
                None => (quote!(1usize), quote!(0usize)),
            }
        };
        let layout = &kernels.layout;
        // Every slice by row must have all rows: otherwise an iteration fails, which the processor does as Rust does.
        let (mut covers, mut widths, mut declares, mut lends, mut before, mut tables) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for number in &layout.inputs {
            let (name, element, (width, base)) =
                (ident(*number), ty(&typed.slices[*number].ty), rows(*number));
            covers.push(quote!(#private::covers(#name.len(), #width, __space.element(#width, #base), __space.count())));
            let place = widths.len();
            widths.push(width.clone());
            declares.push(quote!(let __task = __task.input_rows::<#element>(__widths[#place]);));
            if typed.slices[*number].role == Role::InOut {
                let old = format_ident!("__old_{}", name);
                before.push(quote!(let #old: ::std::vec::Vec<#element> = #private::rows(&#name[..], #width, __space.element(#width, #base), __space.count()).to_vec();));
                lends.push(quote!(let __arrays = __arrays.input(&#old[..]);));
            } else {
                lends.push(quote!(let __arrays = __arrays.input::<#element>(#private::rows(&#name[..], #width, __space.element(#width, #base), __space.count()));));
            }
        }
        for number in &layout.tables {
            let (name, element) = (ident(*number), ty(&typed.slices[*number].ty));
            let text = name.to_string();
            covers.push(quote!(!#name.is_empty()));
            declares.push(
                quote!(let __task = __task.table::<#element>(#text, ::std::vec::Vec::<#element>::new());),
            );
            tables.push(quote!(let __task = __task.table::<#element>(#text, #name[..].to_vec());));
        }
        for number in &layout.outputs {
            let (name, element, (width, base)) =
                (ident(*number), ty(&typed.slices[*number].ty), rows(*number));
            covers.push(quote!(#private::covers(#name.len(), #width, __space.element(#width, #base), __space.count())));
            let place = widths.len();
            widths.push(width.clone());
            declares.push(quote!(let __task = __task.output_rows::<#element>(__widths[#place]);));
            lends.push(quote!(let __arrays = __arrays.output::<#element>(#private::rows_mut(&mut #name[..], #width, __space.element(#width, #base), __space.count()));));
        }
        for term in &typed.terms {
            let (terms, element) = (format_ident!("__terms_{}", term.name), ty(&term.ty));
            before.push(quote!(let mut #terms = #private::zeroed::<#element>(__space.count());));
            declares.push(quote!(let __task = __task.output::<#element>();));
            lends.push(quote!(let __arrays = __arrays.output(&mut #terms[..]);));
        }
        if kernels.has_status {
            before.push(quote!(let mut __status = #private::zeroed::<u32>(__space.count());));
            declares.push(quote!(let __task = __task.output::<u32>();));
            lends.push(quote!(let __arrays = __arrays.output(&mut __status[..]);));
        }
        let fields = layout.fields.iter().map(|field| match &field.source {
            FieldSource::Start => {
                let ty = ty(&field.ty);
                quote!(__params.push::<#ty>(__space.start());)
            }
            FieldSource::Len(number) => {
                let name = ident(*number);
                quote!(__params.push::<usize>(#name.len());)
            }
            FieldSource::Width(number) => {
                let (width, _) = rows(*number);
                quote!(__params.push::<usize>(#width);)
            }
            FieldSource::Base(number) => {
                let (_, base) = rows(*number);
                quote!(__params.push::<usize>(#base);)
            }
            FieldSource::Scalar(number) => {
                let scalar = &typed.scalars[*number];
                let (value, ty) = (crate::text::tokens(&scalar.name, span), ty(&scalar.ty));
                let value = self.place_of(&scalar.name, value);
                quote!(__params.push::<#ty>(#value);)
            }
        });
        let fields: Vec<TokenStream> = fields.collect();
        let rust = self.rust_body(found, typed, kernels, span);
        let sources = |list: &crate::problem::Result<[super::Source; 2]>| match list {
            Ok([checked, wrapping]) => {
                let (a, b, int64, float64) =
                    (&checked.text, &wrapping.text, checked.needs.int64, checked.needs.float64);
                let (int64, float64) = (int64 || wrapping.needs.int64, float64 || wrapping.needs.float64);
                quote!(Some((if cfg!(debug_assertions) { #a } else { #b }, #int64, #float64)))
            }
            Err(_) => quote!(None),
        };
        let (wgsl, cuda) = (sources(&kernels.wgsl), sources(&kernels.cuda));
        let entry = super::print::Printer::safe(&typed.name);
        let restores = layout.outputs.iter().filter(|number| typed.slices[**number].role == Role::InOut).map(|number| {
            let (name, (width, base)) = (ident(*number), rows(*number));
            let old = format_ident!("__old_{}", name);
            quote!(#private::restore(&mut #name[..], &#old, #width, __space.element(#width, #base), __part.clone());)
        });
        let restores: Vec<TokenStream> = restores.collect();
        let failed = if kernels.has_status { quote!(__status[__item] & 1 != 0) } else { quote!(false) };
        let folds = typed.terms.iter().enumerate().map(|(number, term)| {
            let name = Ident::new(&term.name, span);
            let terms = format_ident!("__terms_{}", term.name);
            let op =
                independent.reductions.iter().find(|it| it.name == term.name).map_or(Op::Push, |it| it.op);
            let place = self.place(&name);
            let apply = apply(op, &place, &name, span);
            let bit = 2u32 << number;
            let is_there = if term.is_optional { quote!(__status[__item] & #bit != 0) } else { quote!(true) };
            quote!(if #is_there { let __term = #terms[__item]; #apply })
        });
        let folds: Vec<TokenStream> = folds.collect();
        let finish = match (kernels.has_status, folds.is_empty()) {
            (false, true) => quote!(),
            // Iterations that a device could not do are done again in order, with the reductions up to them.
            _ => quote! {
                for __item in 0..__space.count() {
                    if #failed {
                        let __part = __item..__item + 1;
                        #(#restores)*
                        #plain
                    } else {
                        #(#folds)*
                    }
                }
            },
        };
        // Without a status the loop above is only for the reductions.
        quote_spanned! {span=> {
            #rust
            if __space.fits() && true #(&& #covers)* {
                let __widths = [#(#widths),*];
                let __task = __devices.task(&__widths, || {
                    let __kernel = #private::kernel(#entry, #wgsl, #cuda, __rust);
                    let __task = #private::KernelTask::arrays(&__kernel);
                    #(#declares)*
                    __task.parameters(#private::Params::default())
                });
                #(#tables)*
                let mut __params = #private::Params::default();
                #(#fields)*
                #(#before)*
                let __arrays = #private::Arrays::new();
                #(#lends)*
                let __is_done = __devices.run(&__task, __params, __arrays);
                if __is_done {
                    #finish
                } else {
                    let __part = 0..__space.count();
                    #(#restores)*
                    #plain
                }
            } else {
                let __part = 0..__space.count();
                #plain
            }
        }}
    }

    /// A scalar's value, behind a reference if it is one.
    fn place_of(&self, name: &str, value: TokenStream) -> TokenStream {
        if self.by_reference.iter().any(|it| it == name) { quote!(*#value) } else { value }
    }

    /// The kernel's body for the processor, where it shares a run with other devices.
    fn rust_body(&self, found: &SplitLoop, typed: &Body, kernels: &Kernels, span: Span) -> TokenStream {
        let private = quote!(::evener::parallel::__private);
        let layout = &kernels.layout;
        let ty = |ty: &Ty| -> TokenStream { ty.rust().parse().unwrap_or_default() };
        let index_ty = ty(&typed.locals[0].ty);
        let mut lines: Vec<TokenStream> = Vec::new();
        let mut rows_values: Vec<TokenStream> = vec![quote!((1usize, 0usize)); typed.slices.len()];
        let mut lens: Vec<Ident> = Vec::new();
        for (number, (slice, value)) in typed.slices.iter().zip(&mut rows_values).enumerate() {
            lens.push(format_ident!("__len_{}", number));
            if let Some(rows) = super::rows(&found.independent, &slice.name)
                && let (Some(width), Some(base)) = (rows.constant_width(), rows.base.as_constant())
            {
                *value = quote!((#width as usize, #base as isize as usize));
            }
        }
        let (mut widths, mut bases) = (vec![None; typed.slices.len()], vec![None; typed.slices.len()]);
        for field in &layout.fields {
            match &field.source {
                FieldSource::Start => lines.push(quote!(let __start = __params.take::<#index_ty>();)),
                FieldSource::Len(number) => {
                    let len = &lens[*number];
                    lines.push(quote!(let #len = __params.take::<usize>();));
                }
                FieldSource::Width(number) => {
                    let name = format_ident!("__width_{}", number);
                    lines.push(quote!(let #name = __params.take::<usize>();));
                    widths[*number] = Some(name);
                }
                FieldSource::Base(number) => {
                    let name = format_ident!("__base_{}", number);
                    lines.push(quote!(let #name = __params.take::<usize>();));
                    bases[*number] = Some(name);
                }
                FieldSource::Scalar(number) => {
                    let scalar = &typed.scalars[*number];
                    let ty = ty(&scalar.ty);
                    let is_constant =
                        scalar.name.contains(':') || scalar.name.chars().all(|c| !c.is_lowercase());
                    if is_constant {
                        lines.push(quote!(let _ = __params.take::<#ty>();));
                    } else {
                        let name = Ident::new(&scalar.name, span);
                        // The body has `*name` where the function has a reference.
                        match self.by_reference.contains(&scalar.name) {
                            true => lines.push(quote!(let #name = &__params.take::<#ty>();)),
                            false => lines.push(quote!(let #name = __params.take::<#ty>();)),
                        }
                    }
                }
            }
        }
        lines.push(quote!(let __space = __params.space(__start);));
        let rows_of = |number: usize| match (&widths[number], &bases[number]) {
            (Some(width), Some(base)) => quote!((#width, #base)),
            _ => rows_values[number].clone(),
        };
        let mut buffer = 0usize;
        for number in &layout.inputs {
            let slice = &typed.slices[*number];
            let (name, element, len, rows) =
                (Ident::new(&slice.name, span), ty(&slice.ty), &lens[*number], rows_of(*number));
            if slice.role == Role::InOut {
                let old = format_ident!("__old_{}", name);
                lines.push(quote!(let #old = __launch.read::<#element>(#buffer)?;));
            } else {
                lines.push(quote!(let (__width, __base) = #rows; let #name = &#private::ReadRows::new(__launch.read::<#element>(#buffer)?, __space.element(__width, __base), #len);));
            }
            buffer += 1;
        }
        for number in &layout.tables {
            let slice = &typed.slices[*number];
            let (name, element, len) = (Ident::new(&slice.name, span), ty(&slice.ty), &lens[*number]);
            let is_constant = slice.name.chars().all(|c| !c.is_lowercase());
            if is_constant {
                lines.push(quote!(let _ = #len;));
            } else {
                lines.push(quote!(let #name = &__launch.read::<#element>(#buffer)?[..#len];));
            }
            buffer += 1;
        }
        for number in &layout.outputs {
            let slice = &typed.slices[*number];
            let (name, element, len, rows) =
                (Ident::new(&slice.name, span), ty(&slice.ty), &lens[*number], rows_of(*number));
            lines.push(quote!(let (__width, __base) = #rows; let __out = &mut __launch.write::<#element>(#buffer)?[..__width * __space.count()];));
            if slice.role == Role::InOut {
                let old = format_ident!("__old_{}", name);
                lines.push(quote!(__out.copy_from_slice(&#old[..__out.len()]);));
            }
            lines.push(quote!(let #name = &mut #private::Rows::part(__out, __width, __space.element(__width, __base), #len);));
            buffer += 1;
        }
        let mut slots = Vec::new();
        for (number, term) in typed.terms.iter().enumerate() {
            let (name, element) = (Ident::new(&term.name, span), ty(&term.ty));
            let bit = 2u32 << number;
            lines.push(quote!(let mut #name = #private::Slot::<#element>::new(__launch.write::<#element>(#buffer)?, #bit);));
            slots.push(name);
            buffer += 1;
        }
        let status =
            if kernels.has_status { quote!(__launch.write::<u32>(#buffer)?) } else { quote!(&mut []) };
        let mut body = found.body.clone();
        Reduce { reductions: &found.independent.reductions, is_slot: true, span }.visit_block_mut(&mut body);
        let (index, stmts) = (&found.header.index, &body.stmts);
        quote_spanned! {span=>
            fn __rust(__launch: &mut #private::Launch<'_>) -> ::core::result::Result<(), #private::BoxError> {
                let mut __params = __launch.params::<#private::Params>()?;
                #(#lines)*
                let __status: &mut [u32] = #status;
                #private::each(__space.count(), __status, |__item, __present: &mut u32| {
                    #(#slots.begin(__item);)*
                    for #index in __space.range(__item..__item + 1) { #(#stmts)* }
                    #(*__present |= #slots.present();)*
                });
                Ok(())
            }
        }
    }
}

/// The statement that combines a value into a variable, as in the plain loop.
fn apply(op: Op, place: &TokenStream, name: &Ident, span: Span) -> TokenStream {
    match op {
        Op::Add => quote_spanned!(span=> #place += __term;),
        Op::Sub => quote_spanned!(span=> #place -= __term;),
        Op::Mul => quote_spanned!(span=> #place *= __term;),
        Op::And => quote_spanned!(span=> #place &= __term;),
        Op::Or => quote_spanned!(span=> #place |= __term;),
        Op::Xor => quote_spanned!(span=> #place ^= __term;),
        Op::Min => quote_spanned!(span=> #place = (#place).min(__term);),
        Op::Max => quote_spanned!(span=> #place = (#place).max(__term);),
        Op::TakeIfLess => quote_spanned!(span=> if __term < #place { #place = __term; }),
        Op::TakeIfGreater => quote_spanned!(span=> if __term > #place { #place = __term; }),
        Op::Push => quote_spanned!(span=> #name.push(__term);),
    }
}

/// Replaces contributions to reductions by calls of what collects them.
struct Reduce<'a> {
    reductions: &'a [Reduction],
    /// For one iteration on a device, and not for a part of the loop.
    is_slot: bool,
    span: Span,
}

impl Reduce<'_> {
    fn find(&self, name: &str) -> Option<Op> {
        self.reductions.iter().find(|it| it.name == name).map(|it| it.op)
    }

    fn contribution(&self, name: &str, op: Op, value: &Expr) -> Expr {
        let (name, span) = (Ident::new(name, self.span), self.span);
        let tokens = match op {
            _ if self.is_slot => quote_spanned!(span=> #name.set(#value)),
            Op::Add => quote_spanned!(span=> #name += #value),
            Op::Push => quote_spanned!(span=> #name.push(#value)),
            Op::Sub | Op::Mul => quote_spanned!(span=> #name.push(#value)),
            Op::And => quote_spanned!(span=> #name.fold(#value, |a, b| a & b)),
            Op::Or => quote_spanned!(span=> #name.fold(#value, |a, b| a | b)),
            Op::Xor => quote_spanned!(span=> #name.fold(#value, |a, b| a ^ b)),
            Op::Min => quote_spanned!(span=> #name.fold(#value, |a, b| a.min(b))),
            Op::Max => quote_spanned!(span=> #name.fold(#value, |a, b| a.max(b))),
            Op::TakeIfLess | Op::TakeIfGreater => quote_spanned!(span=> #name.push(#value)),
        };
        Expr::Verbatim(tokens)
    }
}

impl VisitMut for Reduce<'_> {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        let replaced = match expr {
            Expr::If(branch) => take_if(branch).and_then(|(name, op, value)| {
                self.find(&name).filter(|it| *it == op).map(|op| self.contribution(&name, op, &value))
            }),
            Expr::Binary(binary) if is_assigning(&binary.op) && compound(&binary.op).is_some() => {
                name_of(&binary.left)
                    .and_then(|name| self.find(&name).map(|op| self.contribution(&name, op, &binary.right)))
            }
            Expr::Assign(assign) => name_of(&assign.left).and_then(|name| {
                let op = self.find(&name)?;
                let mut value = &*assign.right;
                while let Expr::Paren(inner) = value {
                    value = &inner.expr;
                }
                match value {
                    Expr::MethodCall(call) => Some(self.contribution(&name, op, call.args.first()?)),
                    Expr::Binary(binary) => Some(self.contribution(&name, op, &binary.right)),
                    _ => None,
                }
            }),
            Expr::MethodCall(call) if call.method == "push" && call.args.len() == 1 => {
                name_of(&call.receiver)
                    .and_then(|name| self.find(&name).map(|op| self.contribution(&name, op, &call.args[0])))
            }
            _ => None,
        };
        match replaced {
            Some(replaced) => *expr = replaced,
            None => visit_mut::visit_expr_mut(self, expr),
        }
    }
}
