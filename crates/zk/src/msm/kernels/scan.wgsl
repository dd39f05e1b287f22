// Computes the offset of each bucket's entries. Follows `params.wgsl`. The bindings of each kernel are declared before it.

const GROUP = 256u;
const ITEMS = 8u;

var<workgroup> shared_sums: array<vec2<u32>, GROUP>;

// Adds up the elements of all threads before this one. The last element of `shared_sums` is the sum of all.
fn exclusive_sum(thread: u32, own: vec2<u32>) -> vec2<u32> {
    shared_sums[thread] = own;
    workgroupBarrier();
    for (var distance = 1u; distance < GROUP; distance *= 2u) {
        var before = vec2<u32>(0u);
        if (thread >= distance) { before = shared_sums[thread - distance]; }
        workgroupBarrier();
        shared_sums[thread] += before;
        workgroupBarrier();
    }
    return shared_sums[thread] - own;
}
//! sum_counters
@group(0) @binding(0) var<storage, read> counters: array<u32>;
@group(0) @binding(1) var<storage, read_write> sums: array<vec2<u32>>;

// For each group of GROUP * ITEMS buckets: the number of digits, and of buckets with any.
@compute @workgroup_size(256)
fn sum_counters(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = (group.x * GROUP + thread) * ITEMS;
    var own = vec2<u32>(0u);
    for (var bucket = first; bucket < min(first + ITEMS, params.buckets); bucket++) {
        let digits = counters[bucket];
        own += vec2<u32>(digits, u32(digits > 0u));
    }
    exclusive_sum(thread, own);
    if (thread == GROUP - 1u) { sums[group.x] = shared_sums[GROUP - 1u]; }
}
//! scan_sums
@group(0) @binding(0) var<storage, read_write> sums: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> info: array<u32>;
@group(0) @binding(2) var<storage, read_write> runs: array<vec2<u32>>;

// One workgroup: turns the sums of all groups, at most GROUP * ITEMS, into the sums of the groups before them. `info` is
// the number of runs and of entries.
@compute @workgroup_size(256)
fn scan_sums(@builtin(local_invocation_index) thread: u32) {
    let groups = (params.buckets + GROUP * ITEMS - 1u) / (GROUP * ITEMS);
    let first = thread * ITEMS;
    let end = min(first + ITEMS, groups);
    var own = vec2<u32>(0u);
    for (var group = first; group < end; group++) { own += sums[group]; }
    var before = exclusive_sum(thread, own);
    for (var group = first; group < end; group++) {
        let sum = sums[group];
        sums[group] = before;
        before += sum;
    }
    if (thread == GROUP - 1u) {
        let all = shared_sums[GROUP - 1u];
        info[0] = all.y;
        info[1] = all.x;
        // The end of the last run.
        runs[all.y] = vec2<u32>(all.x, 0u);
    }
}
//! write_offsets
@group(0) @binding(0) var<storage, read> counters: array<u32>;
@group(0) @binding(1) var<storage, read> sums: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> offsets: array<u32>;
@group(0) @binding(3) var<storage, read_write> runs: array<vec2<u32>>;

// Computes the offset of each bucket's entries, and the runs: first entry and bucket of each bucket with entries.
@compute @workgroup_size(256)
fn write_offsets(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = (group.x * GROUP + thread) * ITEMS;
    let end = min(first + ITEMS, params.buckets);
    var own = vec2<u32>(0u);
    for (var bucket = first; bucket < end; bucket++) {
        let digits = counters[bucket];
        own += vec2<u32>(digits, u32(digits > 0u));
    }
    var before = exclusive_sum(thread, own) + sums[group.x];
    for (var bucket = first; bucket < end; bucket++) {
        let digits = counters[bucket];
        offsets[bucket] = before.x;
        if (digits > 0u) {
            runs[before.y] = vec2<u32>(before.x, bucket);
            before += vec2<u32>(digits, 1u);
        }
    }
}
