//! Statements, in either language.

use std::collections::{BTreeSet, HashMap};

use super::{Language, Layout, Needs};
use crate::{
    ir::{Block, Body, Expr, Kind, Local, LocalId, Role, Stmt, Ty},
    problem::{Problem, Result},
};

/// Writes one kernel.
pub(super) struct Printer<'a> {
    pub(super) body: &'a Body,
    pub(super) layout: &'a Layout,
    pub(super) language: Language,
    pub(super) is_checked: bool,
    /// The lines so far, and their indentation.
    pub(super) lines: Vec<String>,
    indent: usize,
    /// The names of locals: unique in their function.
    names: HashMap<LocalId, String>,
    taken: BTreeSet<String>,
    temporaries: usize,
    pub(super) locals: &'a [Local],
    /// Whether a function is being written, and not the body.
    pub(super) in_function: bool,
    pub(super) helpers: BTreeSet<(&'static str, String)>,
    pub(super) uses_index: bool,
    pub(super) uses_item_rows: BTreeSet<usize>,
    pub(super) can_fail: bool,
    pub(super) needs: Needs,
    /// The finished functions.
    pub(super) functions: Vec<String>,
}

/// Words of either language that cannot be names.
const RESERVED: &[&str] = &[
    "array",
    "at",
    "auto",
    "bool",
    "char",
    "class",
    "const",
    "count",
    "default",
    "delete",
    "do",
    "double",
    "enum",
    "extern",
    "f32",
    "f64",
    "failed",
    "first",
    "float",
    "fn",
    "for",
    "goto",
    "i32",
    "i64",
    "id",
    "inline",
    "int",
    "item",
    "let",
    "long",
    "main",
    "new",
    "operator",
    "override",
    "p",
    "present",
    "private",
    "public",
    "register",
    "return",
    "short",
    "signed",
    "sizeof",
    "start",
    "static",
    "status",
    "struct",
    "switch",
    "this",
    "template",
    "texture",
    "u32",
    "u64",
    "union",
    "unsigned",
    "using",
    "var",
    "vec2",
    "vec3",
    "vec4",
    "virtual",
    "void",
    "volatile",
    "while",
    "workgroup",
    "filter",
    "sample",
    "buffer",
    "active",
    "mod",
    "move",
    "target",
    "module",
    "of",
    "on",
    "set",
    "get",
    "self",
    "ptr",
    "ref",
    "resource",
    "rounded",
    "exp",
    "sin",
    "cos",
    "sqrt",
    "min",
    "max",
    "abs",
    "floor",
    "ceil",
    "round",
    "log",
    "pow",
    "tan",
    "fma",
    "select",
    "sign",
    "step",
    "mix",
    "clamp",
    "asm",
    "y0",
    "y1",
    "j0",
    "j1",
    "jn",
    "yn",
    "common",
    "final",
    "from",
    "handle",
    "half",
    "highp",
    "lowp",
    "impl",
    "import",
    "interface",
    "layout",
    "macro",
    "match",
    "mediump",
    "meta",
    "namespace",
    "package",
    "partition",
    "pass",
    "patch",
    "pixel",
    "precise",
    "precision",
    "premerge",
    "priv",
    "protected",
    "pub",
    "quote",
    "readonly",
    "regardless",
    "shared",
    "smooth",
    "snorm",
    "std",
    "subroutine",
    "super",
    "trait",
    "type",
    "typename",
    "typeof",
    "unless",
    "unorm",
    "unsafe",
    "use",
    "varying",
    "vertex",
    "where",
    "with",
    "writeonly",
    "yield",
    "wgsl",
    "try",
    "then",
    "technique",
    "compile",
    "coherent",
    "catch",
    "cast",
    "become",
    "await",
    "async",
    "attribute",
];

impl<'a> Printer<'a> {
    pub(super) fn new(body: &'a Body, layout: &'a Layout, language: Language, is_checked: bool) -> Self {
        Printer {
            body,
            layout,
            language,
            is_checked,
            lines: Vec::new(),
            indent: 1,
            names: HashMap::new(),
            taken: BTreeSet::new(),
            temporaries: 0,
            locals: &body.locals,
            in_function: false,
            helpers: BTreeSet::new(),
            uses_index: false,
            uses_item_rows: BTreeSet::new(),
            can_fail: false,
            needs: Needs::default(),
            functions: Vec::new(),
        }
    }

