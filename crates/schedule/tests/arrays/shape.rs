//! A kernel generated for any number of inputs, outputs and tables, and the equivalent plain loop.

use std::fmt::Write;

use bytemuck::{Pod, Zeroable};
use evener_device::{BoxError, Kernel, Launch};
use evener_schedule::{Arrays, KernelParams, KernelTask};

use crate::common::Rng;

/// The kernel's parameters.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) chunk: KernelParams,
    pub(crate) factor: u32,
    pub(crate) shift: u32,
}

/// An input: a number of elements per item, each of one or four bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input {
    width: usize,
    is_bytes: bool,
}

/// The inputs, outputs and tables of a kernel.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    inputs: Vec<Input>,
    tables: Vec<usize>,
    outputs: Vec<usize>,
}

/// An input's elements.
#[derive(Debug, Clone)]
enum Elements {
    Bytes(Vec<u8>),
    Words(Vec<u32>),
}

/// The arrays of a run.
#[derive(Debug, Clone)]
pub(crate) struct Data {
    inputs: Vec<Elements>,
    pub(crate) tables: Vec<Vec<u32>>,
}

impl Shape {
    /// Up to three inputs and tables, and one to three outputs.
    pub(crate) fn random(rng: &mut Rng) -> Shape {
        let inputs =
            (0..rng.below(4)).map(|_| Input { width: 1 + rng.below(5), is_bytes: rng.below(3) == 0 });
        let inputs = inputs.collect();
        let tables = (0..rng.below(3)).map(|_| 1 + rng.below(100)).collect();
        let outputs = (0..1 + rng.below(3)).map(|_| 1 + rng.below(4)).collect();
        Shape { inputs, tables, outputs }
    }

    pub(crate) fn data(&self, items: usize, rng: &mut Rng) -> Data {
        let mut elements = |input: &Input| match input.is_bytes {
            true => Elements::Bytes((0..items * input.width).map(|_| rng.next() as u8).collect()),
            false => Elements::Words((0..items * input.width).map(|_| rng.next() as u32).collect()),
        };
        let inputs = self.inputs.iter().map(&mut elements).collect();
        let tables = self.tables.iter().map(|&len| (0..len).map(|_| rng.next() as u32).collect()).collect();
        Data { inputs, tables }
    }

    /// Output arrays, filled with a value that no result is likely to be.
    pub(crate) fn places(&self, items: usize) -> Vec<Vec<u32>> {
        self.outputs.iter().map(|width| vec![0xDEAD_BEEF; items * width]).collect()
    }

    /// The results of a plain loop.
    pub(crate) fn plain(&self, data: &Data, items: usize, params: Params) -> Vec<Vec<u32>> {
        let rows = |(output, &width): (usize, &usize)| {
            let places = (0..items).flat_map(|item| (0..width).map(move |column| (item, column)));
            let value = |(item, column): (usize, usize)| {
                let read = |input: usize, place: usize| match &data.inputs[input] {
                    Elements::Bytes(bytes) => u32::from(bytes[place]),
                    Elements::Words(words) => words[place],
                };
                let table = |table: usize, place: usize| data.tables[table][place];
                self.value(params, output, item as u32, column, item, read, table)
            };
            places.map(value).collect()
        };
        self.outputs.iter().enumerate().map(rows).collect()
    }

    /// One result of an item, by its number in the run and in its chunk.
    #[expect(clippy::too_many_arguments, reason = "all that goes into a result")]
    fn value(
        &self,
        params: Params,
        output: usize,
        number: u32,
        column: usize,
        item: usize,
        read: impl Fn(usize, usize) -> u32,
        look_up: impl Fn(usize, usize) -> u32,
    ) -> u32 {
        let place = number.wrapping_add(7 * output as u32 + column as u32);
        let mut sum = place.wrapping_mul(params.factor).wrapping_add(params.shift);
        for (input, it) in self.inputs.iter().enumerate() {
            let element = read(input, item * it.width + column % it.width);
            sum = sum.wrapping_add(element.wrapping_mul(input as u32 + 1));
        }
        for (table, &len) in self.tables.iter().enumerate() {
            sum = sum.rotate_left(1) ^ look_up(table, (number as usize + column) % len);
        }
        sum
    }

    /// The same in the language of a device: the statements of one item, `i` in its chunk and `g` in the run.
    fn statements(&self, wgsl: bool) -> String {
        let (var, u) = if wgsl { ("var", "u32") } else { ("unsigned", "unsigned") };
        let mut text = String::new();
        for (output, width) in self.outputs.iter().enumerate() {
            let add = 7 * output;
            writeln!(text, "for ({var} j = 0u; j < {width}u; j++) {{").unwrap();
            writeln!(text, "  {var} sum = (g + {add}u + j) * p.factor + p.shift;").unwrap();
            for (input, it) in self.inputs.iter().enumerate() {
                let place = format!("i * {}u + j % {}u", it.width, it.width);
                let element = match (it.is_bytes, wgsl) {
                    (false, _) => format!("in{input}[{place}]"),
                    (true, false) => format!("{u}(in{input}[{place}])"),
                    (true, true) => {
                        format!("((in{input}[({place}) / 4u] >> (8u * (({place}) % 4u))) & 255u)")
                    }
                };
                writeln!(text, "  sum = sum + {element} * {}u;", input + 1).unwrap();
            }
            for (table, len) in self.tables.iter().enumerate() {
                writeln!(text, "  sum = ((sum << 1u) | (sum >> 31u)) ^ table{table}[(g + j) % {len}u];")
                    .unwrap();
            }
            writeln!(text, "  out{output}[i * {width}u + j] = sum;\n}}").unwrap();
        }
        text
    }

