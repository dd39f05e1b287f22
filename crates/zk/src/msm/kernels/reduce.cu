// Reduces each set of 2^d buckets to d + 1 sums, in place, in a binary tree over the buckets. Follows the group law and
// `params.cu`.
//
// A node of level l is 2^l buckets, at the same 2^l places. Its first l + 1 places are the sum of its buckets, and for each
// k < l the sum of those buckets whose index has bit k set. Two nodes are merged by adding them place by place; the sum of
// the right node's buckets is the new place. The sum of index times bucket is then the sum of 2^k times place k + 1. A
// launch computes some levels: each workgroup the nodes below one node of the last of these levels. The root goes to
// `results`.

extern "C" __global__ void __launch_bounds__(TREE_GROUP)
    reduce(const unsigned *counters, G1Xyzz *buckets, G1Xyzz *results, const Params params) {
    const unsigned base = blockIdx.x << (params.level + params.levels);
    const unsigned depth = params.window_bits - 1;
#pragma unroll 1
    for (unsigned level = params.level; level < params.level + params.levels; level++) {
        const unsigned log_pairs = params.level + params.levels - 1 - level;
        const unsigned places = level + 1;
        for (unsigned item = threadIdx.x; item < places << log_pairs; item += TREE_GROUP) {
            const unsigned place = item >> log_pairs;
            const unsigned first = base + ((item & ((1u << log_pairs) - 1)) << (level + 1));
            const unsigned middle = first + (1u << level);
            G1Xyzz left = load(buckets + first + place);
            G1Xyzz right = load(buckets + middle + place);
            if (level == 0) {
                // Nothing was written to buckets without entries.
                if (counters[first] == 0) left = g1_infinity();
                if (counters[middle] == 0) right = g1_infinity();
            }
            const G1Xyzz sum = g1_add(left, right);
            G1Xyzz *to = buckets + first;
            if (level + 1 == depth) to = results + (first >> depth) * (depth + 1);
            store(to + place, sum);
            if (place == 0) store(to + level + 1, right);
        }
        __syncthreads();
    }
}
