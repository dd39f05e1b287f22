//! The attributes `#[parallel]` and `#[parallel::function]`. `evener::parallel` has their documentation.

use evener_loops::{
    emit::rust::{Options, expand},
    items::Items,
    lower::lower_function,
    problem::Problem,
};
use proc_macro::TokenStream;
use quote::{quote, quote_spanned};
use syn::{ItemFn, LitInt, LitStr, parse_macro_input};

/// Splits the loops of a function over every device. The chapter `docs/parallel.md` says which loops it takes.
///
/// | argument | meaning |
/// | --- | --- |
/// | `gpu` | what keeps a loop from GPUs is an error |
/// | `cpu` | the processor only |
/// | `fast` | the device's own maths functions, fused operations, float sums in any order |
/// | `min = 10000` | fewer iterations run on the calling thread |
/// | `devices = "cuda:0,cpu"` | these devices, named as in `EVENER_DEVICES` |
#[proc_macro_attribute]
pub fn parallel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let mut options = Options::default();
    let parser = syn::meta::parser(|meta| {
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match name.as_str() {
            "gpu" => options.needs_gpu = true,
            "cpu" => options.is_cpu = true,
            "fast" => options.is_fast = true,
            "min" => options.min = Some(meta.value()?.parse::<LitInt>()?.base10_parse()?),
            "devices" => options.devices = Some(meta.value()?.parse::<LitStr>()?.value()),
            _ => {
                return Err(
                    meta.error("`#[parallel]` takes `gpu`, `cpu`, `fast`, `min = N` and `devices = \"…\"`")
                );
            }
        }
        Ok(())
    });
    parse_macro_input!(attribute with parser);
    if options.is_cpu && options.needs_gpu {
        return quote!(compile_error!("`cpu` and `gpu` exclude each other");).into();
    }
    let function = parse_macro_input!(item as ItemFn);
    let items = items_beside(&function);
    match expand(&function, &items, &options) {
        Ok(tokens) => tokens.into(),
        Err(problems) => report(&problems, &function),
    }
}

/// Marks a function that loops of `#[parallel]` functions of the same module may call on every device.
#[proc_macro_attribute]
pub fn function(_: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    let mut items = items_beside(&function);
    items.add_function(&function);
    match lower_function(&function, &items) {
        Ok(_) => quote!(#function).into(),
        Err(problem) => report(&[problem], &function),
    }
}

/// The items of the file that the function is in.
fn items_beside(function: &ItemFn) -> Items {
    let file = function.sig.ident.span().unwrap().local_file();
    let parsed =
        file.and_then(|path| std::fs::read_to_string(path).ok()).and_then(|text| syn::parse_file(&text).ok());
    parsed.map(|file| Items::of_function(&file, &function.sig.ident.to_string())).unwrap_or_default()
}

/// The problems as errors. The function stays, so that its callers give no errors of their own.
fn report(problems: &[Problem], function: &ItemFn) -> TokenStream {
    let errors = problems
        .iter()
        .map(|Problem { span, message }| quote_spanned!(*span=> ::core::compile_error!(#message);));
    quote!(#(#errors)* #function).into()
}
