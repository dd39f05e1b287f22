//! The kernels of the suite, each with three bodies. Workers of this program can make them too.

use std::borrow::Cow;

use evener_device::{BoxError, Features, Kernel, Launch, Module, kernel_fn};

/// CUDA C for the suite's kernels.
pub(crate) trait WithCuda {
    fn with_cuda(self, source: impl Into<Cow<'static, str>>) -> Kernel;
}

impl WithCuda for Kernel {
    #[allow(unsafe_code)]
    fn with_cuda(self, source: impl Into<Cow<'static, str>>) -> Kernel {
        // SAFETY: the trials launch each kernel with buffers that have an element for each thread, or for each of the
        // threads that a parameter allows.
        unsafe { self.cuda(source) }
    }
}

/// Returns one kernel of each kind.
pub(crate) fn all() -> Vec<Kernel> {
    let [reverse_blocks, add_width] = module(64);
    vec![
        reverse_blocks,
        add_width,
        triple(),
        both(),
        count(),
        spin(),
        extent(),
        reverse(64),
        shared_sum(1024),
        gather(8),
        sum_params(32),
        wide_product(false),
    ]
}

kernel_fn! {
    /// `out[i] = in[i] * 3 + 1` for the first `count` elements, in steps of the whole launch.
    pub(crate) fn triple() -> Kernel {
        Kernel::new("triple")
            .reads::<u32>()
            .writes::<u32>()
            .params::<[u32; 2]>()
            .workgroup(64)
            .with_cuda(
                r#"
                struct Params { unsigned count, addend; };
                extern "C" __global__ void triple(const unsigned *in, unsigned *out, Params p) {
                    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += gridDim.x * blockDim.x)
                        out[i] = in[i] * 3 + p.addend;
                }"#,
            )
            .wgsl(
                r#"
                struct Params { count: u32, addend: u32 }
                var<immediate> p: Params;
                @group(0) @binding(0) var<storage, read> input: array<u32>;
                @group(0) @binding(1) var<storage, read_write> output: array<u32>;
                @compute @workgroup_size(64)
                fn triple(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
                    for (var i = id.x; i < p.count; i += n.x * 64u) { output[i] = input[i] * 3u + p.addend; }
                }"#,
            )
            .rust(|launch| {
                let [count, addend] = launch.params::<[u32; 2]>()?;
                let (input, output) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
                for (output, input) in output.iter_mut().zip(input).take(count as usize) {
                    *output = input.wrapping_mul(3).wrapping_add(addend);
                }
                Ok(())
            })
    }
}

kernel_fn! {
    /// `sum[i] = a[i] + b[i]` and `difference[i] = b[i] - a[i]` for the first `count` elements, one per thread.
    pub(crate) fn both() -> Kernel {
        Kernel::new("both")
            .reads::<u32>()
            .writes::<u32>()
            .reads::<u32>()
            .writes::<u32>()
            .params::<u32>()
            .workgroup(64)
            .with_cuda(
                r#"extern "C" __global__ void both(
                    const unsigned *a, unsigned *sum, const unsigned *b, unsigned *difference, unsigned count) {
                    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
                    if (i < count) { sum[i] = a[i] + b[i]; difference[i] = b[i] - a[i]; }
                }"#,
            )
            .wgsl(
                r#"
                var<immediate> count: u32;
                @group(0) @binding(0) var<storage, read> a: array<u32>;
                @group(0) @binding(1) var<storage, read_write> sum: array<u32>;
                @group(0) @binding(2) var<storage, read> b: array<u32>;
                @group(0) @binding(3) var<storage, read_write> difference: array<u32>;
                @compute @workgroup_size(64)
                fn both(@builtin(global_invocation_id) id: vec3<u32>) {
                    let i = id.x;
                    if (i < count) { sum[i] = a[i] + b[i]; difference[i] = b[i] - a[i]; }
                }"#,
            )
            .rust(|launch| {
                let count = launch.params::<u32>()? as usize;
                let (a, b) = (launch.read::<u32>(0)?, launch.read::<u32>(2)?);
                let (sum, difference) = (launch.write::<u32>(1)?, launch.write::<u32>(3)?);
                for i in 0..count {
                    sum[i] = a[i] + b[i];
                    difference[i] = b[i] - a[i];
                }
                Ok(())
            })
    }
}

