//! Straight-line PTX: a list of instructions that is printed as inline assembly, and that the tests interpret.
//!
//! The list is in static single assignment form: each instruction writes a register of its own, and the assembler
//! allocates the registers of the card. A function is one block of inline assembly, because the carry flag does not
//! survive from one block to the next.

#[cfg(test)]
mod interpreter;
mod montgomery;

use std::fmt::{self, Write as _};

use super::description::{FieldDescription, LIMBS};

/// An operand: a register, by the number of the instruction or input that writes it, or a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    Register(usize),
    Constant(u32),
}

use Operand::Constant;

/// What an instruction computes. `low` and `high` are the halves of a 64-bit product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// `a + b`.
    Add,
    /// `a − b`. Its carry flag is the borrow.
    Subtract,
    /// `low(a * b)`.
    MultiplyLow,
    /// `high(a * b)`.
    MultiplyHigh,
    /// `low(a * b) + c`.
    MultiplyAddLow,
    /// `high(a * b) + c`.
    MultiplyAddHigh,
    /// `a` if `c` is zero, else `b`. It leaves the carry flag alone.
    SelectIfZero,
}

/// Whether an instruction reads and writes the carry flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carry {
    /// Neither: the flag keeps its value.
    None,
    /// It writes the flag.
    Out,
    /// It adds the flag and writes it.
    InOut,
    /// It adds the flag, and its own carry out is always zero.
    In,
}

#[derive(Debug, Clone, Copy)]
struct Instruction {
    operation: Operation,
    carry: Carry,
    operands: [Operand; 3],
}

/// A function over 32-bit words.
#[derive(Debug, Clone)]
pub(super) struct Code {
    inputs: usize,
    instructions: Vec<Instruction>,
    outputs: Vec<Operand>,
}

impl Code {
    fn new(inputs: usize) -> Self {
        Code { inputs, instructions: Vec::new(), outputs: Vec::new() }
    }

    /// Returns the n-th group of eight inputs.
    fn input(&self, element: usize) -> [Operand; LIMBS] {
        std::array::from_fn(|limb| Operand::Register(element * LIMBS + limb))
    }

    fn push(&mut self, operation: Operation, carry: Carry, operands: [Operand; 3]) -> Operand {
        self.instructions.push(Instruction { operation, carry, operands });
        Operand::Register(self.inputs + self.instructions.len() - 1)
    }

    fn add(&mut self, carry: Carry, a: Operand, b: Operand) -> Operand {
        self.push(Operation::Add, carry, [a, b, Constant(0)])
    }

    fn subtract(&mut self, carry: Carry, a: Operand, b: Operand) -> Operand {
        self.push(Operation::Subtract, carry, [a, b, Constant(0)])
    }

    fn multiply_low(&mut self, a: Operand, b: Operand) -> Operand {
        self.push(Operation::MultiplyLow, Carry::None, [a, b, Constant(0)])
    }

    fn multiply_high(&mut self, a: Operand, b: Operand) -> Operand {
        self.push(Operation::MultiplyHigh, Carry::None, [a, b, Constant(0)])
    }

    fn multiply_add_low(&mut self, carry: Carry, a: Operand, b: Operand, c: Operand) -> Operand {
        self.push(Operation::MultiplyAddLow, carry, [a, b, c])
    }

    fn multiply_add_high(&mut self, carry: Carry, a: Operand, b: Operand, c: Operand) -> Operand {
        self.push(Operation::MultiplyAddHigh, carry, [a, b, c])
    }

    fn select_if_zero(&mut self, condition: Operand, zero: Operand, other: Operand) -> Operand {
        self.push(Operation::SelectIfZero, Carry::None, [zero, other, condition])
    }

