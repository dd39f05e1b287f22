//! A whole kernel in CUDA C.

use super::{MAX_UNROLLED, Source, helpers, print::Printer};
use crate::ir::{Role, Ty};

/// Puts the kernel together.
pub(super) fn kernel(printer: &Printer<'_>) -> Source {
    let (body, layout) = (printer.body, printer.layout);
    let mut scratch = Printer::new(body, layout, printer.language, printer.is_checked);
    let mut text = String::from("template <class T, int N> struct Array { T at[N]; };\n");
    for structure in &body.structs {
        let fields: Vec<String> = structure
            .fields
            .iter()
            .map(|(name, ty)| format!("    {} {};\n", scratch.ty(ty), Printer::safe(name)))
            .collect();
        text.push_str(&format!("struct {} {{\n{}}};\n", Printer::safe(&structure.name), fields.concat()));
    }
    text.push_str("struct Params {\n    unsigned first_low, first_high, count, zero;\n");
    let mut bytes = 16;
    for field in &layout.fields {
        let ty = if field.ty == Ty::Bool { "unsigned".to_owned() } else { scratch.ty(&field.ty) };
        text.push_str(&format!("    {ty} {};\n", Printer::safe(&field.name)));
        bytes += if field.ty.bits() == 64 { 8 } else { 4 };
    }
    if bytes < 128 {
        text.push_str(&format!("    unsigned padding[{}];\n", (128 - bytes) / 4));
    }
    text.push_str("};\n\n");
    for (helper, ty) in &printer.helpers {
        text.push_str(&helpers::cuda(helper, ty));
    }
    for function in &printer.functions {
        text.push_str(function);
        text.push_str("\n\n");
    }
    let mut parameters = Vec::new();
    let mut copies = Vec::new();
    for number in &layout.inputs {
        let slice = &body.slices[*number];
        let name = Printer::safe(&slice.name);
        let name = if slice.role == Role::InOut { format!("{name}_old") } else { name };
        parameters.push(format!("const {} *{name}", scratch.ty(&slice.ty)));
    }
    for number in &layout.tables {
        let slice = &body.slices[*number];
        parameters.push(format!("const {} *{}", scratch.ty(&slice.ty), Printer::safe(&slice.name)));
    }
    let mut rows = printer.uses_item_rows.clone();
    for number in &layout.outputs {
        let slice = &body.slices[*number];
        let name = Printer::safe(&slice.name);
        parameters.push(format!("{} *{name}", scratch.ty(&slice.ty)));
        if slice.role == Role::InOut {
            match layout.constant_rows[*number] {
                Some((1, _)) => copies.push(format!("    {name}[item] = {name}_old[item];")),
                Some((width, _)) if width <= MAX_UNROLLED => copies.extend((0..width).map(|e| {
                    format!("    {name}[{width}ull * item + {e}] = {name}_old[{width}ull * item + {e}];")
                })),
                _ => {
                    rows.insert(*number);
                    copies.push(format!("    for (unsigned e = 0; e < {name}_width; e++) {name}[{name}_local + e] = {name}_old[{name}_local + e];"));
                }
            }
        }
    }
    for term in &body.terms {
        parameters.push(format!("{} *{}_term", scratch.ty(&term.ty), Printer::safe(&term.name)));
    }
    if printer.can_fail {
        parameters.push("unsigned *status".into());
    }
    parameters.push("Params p".into());
    let entry = Printer::safe(&body.name);
    text.push_str(&format!("extern \"C\" __global__ void {entry}({}) {{\n", parameters.join(", ")));
    text.push_str(
        "    unsigned item = blockIdx.x * blockDim.x + threadIdx.x;\n    if (item >= p.count) return;\n",
    );
    text.push_str("    unsigned failed = 0, present = 0;\n");
    if printer.uses_index || !rows.is_empty() {
        let ty = scratch.ty(&body.locals[0].ty);
        let name = printer.index_name();
        text.push_str("    unsigned long long number = ((unsigned long long)p.first_high << 32) + p.first_low + item;\n");
        text.push_str(&format!("    {ty} {name} = p.loop_start + ({ty})number;\n"));
        for number in &rows {
            let slice = Printer::safe(&body.slices[*number].name);
            let (width, base) = match layout.constant_rows[*number] {
                Some((width, base)) => (
                    format!("{width}ull"),
                    format!("{} {}ull", if base < 0 { "-" } else { "+" }, base.unsigned_abs()),
                ),
                None => (format!("p.{slice}_width"), format!("+ p.{slice}_base")),
            };
            text.push_str(&format!("    unsigned long long {slice}_width = {width};\n"));
            text.push_str(&format!(
                "    unsigned long long {slice}_row = {slice}_width * (unsigned long long){name} {base};\n"
            ));
            text.push_str(&format!("    unsigned long long {slice}_local = {slice}_width * item;\n"));
        }
    }
    for copy in copies {
        text.push_str(&copy);
        text.push('\n');
    }
    text.push_str(&printer.lines.join("\n"));
    if printer.can_fail {
        text.push_str("\n    status[item] = failed | present;");
    }
    text.push_str("\n}\n");
    Source { text, needs: printer.needs }
}
