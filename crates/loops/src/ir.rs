//! The body of a loop, typed: what WGSL and CUDA C are written from, and what the reference interpreter runs.

use proc_macro2::Span;

/// A type of the body's language.
#[derive(Debug, Clone, PartialEq)]
pub enum Ty {
    /// `i32`.
    I32,
    /// `u32`.
    U32,
    /// `i64`.
    I64,
    /// `u64`.
    U64,
    /// `isize`, which has 64 bits.
    Isize,
    /// `usize`, which has 64 bits.
    Usize,
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// `bool`.
    Bool,
    /// `()`.
    Unit,
    /// A fixed array.
    Array(Box<Ty>, u64),
    /// A struct of the same file, by its name.
    Struct(String),
    /// A type that is still to be found, by its number.
    Var(usize),
}

impl Ty {
    /// Whether it is an integer type.
    pub fn is_int(&self) -> bool {
        matches!(self, Ty::I32 | Ty::U32 | Ty::I64 | Ty::U64 | Ty::Isize | Ty::Usize)
    }

    /// Whether it is a signed integer type.
    pub fn is_signed(&self) -> bool {
        matches!(self, Ty::I32 | Ty::I64 | Ty::Isize)
    }

    /// Whether it is a floating-point type.
    pub fn is_float(&self) -> bool {
        matches!(self, Ty::F32 | Ty::F64)
    }

    /// Bits of a number.
    pub fn bits(&self) -> u32 {
        match self {
            Ty::I32 | Ty::U32 | Ty::F32 => 32,
            Ty::I64 | Ty::U64 | Ty::Isize | Ty::Usize | Ty::F64 => 64,
            _ => 0,
        }
    }

    /// The name of the type in Rust.
    pub fn rust(&self) -> String {
        match self {
            Ty::I32 => "i32".into(),
            Ty::U32 => "u32".into(),
            Ty::I64 => "i64".into(),
            Ty::U64 => "u64".into(),
            Ty::Isize => "isize".into(),
            Ty::Usize => "usize".into(),
            Ty::F32 => "f32".into(),
            Ty::F64 => "f64".into(),
            Ty::Bool => "bool".into(),
            Ty::Unit => "()".into(),
            Ty::Array(element, len) => format!("[{}; {len}]", element.rust()),
            Ty::Struct(name) => name.clone(),
            Ty::Var(_) => "_".into(),
        }
    }
}

/// The number of a local variable in its [`Body`] or [`Function`].
pub type LocalId = usize;

/// A local variable.
#[derive(Debug, Clone)]
pub struct Local {
    /// The user's name.
    pub name: String,
    /// Its type.
    pub ty: Ty,
}

/// An expression with its type.
#[derive(Debug, Clone)]
pub struct Expr {
    /// The type.
    pub ty: Ty,
    /// What it computes.
    pub kind: Kind,
    /// Where it is in the source.
    pub span: Span,
}

/// A binary operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    AndAnd,
    OrOr,
}

/// What an expression computes.
#[derive(Debug, Clone)]
pub enum Kind {
    /// An integer.
    Int(u64),
    /// A floating-point number.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// A local variable.
    Local(LocalId),
    /// A value that is the same for the whole loop, by its number in [`Body::scalars`].
    Scalar(usize),
    /// An element of a slice, by the slice's number in [`Body::slices`].
    Element(usize, Box<Expr>),
    /// The length of a slice.
    Len(usize),
    /// `-x`.
    Neg(Box<Expr>),
    /// `!x`.
    Not(Box<Expr>),
    /// An operator with two operands.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `x as T`: the expression has the type.
    Cast(Box<Expr>),
    /// A method of a number, with the receiver first.
    Method(&'static str, Vec<Expr>),
    /// A call of a function marked `#[parallel::function]`.
    Call(String, Vec<Expr>),
    /// An element of a local array.
    At(Box<Expr>, Box<Expr>),
    /// A field of a struct.
    Field(Box<Expr>, String),
    /// An array of these elements.
    Array(Vec<Expr>),
    /// A struct of these fields, in the order of its declaration.
    Struct(String, Vec<Expr>),
    /// `if` with a value.
    If(Box<Expr>, Block, Block),
    /// A block with a value.
    Block(Block),
}

/// Statements, and the value of the last one.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// The statements.
    pub stmts: Vec<Stmt>,
    /// The value, if the block has one.
    pub value: Option<Box<Expr>>,
}

/// A statement.
#[derive(Debug, Clone)]
pub enum Stmt {
    /// `let`, with or without a value.
    Let(LocalId, Option<Expr>),
    /// An assignment to a local, an element or a field.
    Assign(Expr, Expr),
    /// `if` without a value.
    If(Expr, Block, Block),
    /// `while`.
    While(Expr, Block),
    /// `for` over a range; inclusive if the flag is set.
    For(LocalId, Expr, Expr, bool, Block),
    /// `loop`.
    Loop(Block),
    /// `break` of an inner loop.
    Break,
    /// `continue` of an inner loop.
    Continue,
    /// `continue` of the loop that is split, or `return` of a function.
    Return(Option<Expr>),
    /// An expression whose value is not used.
    Expr(Expr),
    /// The value that this iteration contributes to a reduction, by its number in [`Body::terms`].
    Term(usize, Expr),
}

/// A slice that the loop reads or writes.
#[derive(Debug, Clone)]
pub struct Slice {
    /// The user's name.
    pub name: String,
    /// The type of its elements.
    pub ty: Ty,
    /// How iterations use it.
    pub role: Role,
}

/// How iterations use a slice.
#[derive(Debug, Clone, PartialEq)]
pub enum Role {
    /// Any element is read by any iteration.
    Table,
    /// Each iteration reads a row of its own.
    Input,
    /// Each iteration writes all elements of a row of its own before it reads them.
    Output,
    /// Each iteration reads and writes a row of its own.
    InOut,
}

/// A value that is the same for the whole loop.
#[derive(Debug, Clone)]
pub struct Scalar {
    /// The user's name.
    pub name: String,
    /// Its type.
    pub ty: Ty,
}

/// The value that each iteration contributes to a reduction.
#[derive(Debug, Clone)]
pub struct Term {
    /// The variable that it goes to.
    pub name: String,
    /// Its type.
    pub ty: Ty,
    /// Whether some iterations contribute nothing.
    pub is_optional: bool,
}

/// A function marked `#[parallel::function]`.
#[derive(Debug, Clone)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its locals: the parameters first.
    pub locals: Vec<Local>,
    /// Number of parameters.
    pub parameters: usize,
    /// The type of its value.
    pub ty: Ty,
    /// Its body.
    pub block: Block,
}

/// A struct of the same file.
#[derive(Debug, Clone, PartialEq)]
pub struct Struct {
    /// Its name.
    pub name: String,
    /// Its fields.
    pub fields: Vec<(String, Ty)>,
}

/// A typed body: one iteration of a loop that can be split.
#[derive(Debug, Clone)]
pub struct Body {
    /// The name of the kernel.
    pub name: String,
    /// The locals: the loop's variable is the first.
    pub locals: Vec<Local>,
    /// The slices.
    pub slices: Vec<Slice>,
    /// The scalars.
    pub scalars: Vec<Scalar>,
    /// The values for reductions.
    pub terms: Vec<Term>,
    /// The statements of one iteration.
    pub block: Block,
    /// The functions that it calls, callees first.
    pub functions: Vec<Function>,
    /// The structs that it uses.
    pub structs: Vec<Struct>,
    /// Whether `#[parallel(fast)]` allows the device's own functions and fused operations.
    pub is_fast: bool,
}