/// Two kernels of one module: one reverses blocks of `width` elements, one block per workgroup; the other adds `width` to
/// each element.
pub(crate) fn module(width: u32) -> [Kernel; 2] {
    [reverse_blocks(width), add_width(width)]
}

#[allow(unsafe_code)]
fn module_kernel(entry: &'static str, width: u32) -> Kernel {
    let module = Module::new().constant("WIDTH", width).define("INDEX", "blockIdx.x * WIDTH + threadIdx.x").wgsl(
        r#"
        override WIDTH: u32;
        override UNUSED: u32 = 3;
        var<workgroup> together: array<u32, WIDTH>;
        @group(0) @binding(0) var<storage, read_write> data: array<u32>;
        @compute @workgroup_size(WIDTH)
        fn reverse_blocks(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) i: u32) {
            together[i] = data[id.x];
            workgroupBarrier();
            data[id.x] = together[WIDTH - 1 - i];
        }
        @compute @workgroup_size(WIDTH)
        fn add_width(@builtin(global_invocation_id) id: vec3<u32>) { data[id.x] += WIDTH; }"#,
    );
    let module = module.include("index.h", "static __device__ unsigned own() { return INDEX; }\n");
    // SAFETY: the trial launches one thread per element.
    let module = unsafe {
        module.cuda(
            r#"
            #include "index.h"
            extern "C" __global__ void reverse_blocks(unsigned *data) {
                __shared__ unsigned together[WIDTH];
                together[threadIdx.x] = data[own()];
                __syncthreads();
                data[own()] = together[WIDTH - 1 - threadIdx.x];
            }
            extern "C" __global__ void add_width(unsigned *data) { data[own()] += WIDTH; }"#,
        )
    };
    module.kernel(entry).writes::<u32>().workgroup(width)
}

kernel_fn! {
    fn reverse_blocks(width: u32) -> Kernel {
        module_kernel("reverse_blocks", width).rust(move |launch| {
            launch.write::<u32>(0)?.chunks_exact_mut(width as usize).for_each(<[u32]>::reverse);
            Ok(())
        })
    }

    fn add_width(width: u32) -> Kernel {
        module_kernel("add_width", width).rust(move |launch| {
            launch.write::<u32>(0)?.iter_mut().for_each(|element| *element += width);
            Ok(())
        })
    }
}

kernel_fn! {
    /// Each of the first `count` workgroups, counted over all dimensions, adds one to its own element.
    pub(crate) fn count() -> Kernel {
        Kernel::new("count")
            .writes::<u32>()
            .params::<u32>()
            .workgroup(1)
            .with_cuda(
                r#"extern "C" __global__ void count(unsigned *seen, unsigned limit) {
                    unsigned group = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
                    if (group < limit) seen[group]++;
                }"#,
            )
            .wgsl(
                r#"
                var<immediate> limit: u32;
                @group(0) @binding(0) var<storage, read_write> seen: array<u32>;
                @compute @workgroup_size(1)
                fn count(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
                    let group = id.x + n.x * (id.y + n.y * id.z);
                    if (group < limit) { seen[group]++; }
                }"#,
            )
            .rust(|launch| {
                let count = launch.params::<u32>()?.min(launch.threads() as u32) as usize;
                launch.write::<u32>(0)?[..count].iter_mut().for_each(|times| *times += 1);
                Ok(())
            })
    }
}

/// Steps of one round of `spin`.
pub(crate) const ROUND: u32 = 64;

/// Maximum rounds of one launch of `spin`: Mesa's software Vulkan ends any loop after 65,535 iterations.
pub(crate) const MAX_ROUNDS: u32 = 60_000;

kernel_fn! {
    /// Puts `data[0]` through rounds of steps x = x * x + 1: slow, with a known result.
    pub(crate) fn spin() -> Kernel {
        let steps = |step: &str| step.repeat(ROUND as usize);
        Kernel::new("spin")
            .writes::<u32>()
            .params::<u32>()
            .workgroup(1)
            .with_cuda(format!(
                r#"extern "C" __global__ void spin(unsigned *data, unsigned rounds) {{
                    unsigned x = data[0];
                    for (unsigned i = 0; i < rounds; i++) {{ {} }}
                    data[0] = x;
                }}"#,
                steps("x = x * x + 1;")
            ))
            .wgsl(format!(
                r#"
                var<immediate> rounds: u32;
                @group(0) @binding(0) var<storage, read_write> data: array<u32>;
                @compute @workgroup_size(1)
                fn spin() {{
                    var x = data[0];
                    for (var i = 0u; i < rounds; i++) {{ {} }}
                    data[0] = x;
                }}"#,
                steps("x = x * x + 1u;")
            ))
            .rust(|launch| {
                let (rounds, data) = (launch.params::<u32>()?, launch.write::<u32>(0)?);
                data[0] = spun(data[0], rounds);
                Ok(())
            })
    }
}

