// Adds up the shares of buckets that several segments have, in a binary tree over the segments. Follows the group law and
// `params.cu`.
//
// A node of level l is 2^l segments. When its halves are merged, at most one bucket crosses the middle. Its share in the
// right half is at `partials[middle]`. Its share in the left half is at `partials[first segment of the node]` if the bucket
// began before the node, otherwise at `partials[segments + the segment in which it began]`; the sum replaces it, or is
// written to `buckets` if the node has the whole bucket. A launch computes some levels: each workgroup the nodes below one
// node of the last of these levels.

extern "C" __global__ void __launch_bounds__(TREE_GROUP)
    merge(const uint2 *runs, const unsigned *info, const unsigned *firsts, G1Xyzz *partials, G1Xyzz *buckets,
          const Params params) {
    const unsigned total = info[1];
    const unsigned length = segment_length(total, params.segments);
    const unsigned base = blockIdx.x << (params.level + params.levels);
#pragma unroll 1
    for (unsigned level = params.level; level < params.level + params.levels; level++) {
        const unsigned pairs = 1u << (params.level + params.levels - 1 - level);
        for (unsigned pair = threadIdx.x; pair < pairs; pair += TREE_GROUP) {
            const unsigned first = base + (pair << (level + 1));
            const unsigned middle = first + (1u << level);
            if (middle >= params.segments || middle * length >= total) continue;
            const unsigned run = firsts[middle];
            const uint2 current = runs[run];
            if (current.x >= middle * length) continue;
            const bool began_before = current.x < first * length;
            G1Xyzz *left = partials + (began_before ? first : params.segments + current.x / length);
            const G1Xyzz sum = g1_add(load(left), load(partials + middle));
            const unsigned last_segment = (runs[run + 1].x - 1) / length;
            const bool is_whole = !began_before && last_segment < middle + (1u << level);
            store(is_whole ? buckets + current.y : left, sum);
        }
        __syncthreads();
    }
}
