//! What stands in the way of a loop, and where.

use proc_macro2::Span;

/// Why a loop, or one of its expressions, cannot be used in some way.
#[derive(Debug, Clone)]
pub struct Problem {
    /// The expression that stands in the way.
    pub span: Span,
    /// A sentence for the user.
    pub message: String,
}

impl Problem {
    /// A problem at a place of the source.
    pub fn new(span: Span, message: impl Into<String>) -> Self {
        Problem { span, message: message.into() }
    }
}

/// The result of reading a piece of source.
pub type Result<T, E = Problem> = std::result::Result<T, E>;
