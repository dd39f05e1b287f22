// Reduces each set of 2^d buckets to d + 1 sums, in place, in a binary tree over the buckets. Follows the group law and
// `params.wgsl`.
//
// A node of level l is 2^l buckets, at the same 2^l places. Its first l + 1 places are the sum of its buckets, and for each
// k < l the sum of those buckets whose index has bit k set. Two nodes are merged by adding them place by place; the sum of
// the right node's buckets is the new place. The sum of index times bucket is then the sum of 2^k times place k + 1. A
// launch computes some levels: each workgroup the nodes below one node of the last of these levels. The root goes to
// `results`.

@group(0) @binding(0) var<storage, read> counters: array<u32>;
@group(0) @binding(1) var<storage, read_write> buckets: array<G1Xyzz>;
@group(0) @binding(2) var<storage, read_write> results: array<G1Xyzz>;

@compute @workgroup_size(TREE_GROUP)
fn reduce(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let base = group.x << (params.level + params.levels);
    let depth = params.window_bits - 1u;
    for (var level = params.level; level < params.level + params.levels; level++) {
        let log_pairs = params.level + params.levels - 1u - level;
        let places = level + 1u;
        for (var item = thread; item < places << log_pairs; item += TREE_GROUP) {
            let place = item >> log_pairs;
            let first = base + ((item & ((1u << log_pairs) - 1u)) << (level + 1u));
            let middle = first + (1u << level);
            var left = buckets[first + place];
            var right = buckets[middle + place];
            if (level == 0u) {
                // Nothing was written to buckets without entries.
                if (counters[first] == 0u) { left = g1_infinity(); }
                if (counters[middle] == 0u) { right = g1_infinity(); }
            }
            let sum = g1_add(left, right);
            if (level + 1u == depth) {
                let to = (first >> depth) * (depth + 1u);
                results[to + place] = sum;
                if (place == 0u) { results[to + level + 1u] = right; }
            } else {
                buckets[first + place] = sum;
                if (place == 0u) { buckets[first + level + 1u] = right; }
            }
        }
        storageBarrier();
    }
}