    /// Prints the inline assembly. `output` and `input` are the C expressions of words.
    fn inline_assembly(
        &self,
        output: impl Fn(usize) -> String,
        input: impl Fn(usize) -> String,
    ) -> Result<String, fmt::Error> {
        let outputs = self.outputs.len();
        let name = |operand: Operand| match operand {
            Constant(value) => format!("0x{value:08x}"),
            Operand::Register(register) if register < self.inputs => format!("%{}", outputs + register),
            Operand::Register(register) => format!("t{}", register - self.inputs),
        };
        let mut text = String::from("    asm(\"{\\n\"\n");
        writeln!(text, "        \".reg .u32 t<{}>; .reg .pred p;\\n\"", self.instructions.len())?;
        for (index, Instruction { operation, carry, operands }) in self.instructions.iter().enumerate() {
            let [a, b, c] = operands.map(name);
            let (carry_in, carry_out) = match carry {
                Carry::None => ("", ""),
                Carry::Out => ("", ".cc"),
                Carry::InOut => ("c", ".cc"),
                Carry::In => ("c", ""),
            };
            let line = match operation {
                Operation::Add => format!("add{carry_in}{carry_out}.u32 t{index}, {a}, {b};"),
                Operation::Subtract => format!("sub{carry_in}{carry_out}.u32 t{index}, {a}, {b};"),
                Operation::MultiplyLow => format!("mul.lo.u32 t{index}, {a}, {b};"),
                Operation::MultiplyHigh => format!("mul.hi.u32 t{index}, {a}, {b};"),
                Operation::MultiplyAddLow => {
                    format!("mad{carry_in}.lo{carry_out}.u32 t{index}, {a}, {b}, {c};")
                }
                Operation::MultiplyAddHigh => {
                    format!("mad{carry_in}.hi{carry_out}.u32 t{index}, {a}, {b}, {c};")
                }
                Operation::SelectIfZero => {
                    format!("setp.eq.u32 p, {c}, 0; selp.u32 t{index}, {a}, {b}, p;")
                }
            };
            writeln!(text, "        \"{line}\\n\"")?;
        }
        for (index, word) in self.outputs.iter().enumerate() {
            writeln!(text, "        \"mov.u32 %{index}, {};\\n\"", name(*word))?;
        }
        let list = |constraint: &str, words: Vec<String>| {
            words.iter().map(|word| format!("\"{constraint}\"({word})")).collect::<Vec<_>>().join(", ")
        };
        let (to, from) = ((0..outputs).map(output).collect(), (0..self.inputs).map(input).collect());
        writeln!(text, "        \"}}\" : {} : {});", list("=r", to), list("r", from))?;
        Ok(text)
    }
}

/// Writes the functions of a field that differ from plain CUDA C: addition, subtraction and products.
pub(super) fn write_functions(text: &mut String, field: &FieldDescription) -> fmt::Result {
    let limb = |element: &str, index: usize| format!("{element}.l[{index}]");
    let input = |index: usize| limb(["a", "b"][index / LIMBS], index % LIMBS);
    let (prefix, kind) = (field.prefix, field.type_name);
    text.push_str("#ifndef ZK_PTX_INLINE\n#define ZK_PTX_INLINE __forceinline__\n#endif\n");
    for (name, arguments, code) in functions(field) {
        let inline = if matches!(name, "mul" | "sqr") { "ZK_PTX_INLINE" } else { "__forceinline__" };
        let arguments: Vec<String> = arguments.iter().map(|name| format!("const {kind} {name}")).collect();
        writeln!(text, "static __device__ {inline} {kind} {prefix}_{name}({}) {{", arguments.join(", "))?;
        writeln!(text, "    {kind} r;")?;
        text.push_str(&code.inline_assembly(|index| limb("r", index), input)?);
        text.push_str("    return r;\n}\n");
    }
    Ok(())
}

/// Writes `fq2_mul`.
pub(super) fn write_extension_product(text: &mut String, field: &FieldDescription) -> fmt::Result {
    let limb = |element: &str, index: usize| format!("{element}.c{}.l[{}]", index / LIMBS, index % LIMBS);
    let input = |index: usize| limb(["a", "b"][index / (2 * LIMBS)], index % (2 * LIMBS));
    text.push_str("static __device__ ZK_FQ2_INLINE Fq2 fq2_mul(const Fq2 a, const Fq2 b) {\n    Fq2 r;\n");
    let code = montgomery::multiply_in_extension(field);
    text.push_str(&code.inline_assembly(|index| limb("r", index), input)?);
    text.push_str("    return r;\n}\n");
    Ok(())
}

/// The functions of a field with the names of their arguments.
fn functions(field: &FieldDescription) -> [(&'static str, &'static [&'static str], Code); 5] {
    [
        ("add", &["a", "b"], montgomery::add(field)),
        ("sub", &["a", "b"], montgomery::subtract(field)),
        ("double", &["a"], montgomery::double(field)),
        ("mul", &["a", "b"], montgomery::multiply(field)),
        ("sqr", &["a"], montgomery::square(field)),
    ]
}