    fn wgsl(&self) -> String {
        let mut text =
            "struct Params { first: vec2<u32>, count: u32, padding: u32, factor: u32, shift: u32 }\n\
                        var<immediate> p: Params;\n"
                .to_owned();
        let inputs = (0..self.inputs.len()).map(|input| ("read", format!("in{input}")));
        let tables = (0..self.tables.len()).map(|table| ("read", format!("table{table}")));
        let outputs = (0..self.outputs.len()).map(|output| ("read_write", format!("out{output}")));
        for (binding, (access, name)) in inputs.chain(tables).chain(outputs).enumerate() {
            let declared = format!("var<storage, {access}> {name}: array<u32>");
            writeln!(text, "@group(0) @binding({binding}) {declared};").unwrap();
        }
        let statements = self.statements(true);
        text + &format!(
            "@compute @workgroup_size(64) fn combine(@builtin(global_invocation_id) id: vec3<u32>) {{
                let i = id.x;
                if (i >= p.count) {{ return; }}
                let g = p.first.x + i;\n{statements}\n}}"
        )
    }

    fn cuda(&self) -> String {
        let input = |(index, it): (usize, &Input)| {
            format!("const unsigned {}*in{index}", if it.is_bytes { "char " } else { "" })
        };
        let mut arguments: Vec<String> = self.inputs.iter().enumerate().map(input).collect();
        arguments.extend((0..self.tables.len()).map(|table| format!("const unsigned *table{table}")));
        arguments.extend((0..self.outputs.len()).map(|output| format!("unsigned *out{output}")));
        let (arguments, statements) = (arguments.join(", "), self.statements(false));
        format!(
            "struct Params {{ unsigned first[2], count, padding, factor, shift; }};
            extern \"C\" __global__ void combine({arguments}, Params p) {{
                unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
                if (i >= p.count) return;
                unsigned g = p.first[0] + i;\n{statements}\n}}"
        )
    }

    fn rust(&self, launch: &mut Launch<'_>) -> Result<(), BoxError> {
        let params: Params = launch.params()?;
        let mut inputs: Vec<(&[u8], &[u32])> = Vec::new();
        for (index, input) in self.inputs.iter().enumerate() {
            inputs.push(match input.is_bytes {
                true => (launch.read(index)?, &[]),
                false => (&[], launch.read(index)?),
            });
        }
        let first = self.inputs.len();
        let tables = (0..self.tables.len()).map(|index| launch.read::<u32>(first + index));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        let first = first + tables.len();
        for (output, &width) in self.outputs.iter().enumerate() {
            let results = launch.write::<u32>(first + output)?;
            for (item, row) in results.chunks_mut(width).take(params.chunk.count as usize).enumerate() {
                let number = params.chunk.first[0] + item as u32;
                for (column, result) in row.iter_mut().enumerate() {
                    let read = |input: usize, place: usize| match self.inputs[input].is_bytes {
                        true => u32::from(inputs[input].0[place]),
                        false => inputs[input].1[place],
                    };
                    let look_up = |table: usize, place: usize| tables[table][place];
                    *result = self.value(params, output, number, column, item, read, look_up);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn kernel(&self) -> Kernel {
        let shape = self.clone();
        let kernel = Kernel::new("combine").workgroup(64).wgsl(self.wgsl());
        let kernel = kernel.rust(move |launch| shape.rust(launch));
        // SAFETY: an item writes its own row of each output, and reads its own row of each input; threads past the last
        // item do nothing. The tables have the lengths that the source was generated for.
        #[allow(unsafe_code)]
        unsafe {
            kernel.cuda(self.cuda())
        }
    }

    pub(crate) fn task(&self, data: &Data) -> KernelTask<(), (), Params> {
        let mut task = KernelTask::arrays(&self.kernel()).parameters(Params::default());
        for input in &self.inputs {
            task = match input.is_bytes {
                true => task.input_rows::<u8>(input.width),
                false => task.input_rows::<u32>(input.width),
            };
        }
        for (index, table) in data.tables.iter().enumerate() {
            task = task.table(&format!("table {index}"), table.clone());
        }
        self.outputs.iter().fold(task, |task, &width| task.output_rows::<u32>(width))
    }
}

impl Data {
    pub(crate) fn arrays<'a>(&'a self, places: &'a mut [Vec<u32>]) -> Arrays<'a> {
        let add = |arrays: Arrays<'a>, input: &'a Elements| match input {
            Elements::Bytes(bytes) => arrays.input(bytes),
            Elements::Words(words) => arrays.input(words),
        };
        let arrays = self.inputs.iter().fold(Arrays::new(), add);
        places.iter_mut().fold(arrays, |arrays, place| arrays.output(place))
    }
}
