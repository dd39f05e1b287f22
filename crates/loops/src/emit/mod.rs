//! Writes the body of a loop in WGSL and in CUDA C, with the user's names and one statement a line.

mod cuda;
mod expr;
mod helpers;
mod layout;
mod print;
pub mod rust;
mod wgsl;

pub use self::layout::{Field, FieldSource, Layout, Needs};
use crate::{
    depend::{Independent, Rows},
    ir::Body,
    problem::{Problem, Result},
};

/// Rows of up to so many elements are copied by one line each.
const MAX_UNROLLED: u64 = 16;

/// A language of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// For devices driven through Vulkan, Metal and Direct3D 12.
    Wgsl,
    /// For NVIDIA's devices.
    Cuda,
}

/// The source of a kernel.
#[derive(Debug, Clone)]
pub struct Source {
    /// The text.
    pub text: String,
    /// What the device must have.
    pub needs: Needs,
}

/// A body in both languages, with the same buffers and parameters.
#[derive(Debug, Clone)]
pub struct Kernels {
    /// The order of buffers and parameters.
    pub layout: Layout,
    /// WGSL: for debug builds, which find integer overflow, and for others.
    pub wgsl: Result<[Source; 2]>,
    /// CUDA C: for debug builds, and for others.
    pub cuda: Result<[Source; 2]>,
    /// Whether the last buffer has one word for each iteration: bit 0 says that the iteration must be done again at home, and
    /// bit `n + 1` that it has a value for reduction `n`.
    pub has_status: bool,
}

/// Writes a body in both languages. Fails if neither can have it.
pub fn emit(body: &Body, independent: &Independent) -> Result<Kernels> {
    let layout = Layout::of(body, independent)?;
    let one = |language, is_checked, has_status| -> Result<(Source, bool)> {
        let mut printer = print::Printer::new(body, &layout, language, is_checked);
        printer.can_fail = has_status;
        printer.body()?;
        let source = match language {
            Language::Wgsl => wgsl::kernel(&printer),
            Language::Cuda => cuda::kernel(&printer),
        };
        Ok((source, printer.can_fail))
    };
    let all =
        [(Language::Wgsl, true), (Language::Wgsl, false), (Language::Cuda, true), (Language::Cuda, false)];
    let has_status =
        all.iter().any(|(language, is_checked)| one(*language, *is_checked, false).is_ok_and(|it| it.1));
    let both = |language| -> Result<[Source; 2]> {
        Ok([one(language, true, has_status)?.0, one(language, false, has_status)?.0])
    };
    let (wgsl, cuda) = (both(Language::Wgsl), both(Language::Cuda));
    if let (Err(problem), Err(_)) = (&wgsl, &cuda) {
        return Err(problem.clone());
    }
    Ok(Kernels { layout, wgsl, cuda, has_status })
}

/// The rows of a slice.
pub(crate) fn rows<'a>(independent: &'a Independent, name: &str) -> Option<&'a Rows> {
    independent.writes.iter().chain(&independent.reads).find(|rows| rows.name == name)
}

pub(crate) fn too_many(what: &str) -> Problem {
    Problem::new(proc_macro2::Span::call_site(), format!("the loop has {what}"))
}
