// Adds up the shares of buckets that several segments have, in a binary tree over the segments. Follows the group law and
// `params.wgsl`.
//
// A node of level l is 2^l segments. When its halves are merged, at most one bucket crosses the middle. Its share in the
// right half is at `partials[middle]`. Its share in the left half is at `partials[first segment of the node]` if the bucket
// began before the node, otherwise at `partials[segments + the segment in which it began]`; the sum replaces it, or is
// written to `buckets` if the node has the whole bucket. A launch computes some levels: each workgroup the nodes below one
// node of the last of these levels.

@group(0) @binding(0) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> info: array<u32>;
@group(0) @binding(2) var<storage, read> firsts: array<u32>;
@group(0) @binding(3) var<storage, read_write> partials: array<G1Xyzz>;
@group(0) @binding(4) var<storage, read_write> buckets: array<G1Xyzz>;

@compute @workgroup_size(TREE_GROUP)
fn merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let total = info[1];
    let length = segment_length(total, params.segments);
    let base = group.x << (params.level + params.levels);
    for (var level = params.level; level < params.level + params.levels; level++) {
        let pairs = 1u << (params.level + params.levels - 1u - level);
        for (var pair = thread; pair < pairs; pair += TREE_GROUP) {
            let first = base + (pair << (level + 1u));
            let middle = first + (1u << level);
            if (middle >= params.segments || middle * length >= total) { continue; }
            let run = firsts[middle];
            let current = runs[run];
            if (current.x >= middle * length) { continue; }
            let began_before = current.x < first * length;
            var left = first;
            if (!began_before) { left = params.segments + current.x / length; }
            let sum = g1_add(partials[left], partials[middle]);
            let last_segment = (runs[run + 1u].x - 1u) / length;
            if (!began_before && last_segment < middle + (1u << level)) {
                buckets[current.y] = sum;
            } else {
                partials[left] = sum;
            }
        }
        storageBarrier();
    }
}