/// The result of `spin`.
pub(crate) fn spun(first: u32, rounds: u32) -> u32 {
    (0..rounds * ROUND).fold(first, |x, _| std::hint::black_box(x).wrapping_mul(x).wrapping_add(1))
}

kernel_fn! {
    /// The last workgroup of a launch writes the number of workgroups in each dimension.
    pub(crate) fn extent() -> Kernel {
        Kernel::new("extent")
            .writes::<u32>()
            .workgroup(1)
            .with_cuda(
                r#"extern "C" __global__ void extent(unsigned *out) {
                    if (blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1 && blockIdx.z == gridDim.z - 1) {
                        out[0] = blockIdx.x + 1; out[1] = blockIdx.y + 1; out[2] = blockIdx.z + 1;
                    }
                }"#,
            )
            .wgsl(
                r#"
                @group(0) @binding(0) var<storage, read_write> output: array<u32>;
                @compute @workgroup_size(1)
                fn extent(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
                    if (id.x == n.x - 1u && id.y == n.y - 1u && id.z == n.z - 1u) {
                        output[0] = id.x + 1u; output[1] = id.y + 1u; output[2] = id.z + 1u;
                    }
                }"#,
            )
            .rust(|launch| {
                let groups = launch.groups();
                launch.write::<u32>(0)?.copy_from_slice(&groups);
                Ok(())
            })
    }
}

kernel_fn! {
    /// A workgroup of `threads` threads reverses as many numbers through shared memory.
    pub(crate) fn reverse(threads: u32) -> Kernel {
        Kernel::new("reverse")
            .writes::<u32>()
            .workgroup(threads)
            .shared_bytes(threads * 4)
            .with_cuda(
                r#"extern "C" __global__ void reverse(unsigned *data) {
                    extern __shared__ unsigned shared[];
                    shared[threadIdx.x] = data[threadIdx.x];
                    __syncthreads();
                    data[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
                }"#,
            )
            .wgsl(format!(
                r#"
                var<workgroup> shared_words: array<u32, {threads}>;
                @group(0) @binding(0) var<storage, read_write> data: array<u32>;
                @compute @workgroup_size({threads})
                fn reverse(@builtin(local_invocation_index) i: u32) {{
                    shared_words[i] = data[i];
                    workgroupBarrier();
                    data[i] = shared_words[{threads}u - 1u - i];
                }}"#
            ))
            .rust(|launch| {
                launch.write::<u32>(0)?.reverse();
                Ok(())
            })
    }
}

kernel_fn! {
    /// One thread fills `bytes` of shared memory, and writes the sum of the values.
    pub(crate) fn shared_sum(bytes: u32) -> Kernel {
        let words = bytes / 4;
        Kernel::new("shared_sum")
            .writes::<u32>()
            .params::<u32>()
            .workgroup(1)
            .shared_bytes(bytes)
            .with_cuda(
                r#"extern "C" __global__ void shared_sum(unsigned *out, unsigned words) {
                    extern __shared__ unsigned shared[];
                    for (unsigned i = 0; i < words; i++) shared[i] = i * i;
                    __syncthreads();
                    unsigned sum = 0;
                    for (unsigned i = 0; i < words; i++) sum += shared[words - 1 - i];
                    out[0] = sum;
                }"#,
            )
            .wgsl(format!(
                r#"
                var<immediate> words: u32;
                var<workgroup> shared_words: array<u32, {words}>;
                @group(0) @binding(0) var<storage, read_write> output: array<u32>;
                @compute @workgroup_size(1)
                fn shared_sum() {{
                    for (var i = 0u; i < words; i++) {{ shared_words[i] = i * i; }}
                    workgroupBarrier();
                    var sum = 0u;
                    for (var i = 0u; i < words; i++) {{ sum += shared_words[words - 1u - i]; }}
                    output[0] = sum;
                }}"#
            ))
            .rust(|launch| {
                let words = launch.params::<u32>()?;
                launch.write::<u32>(0)?[0] = (0..words).fold(0u32, |sum, i| sum.wrapping_add(i.wrapping_mul(i)));
                Ok(())
            })
    }
}