    pub(super) fn is_wgsl(&self) -> bool {
        self.language == Language::Wgsl
    }

    /// A name of this kernel for something of the user's.
    pub(super) fn safe(name: &str) -> String {
        let name = name.trim_start_matches('_');
        let name = if name.is_empty() { "value" } else { name };
        if RESERVED.contains(&name) { format!("{name}_") } else { name.to_owned() }
    }

    pub(super) fn name(&mut self, id: LocalId) -> String {
        if let Some(name) = self.names.get(&id) {
            return name.clone();
        }
        let base = Self::safe(&self.locals[id].name);
        let slices = self.body.slices.iter().map(|slice| &slice.name);
        let globals: BTreeSet<&String> =
            slices.chain(self.body.functions.iter().map(|it| &it.name)).collect();
        let mut name = base.clone();
        let mut number = 1;
        while self.taken.contains(&name) || globals.contains(&name) || name == self.body.name {
            number += 1;
            name = format!("{base}_{number}");
        }
        self.taken.insert(name.clone());
        self.names.insert(id, name.clone());
        name
    }

    pub(super) fn temporary(&mut self) -> String {
        self.temporaries += 1;
        format!("t{}_", self.temporaries)
    }

    pub(super) fn line(&mut self, text: impl AsRef<str>) {
        let text = format!("{}{}", "    ".repeat(self.indent), text.as_ref());
        self.lines.push(text);
    }

    pub(super) fn open(&mut self, text: impl AsRef<str>) {
        self.line(text);
        self.indent += 1;
    }

    pub(super) fn close(&mut self) {
        self.indent -= 1;
        self.line("}");
    }

    fn between(&mut self, text: &str) {
        self.indent -= 1;
        self.line(text);
        self.indent += 1;
    }

    /// A declaration of a variable.
    pub(super) fn declare(&mut self, name: &str, ty: &Ty, value: Option<&str>) {
        let ty = self.ty(ty);
        let text = match (self.is_wgsl(), value) {
            (true, Some(value)) => format!("var {name}: {ty} = {value};"),
            (true, None) => format!("var {name}: {ty};"),
            (false, Some(value)) => format!("{ty} {name} = {value};"),
            (false, None) => format!("{ty} {name};"),
        };
        self.line(text);
    }

    /// Writes the functions, then the body's lines.
    pub(super) fn body(&mut self) -> Result<()> {
        for function in &self.body.functions {
            self.in_function = true;
            self.locals = &function.locals;
            self.names.clear();
            self.taken.clear();
            let mut parameters = Vec::new();
            let mut copies = Vec::new();
            for (id, local) in function.locals[..function.parameters].iter().enumerate() {
                let (name, ty) = (self.name(id), self.ty(&local.ty));
                // Parameters of WGSL cannot be assigned to.
                if self.is_wgsl() {
                    parameters.push(format!("{name}_in: {ty}"));
                    copies.push(format!("var {name} = {name}_in;"));
                } else {
                    parameters.push(format!("{ty} {name}"));
                }
            }
            copies.into_iter().for_each(|copy| self.line(copy));
            self.block(&function.block)?;
            if let Some(value) = &function.block.value {
                let value = self.expr(value)?;
                self.line(format!("return {value};"));
            } else if function.ty != Ty::Unit {
                // Every path has returned: the languages do not see that.
                let zero = self.zero(&function.ty);
                self.line(format!("return {zero};"));
            }
            let body = std::mem::take(&mut self.lines).join("\n");
            let (name, ty) = (Self::safe(&function.name), self.ty(&function.ty));
            let head = match (self.is_wgsl(), &function.ty) {
                (true, Ty::Unit) => format!("fn {name}({}) {{", parameters.join(", ")),
                (true, _) => format!("fn {name}({}) -> {ty} {{", parameters.join(", ")),
                (false, _) => {
                    parameters.extend(["const Params &p".to_owned(), "unsigned &failed".to_owned()]);
                    format!("__device__ {ty} {name}({}) {{", parameters.join(", "))
                }
            };
            self.functions.push(format!("{head}\n{body}\n}}"));
        }
        self.in_function = false;
        self.locals = &self.body.locals;
        self.names.clear();
        self.taken.clear();
        self.temporaries = 0;
        let block = &self.body.block;
        self.block(block)
    }

