// The constraints of a circuit, and their quotient. Follows the arithmetic of `Fr`; constraints.cu is the same in CUDA C.

struct Params {
    count: u32,
    // Constraints whose product is compared with C.
    checked: u32,
    padding: array<u32, 2>,
}
var<immediate> params: Params;

fn thread_index(thread: u32, group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return (group.x + groups.x * (group.y + groups.y * group.z)) * GROUP + thread;
}

@compute @workgroup_size(GROUP)
fn ENTRY(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let index = thread_index(thread, group, groups);
    if (index < params.count) { work(index); }
}

//! add_terms
// Adds up the terms of a segment of a row.
@group(0) @binding(0) var<storage, read> wires: array<Fr>;
@group(0) @binding(1) var<storage, read> starts: array<u32>;
@group(0) @binding(2) var<storage, read> columns: array<u32>;
@group(0) @binding(3) var<storage, read> values: array<Fr>;
@group(0) @binding(4) var<storage, read_write> sums: array<Fr>;

fn work(index: u32) {
    let end = starts[index + 1u];
    var sum = fr_zero();
    for (var term = starts[index]; term < end; term++) {
        sum = fr_add(sum, fr_mul(values[term], wires[columns[term]]));
    }
    sums[index] = sum;
}

//! add_segments
// Adds up the segments of a row.
@group(0) @binding(0) var<storage, read> segments: array<Fr>;
@group(0) @binding(1) var<storage, read> starts: array<u32>;
@group(0) @binding(2) var<storage, read_write> sums: array<Fr>;

fn work(index: u32) {
    let end = starts[index + 1u];
    var sum = fr_zero();
    for (var segment = starts[index]; segment < end; segment++) { sum = fr_add(sum, segments[segment]); }
    sums[index] = sum;
}

//! multiply_sides
// Writes a * b to c. Counts where c was something else, and finds the first such place.
@group(0) @binding(0) var<storage, read> a: array<Fr>;
@group(0) @binding(1) var<storage, read> b: array<Fr>;
@group(0) @binding(2) var<storage, read_write> c: array<Fr>;
@group(0) @binding(3) var<storage, read_write> failed: array<atomic<u32>>;

fn work(index: u32) {
    let product = fr_mul(a[index], b[index]);
    if (index < params.checked && !fr_eq(product, c[index])) {
        atomicAdd(&failed[0], 1u);
        atomicMin(&failed[1], index);
    }
    c[index] = product;
}

//! quotient
// Writes a * b - c to a.
@group(0) @binding(0) var<storage, read_write> a: array<Fr>;
@group(0) @binding(1) var<storage, read> b: array<Fr>;
@group(0) @binding(2) var<storage, read> c: array<Fr>;

fn work(index: u32) {
    a[index] = fr_sub(fr_mul(a[index], b[index]), c[index]);
}