kernel_fn! {
    /// Adds the first elements of `count - 1` buffers into the last one.
    pub(crate) fn gather(count: u32) -> Kernel {
        let parameters: String = (0..count - 1).map(|i| format!("const unsigned *b{i}, ")).collect();
        let sum: String = (0..count - 1).map(|i| format!(" + b{i}[0]")).collect();
        let bindings: String = (0..count - 1)
            .map(|i| format!("@group(0) @binding({i}) var<storage, read> b{i}: array<u32>;\n"))
            .collect();
        let mut kernel = Kernel::new("gather");
        for _ in 0..count - 1 {
            kernel = kernel.reads::<u32>();
        }
        kernel
            .writes::<u32>()
            .workgroup(1)
            .with_cuda(format!(
                r#"extern "C" __global__ void gather({parameters}unsigned *out) {{ out[0] = 0{sum}; }}"#
            ))
            .wgsl(format!(
                "{bindings}@group(0) @binding({}) var<storage, read_write> output: array<u32>;
                @compute @workgroup_size(1) fn gather() {{ output[0] = 0u{sum}; }}",
                count - 1
            ))
            .rust(move |launch| {
                let mut sum = 0u32;
                for index in 0..count as usize - 1 {
                    sum = sum.wrapping_add(launch.read::<u32>(index)?[0]);
                }
                launch.write::<u32>(count as usize - 1)?[0] = sum;
                Ok(())
            })
    }
}

kernel_fn! {
    /// Writes the sum of all its parameters: 1, 32 or 2048 of them.
    pub(crate) fn sum_params(words: u32) -> Kernel {
        match words {
            1 => sum_params_of::<1>(),
            32 => sum_params_of::<32>(),
            _ => sum_params_of::<2048>(),
        }
    }
}

fn sum_params_of<const WORDS: usize>() -> Kernel
where
    [u32; WORDS]: bytemuck::Pod,
{
    Kernel::new("sum_params")
        .writes::<u32>()
        .params::<[u32; WORDS]>()
        .workgroup(1)
        .with_cuda(format!(
            r#"struct Params {{ unsigned words[{WORDS}]; }};
            extern "C" __global__ void sum_params(unsigned *out, Params p) {{
                unsigned sum = 0;
                for (int i = 0; i < {WORDS}; i++) sum += p.words[i];
                out[0] = sum;
            }}"#
        ))
        .wgsl(format!(
            "struct Params {{ {} }}
            var<immediate> p: Params;
            @group(0) @binding(0) var<storage, read_write> output: array<u32>;
            @compute @workgroup_size(1) fn sum_params() {{ output[0] = 0u{}; }}",
            (0..WORDS).map(|i| format!("w{i}: u32, ")).collect::<String>(),
            (0..WORDS).map(|i| format!(" + p.w{i}")).collect::<String>()
        ))
        .rust(|launch| {
            launch.write::<u32>(0)?[0] = launch.params::<[u32; WORDS]>()?.iter().sum();
            Ok(())
        })
}

kernel_fn! {
    /// `(low, high)` of the 128-bit product of each pair of 64-bit numbers, which are pairs of words, low first. The WGSL
    /// uses 64-bit integers if the device has them, and 32-bit integers otherwise.
    pub(crate) fn wide_product(only_fallback: bool) -> Kernel {
        let kernel = Kernel::new("wide_product").reads::<[u32; 4]>().writes::<[u32; 4]>().workgroup(64);
        let kernel = if only_fallback { kernel } else { kernel.wgsl_with(Features::INT64, WIDE_PRODUCT_U64) };
        kernel
            .wgsl(WIDE_PRODUCT_U32)
            .with_cuda(
                r#"
                typedef unsigned long long u64;
                extern "C" __global__ void wide_product(const ulonglong2 *in, ulonglong2 *out) {
                    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
                    u64 a = in[i].x, b = in[i].y;
                    out[i] = make_ulonglong2(a * b, __umul64hi(a, b));
                }"#,
            )
            .rust(|launch| {
                let (input, output) = (launch.read::<[u32; 4]>(0)?, launch.write::<[u32; 4]>(1)?);
                for (output, input) in output.iter_mut().zip(input) {
                    *output = wide(*input);
                }
                Ok(())
            })
    }
}