    pub(super) fn block(&mut self, block: &Block) -> Result<()> {
        for stmt in &block.stmts {
            self.stmt(stmt)?;
        }
        Ok(())
    }

    /// Writes a block whose value goes to a variable.
    pub(super) fn block_into(&mut self, block: &Block, target: &str) -> Result<()> {
        self.block(block)?;
        if let Some(value) = &block.value {
            self.assign_value(target, value)?;
        }
        Ok(())
    }

    fn assign_value(&mut self, target: &str, value: &Expr) -> Result<()> {
        match &value.kind {
            Kind::If(condition, then, otherwise) if value.ty != Ty::Unit => {
                let condition = self.expr(condition)?;
                self.open(format!("if ({condition}) {{"));
                self.block_into(then, target)?;
                self.between("} else {");
                self.block_into(otherwise, target)?;
                self.close();
            }
            Kind::Block(block) => self.block_into(block, target)?,
            _ => {
                let value = self.expr(value)?;
                self.line(format!("{target} = {value};"));
            }
        }
        Ok(())
    }

    fn guard(&self) -> &'static str {
        if self.is_wgsl() { " && failed == 0u" } else { " && !failed" }
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<()> {
        match stmt {
            Stmt::Let(id, value) => {
                let ty = self.locals[*id].ty.clone();
                match value {
                    Some(value) if matches!(value.kind, Kind::If(..) | Kind::Block(_)) => {
                        let name = self.name(*id);
                        self.declare(&name, &ty, None);
                        self.assign_value(&name, value)?;
                    }
                    Some(value) => {
                        let value = self.expr(value)?;
                        let name = self.name(*id);
                        self.declare(&name, &ty, Some(&value));
                    }
                    None => {
                        let name = self.name(*id);
                        self.declare(&name, &ty, None);
                    }
                }
            }
            Stmt::Assign(place, value) => {
                if matches!(value.kind, Kind::If(..) | Kind::Block(_)) {
                    let temporary = self.temporary();
                    self.declare(&temporary, &value.ty, None);
                    self.assign_value(&temporary, value)?;
                    let place = self.place(place)?;
                    self.line(format!("{place} = {temporary};"));
                } else {
                    let value = self.expr(value)?;
                    let place = self.place(place)?;
                    self.line(format!("{place} = {value};"));
                }
            }
            Stmt::If(condition, then, otherwise) => {
                match condition.kind {
                    Kind::Bool(true) => self.open("{"),
                    _ => {
                        let condition = self.expr(condition)?;
                        self.open(format!("if ({condition}) {{"));
                    }
                }
                self.block(then)?;
                if !otherwise.stmts.is_empty() {
                    self.between("} else {");
                    self.block(otherwise)?;
                }
                self.close();
            }
            Stmt::While(condition, body) => {
                // The condition may need statements of its own.
                self.open(if self.is_wgsl() { "loop {" } else { "for (;;) {" });
                let condition = self.expr(condition)?;
                let guard = self.guard();
                self.line(format!("if (!(({condition}){guard})) {{ break; }}"));
                self.block(body)?;
                self.close();
            }
            Stmt::Loop(body) => {
                self.open(if self.is_wgsl() { "loop {" } else { "for (;;) {" });
                let failed = if self.is_wgsl() { "failed != 0u" } else { "failed" };
                self.line(format!("if ({failed}) {{ break; }}"));
                self.block(body)?;
                self.close();
            }
            Stmt::For(id, start, end, is_inclusive, body) => {
                let (start, mut last) = (self.expr(start)?, self.expr(end)?);
                let (ty, name) = (self.locals[*id].ty.clone(), self.name(*id));
                let temporary = self.temporary();
                if *is_inclusive {
                    let (most, one) = (self.int(&ty, max_of(&ty)), self.int(&ty, 1));
                    self.declare(&temporary, &ty, Some(&last));
                    let fail = self.fail();
                    self.line(format!(
                        "if ({temporary} == {most}) {{ {fail} return{}; }}",
                        self.return_value()
                    ));
                    self.line(format!("{temporary} = {temporary} + {one};"));
                    last = temporary.clone();
                } else if !matches!(end.kind, Kind::Int(_) | Kind::Scalar(_) | Kind::Len(_)) {
                    self.declare(&temporary, &ty, Some(&last));
                    last = temporary.clone();
                }
                let (printed, guard) = (self.ty(&ty), self.guard());
                let one = self.int(&ty, 1);
                let head = match self.is_wgsl() {
                    true => format!(
                        "for (var {name}: {printed} = {start}; {name} < {last}{guard}; {name} = {name} + {one}) {{"
                    ),
                    false => format!("for ({printed} {name} = {start}; {name} < {last}{guard}; {name}++) {{"),
                };
                self.open(head);
                self.block(body)?;
                self.close();
            }
            Stmt::Break => self.line("break;"),
            Stmt::Continue => self.line("continue;"),
            Stmt::Return(value) if self.in_function => {
                let value = value.as_ref().map(|value| self.expr(value)).transpose()?;
                self.line(format!("return{};", value.map(|value| format!(" {value}")).unwrap_or_default()));
            }
            Stmt::Return(_) => {
                self.line("status[item] = failed | present;");
                self.can_fail = true;
                self.line("return;");
            }
            Stmt::Expr(value) => {
                if matches!(value.kind, Kind::If(..) | Kind::Block(_)) && value.ty == Ty::Unit {
                    if let Kind::If(condition, then, otherwise) = &value.kind {
                        return self.stmt(&Stmt::If((**condition).clone(), then.clone(), otherwise.clone()));
                    }
                    if let Kind::Block(block) = &value.kind {
                        return self.block(block);
                    }
                }
                let value = self.expr(value)?;
                self.line(if self.is_wgsl() { format!("_ = {value};") } else { format!("(void)({value});") });
            }
            Stmt::Term(number, value) => {
                let value = self.expr(value)?;
                let term = &self.body.terms[*number];
                self.line(format!("{}_term[item] = {value};", Self::safe(&term.name)));
                if term.is_optional {
                    self.can_fail = true;
                    let u = if self.is_wgsl() { "u" } else { "" };
                    self.line(format!("present = present | {}{u};", 2u32 << number));
                }
            }
        }
        Ok(())
    }

