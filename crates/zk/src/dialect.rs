//! The two languages of kernels, and a small notation that both are written from.
//!
//! Formulas over field elements are the same in CUDA C and WGSL but for declarations. [`Dialect::translate`] turns one
//! notation into both: it is C-like, with these lines of its own.
//!
//! - `fn name(Type argument, …) -> Type {` begins a function. In CUDA C, `inline fn` is
//!   always inlined, `call fn` is compiled once and called, and `MACRO fn` is declared with a macro that says which. WGSL
//!   leaves it to the driver.
//! - `let Type name = …;` declares a value, `var Type name = …;` a variable.
//! - All other lines are the same in both languages.

use std::fmt::Write as _;

/// A language of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Dialect {
    CudaC,
    Wgsl,
}

impl Dialect {
    /// Returns the declaration of a structure and of a function that makes one, named `constructor`.
    pub(crate) fn structure(self, name: &str, constructor: &str, fields: &[(&str, &str)]) -> String {
        let names: Vec<&str> = fields.iter().map(|(_, field)| *field).collect();
        let names = names.join(", ");
        match self {
            Dialect::CudaC => {
                let members: String =
                    fields.iter().map(|(kind, field)| format!("{kind} {field}; ")).collect();
                let arguments: Vec<_> =
                    fields.iter().map(|(kind, field)| format!("const {kind} {field}")).collect();
                format!(
                    "struct __align__(16) {name} {{ {members}}};\n\
                     static __device__ __forceinline__ {name} {constructor}({}) {{ return {name}{{ {names} }}; }}\n",
                    arguments.join(", ")
                )
            }
            Dialect::Wgsl => {
                let members: Vec<_> = fields.iter().map(|(kind, field)| format!("{field}: {kind}")).collect();
                let members = members.join(", ");
                format!(
                    "struct {name} {{ {members} }}\n\
                     fn {constructor}({members}) -> {name} {{ return {name}({names}); }}\n"
                )
            }
        }
    }

    /// Translates the notation.
    pub(crate) fn translate(self, notation: &str) -> String {
        let mut text = String::new();
        for line in notation.lines() {
            let indent = &line[..line.len() - line.trim_start().len()];
            let words = line.trim_start();
            let translated =
                self.function(words).or_else(|| self.declaration(words)).unwrap_or_else(|| words.to_owned());
            // Writing to a `String` does not fail.
            let _ = writeln!(text, "{indent}{translated}");
        }
        text
    }

    fn function(self, line: &str) -> Option<String> {
        let (how, signature) = line.split_once("fn ")?;
        let how = match how.trim_end() {
            "inline" => "__forceinline__",
            "call" => "__noinline__",
            macro_or_none
                if macro_or_none
                    .chars()
                    .all(|it| it.is_ascii_uppercase() || it.is_ascii_digit() || it == '_') =>
            {
                macro_or_none
            }
            _ => return None,
        };
        let (name, rest) = signature.split_once('(')?;
        let (arguments, rest) = rest.split_once(')')?;
        let result = rest.trim().strip_prefix("->")?.trim().strip_suffix('{')?.trim();
        let arguments: Vec<(&str, &str)> =
            arguments.split(',').filter_map(|argument| argument.trim().split_once(' ')).collect();
        Some(match self {
            Dialect::CudaC => {
                let arguments: Vec<_> =
                    arguments.iter().map(|(kind, name)| format!("const {kind} {name}")).collect();
                format!("static __device__ {how} {result} {name}({}) {{", arguments.join(", "))
            }
            Dialect::Wgsl => {
                let arguments: Vec<_> =
                    arguments.iter().map(|(kind, name)| format!("{name}: {kind}")).collect();
                format!("fn {name}({}) -> {result} {{", arguments.join(", "))
            }
        })
    }

    fn declaration(self, line: &str) -> Option<String> {
        let (how, rest) = line.split_once(' ').filter(|(how, _)| ["let", "var"].contains(how))?;
        let (declared, value) = rest.split_once('=')?;
        let (kind, name) = declared.trim().split_once(' ')?;
        Some(match self {
            Dialect::CudaC if how == "let" => format!("const {kind} {name} ={value}"),
            Dialect::CudaC => format!("{kind} {name} ={value}"),
            Dialect::Wgsl => format!("{how} {name}: {kind} ={value}"),
        })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn functions_and_values_are_declared_as_each_language_does() {
        let notation =
            "inline fn twice(Fq a, Fq b) -> Fq {\n    let Fq c = fq_add(a, b);\n    return c;\n}\n";
        assert_eq!(
            Dialect::CudaC.translate(notation),
            "static __device__ __forceinline__ Fq twice(const Fq a, const Fq b) {\n    \
             const Fq c = fq_add(a, b);\n    return c;\n}\n"
        );
        assert_eq!(
            Dialect::Wgsl.translate(notation),
            "fn twice(a: Fq, b: Fq) -> Fq {\n    let c: Fq = fq_add(a, b);\n    return c;\n}\n"
        );
    }
}