/// The result of `wide_product`.
pub(crate) fn wide([a, b, c, d]: [u32; 4]) -> [u32; 4] {
    let join = |low: u32, high: u32| u128::from(low) | u128::from(high) << 32;
    let product = join(a, b) * join(c, d);
    std::array::from_fn(|word| (product >> (32 * word)) as u32)
}

const WIDE_PRODUCT_U64: &str = r#"
    @group(0) @binding(0) var<storage, read> input: array<vec4<u32>>;
    @group(0) @binding(1) var<storage, read_write> output: array<vec4<u32>>;
    @compute @workgroup_size(64)
    fn wide_product(@builtin(global_invocation_id) id: vec3<u32>) {
        let v = input[id.x];
        let mask = 0xFFFFFFFFlu;
        let a = u64(v.x); let b = u64(v.y); let c = u64(v.z); let d = u64(v.w);
        let low = a * c;
        let first = b * c + (low >> 32u);
        let second = a * d + (first & mask);
        let high = b * d + (first >> 32u) + (second >> 32u);
        output[id.x] = vec4<u32>(u32(low & mask), u32(second & mask), u32(high & mask), u32(high >> 32u));
    }"#;

const WIDE_PRODUCT_U32: &str = r#"
    @group(0) @binding(0) var<storage, read> input: array<vec4<u32>>;
    @group(0) @binding(1) var<storage, read_write> output: array<vec4<u32>>;

    // The 64-bit product of two words, low and high.
    fn product(a: u32, b: u32) -> vec2<u32> {
        let al = a & 0xFFFFu; let ah = a >> 16u;
        let bl = b & 0xFFFFu; let bh = b >> 16u;
        let ll = al * bl;
        let middle = ah * bl + (ll >> 16u);
        let rest = al * bh + (middle & 0xFFFFu);
        return vec2<u32>((rest << 16u) | (ll & 0xFFFFu), ah * bh + (middle >> 16u) + (rest >> 16u));
    }

    fn add(a: vec2<u32>, b: u32) -> vec2<u32> {
        let low = a.x + b;
        return vec2<u32>(low, a.y + select(0u, 1u, low < b));
    }

    @compute @workgroup_size(64)
    fn wide_product(@builtin(global_invocation_id) id: vec3<u32>) {
        let v = input[id.x];
        let low = product(v.x, v.z);
        let first = add(product(v.y, v.z), low.y);
        let second = add(product(v.x, v.w), first.x);
        let high = add(add(product(v.y, v.w), first.y), second.y);
        output[id.x] = vec4<u32>(low.x, second.x, high.x, high.y);
    }"#;

type RustBody = fn(&mut Launch<'_>) -> Result<(), BoxError>;

/// Bodies that take a buffer or the parameters as another type than `takes_wrong_type` declares, and their errors.
pub(crate) const WRONG_TYPES: [(RustBody, &str); 6] = [
    (|launch| launch.read::<u32>(0).map(drop), "buffer 0 is declared as f32 and taken as u32"),
    (|launch| launch.read::<[f32; 2]>(0).map(drop), "buffer 0 is declared as f32 and taken as [f32; 2]"),
    (|launch| launch.write::<i32>(1).map(drop), "buffer 1 is declared as u32 and taken as i32"),
    (|launch| launch.read::<i32>(1).map(drop), "buffer 1 is declared as u32 and taken as i32"),
    (|launch| launch.write::<f32>(0).map(drop), "buffer 0 is declared with `reads`"),
    (|launch| launch.params::<u64>().map(drop), "4 bytes of parameters are declared, and u64 has 8"),
];

kernel_fn! {
    /// One of the bodies of `WRONG_TYPES`.
    pub(crate) fn takes_wrong_type(index: u32) -> Kernel {
        let (body, _) = WRONG_TYPES[index as usize];
        Kernel::new("body").reads::<f32>().writes::<u32>().params::<u32>().rust(body)
    }

    /// Returns an error if the first number is zero, and panics if it is one.
    pub(crate) fn fails() -> Kernel {
        Kernel::new("fails").writes::<u32>().rust(|launch| match launch.write::<u32>(0)? {
            [0, ..] => Err("the first number is zero".into()),
            [1, ..] => panic!("the first number is one"),
            _ => Ok(()),
        })
    }
}