    fn return_value(&self) -> String {
        if !self.in_function {
            return String::new();
        }
        // The function's value does not matter: the iteration has failed.
        let ty =
            self.body.functions.iter().find(|it| std::ptr::eq(&it.locals[..], self.locals)).map(|it| &it.ty);
        ty.filter(|ty| **ty != Ty::Unit).map(|ty| format!(" {}", self.zero(ty))).unwrap_or_default()
    }

    fn fail(&mut self) -> String {
        self.can_fail = true;
        let u = if self.is_wgsl() { "u" } else { "" };
        match self.in_function {
            true => format!("failed = failed | 1{u};"),
            false => format!("failed = failed | 1{u}; status[item] = failed;"),
        }
    }

    /// The place of an assignment.
    fn place(&mut self, place: &Expr) -> Result<String> {
        match &place.kind {
            Kind::Local(_) | Kind::Element(..) | Kind::At(..) | Kind::Field(..) => {
                if let Kind::Element(slice, _) = &place.kind
                    && matches!(self.body.slices[*slice].role, Role::Table | Role::Input)
                {
                    return Err(Problem::new(place.span, "this slice is only read"));
                }
                self.expr(place)
            }
            _ => Err(Problem::new(place.span, "this is no place that devices can assign to")),
        }
    }
}

/// The largest value of an integer type.
pub(super) fn max_of(ty: &Ty) -> u64 {
    match (ty.bits(), ty.is_signed()) {
        (32, true) => i32::MAX as u64,
        (32, false) => u64::from(u32::MAX),
        (_, true) => i64::MAX as u64,
        _ => u64::MAX,
    }
}

impl Printer<'_> {
    /// The name of the loop's variable.
    pub(super) fn index_name(&self) -> String {
        self.names.get(&0).cloned().unwrap_or_else(|| Self::safe(&self.body.locals[0].name))
    }
}
