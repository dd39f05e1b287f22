//! A whole kernel in WGSL.

use super::{MAX_UNROLLED, Source, helpers, print::Printer};
use crate::ir::{Role, Ty};

/// Puts the kernel together.
pub(super) fn kernel(printer: &Printer<'_>) -> Source {
    let (body, layout) = (printer.body, printer.layout);
    let mut scratch = Printer::new(body, layout, printer.language, printer.is_checked);
    let mut text = String::new();
    let mut needs = printer.needs;
    // All rows that the kernel finds by their number, which has 64 bits.
    let copies_rows = |number: &&usize| {
        let width = layout.constant_rows[**number].map(|(width, _)| width);
        body.slices[**number].role == Role::InOut && width.is_none_or(|width| width > MAX_UNROLLED)
    };
    let mut rows = printer.uses_item_rows.clone();
    rows.extend(layout.outputs.iter().filter(copies_rows));
    let mut elements = Printer::new(body, layout, printer.language, printer.is_checked);
    for ty in body.slices.iter().map(|slice| &slice.ty).chain(body.terms.iter().map(|term| &term.ty)) {
        elements.ty(ty);
    }
    needs.int64 |=
        elements.needs.int64 || !rows.is_empty() || printer.uses_index && body.locals[0].ty.bits() == 64;
    needs.float64 |= elements.needs.float64;
    let mut params = String::from(
        "struct Params {\n    first_low: u32,\n    first_high: u32,\n    count: u32,\n    zero: u32,\n",
    );
    for field in &layout.fields {
        let ty = match field.ty {
            Ty::Bool => "u32".to_owned(),
            // Without 64-bit integers, the halves are there and unused.
            ref ty if ty.bits() == 64 && ty.is_int() && !needs.int64 => "vec2<u32>".to_owned(),
            ref ty => scratch.ty(ty),
        };
        params.push_str(&format!("    {}: {ty},\n", Printer::safe(&field.name)));
        needs.float64 |= field.ty == Ty::F64;
    }
    params.push_str("}\nvar<immediate> p: Params;\n");
    for structure in &body.structs {
        let fields: Vec<String> = structure
            .fields
            .iter()
            .map(|(name, ty)| format!("    {}: {},\n", Printer::safe(name), scratch.ty(ty)))
            .collect();
        text.push_str(&format!("struct {} {{\n{}}}\n", Printer::safe(&structure.name), fields.concat()));
    }
    text.push_str(&params);
    let mut binding = 0;
    let mut bind = |text: &mut String, name: &str, access: &str, ty: String| {
        text.push_str(&format!(
            "@group(0) @binding({binding}) var<storage, {access}> {name}: array<{ty}>;\n"
        ));
        binding += 1;
    };
    let mut copies = Vec::new();
    for number in &layout.inputs {
        let slice = &body.slices[*number];
        let name = Printer::safe(&slice.name);
        let name = if slice.role == Role::InOut { format!("{name}_old") } else { name };
        bind(&mut text, &name, "read", scratch.ty(&slice.ty));
    }
    for number in &layout.tables {
        let slice = &body.slices[*number];
        bind(&mut text, &Printer::safe(&slice.name), "read", scratch.ty(&slice.ty));
    }
    for number in &layout.outputs {
        let slice = &body.slices[*number];
        let name = Printer::safe(&slice.name);
        bind(&mut text, &name, "read_write", scratch.ty(&slice.ty));
        if slice.role == Role::InOut {
            match layout.constant_rows[*number] {
                Some((1, _)) => copies.push(format!("    {name}[item] = {name}_old[item];")),
                Some((width, _)) if width <= MAX_UNROLLED => copies.extend((0..width).map(|e| {
                    format!("    {name}[{width}u * item + {e}u] = {name}_old[{width}u * item + {e}u];")
                })),
                _ => {
                    copies.push(format!("    for (var e = 0u; e < u32({name}_width); e++) {{ {name}[{name}_local + e] = {name}_old[{name}_local + e]; }}"));
                }
            }
        }
    }
    for term in &body.terms {
        bind(&mut text, &format!("{}_term", Printer::safe(&term.name)), "read_write", scratch.ty(&term.ty));
    }
    if printer.can_fail {
        bind(&mut text, "status", "read_write", "u32".into());
    }
    text.push_str("var<private> failed: u32;\nvar<private> present: u32;\n");
    text.push('\n');
    for (helper, ty) in &printer.helpers {
        text.push_str(&helpers::wgsl(helper, ty));
    }
    for function in &printer.functions {
        text.push_str(function);
        text.push_str("\n\n");
    }
    let entry = Printer::safe(&body.name);
    text.push_str(&format!(
        "@compute @workgroup_size(64)\nfn {entry}(@builtin(global_invocation_id) id: vec3<u32>) {{\n"
    ));
    text.push_str("    let item = id.x;\n    if (item >= p.count) { return; }\n");
    if printer.uses_index || !rows.is_empty() {
        let ty = body.locals[0].ty.clone();
        let name = printer.index_name();
        if ty.bits() == 64 || !rows.is_empty() {
            text.push_str("    let number = (u64(p.first_high) << 32u) + u64(p.first_low) + u64(item);\n");
        }
        let value = match (ty.bits(), ty.is_signed()) {
            (64, true) => "p.loop_start + i64(number)",
            (64, false) => "p.loop_start + number",
            (_, true) => "p.loop_start + i32(p.first_low) + i32(item)",
            _ => "p.loop_start + p.first_low + item",
        };
        text.push_str(&format!("    let {name} = {value};\n"));
        for number in &rows {
            let slice = Printer::safe(&body.slices[*number].name);
            let (width, base) = match layout.constant_rows[*number] {
                Some((width, base)) => (
                    format!("{width}lu"),
                    format!("{} {}lu", if base < 0 { "-" } else { "+" }, base.unsigned_abs()),
                ),
                None => (format!("p.{slice}_width"), format!("+ p.{slice}_base")),
            };
            let wide = if ty.bits() == 64 { format!("u64({name})") } else { format!("u64(i64({name}))") };
            text.push_str(&format!("    let {slice}_width = {width};\n"));
            text.push_str(&format!("    let {slice}_row = {slice}_width * {wide} {base};\n"));
            text.push_str(&format!("    let {slice}_local = u32({slice}_width) * item;\n"));
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
    Source { text, needs }
}
