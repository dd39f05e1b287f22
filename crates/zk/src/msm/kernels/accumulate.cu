// Adds up the points of each bucket. Follows the group law and `params.cu`.
//
// The sorted entries are cut into segments of equal length, one for each thread, whatever the sizes of the buckets. A
// bucket within a segment is written to `buckets`. A segment's share of a bucket that began in an earlier segment is
// written to `partials[segment]`, and its share of a bucket that continues in the next segment, unless it began earlier,
// to `partials[segments + segment]`. `firsts` is the run of each segment's first entry.

extern "C" __global__ void __launch_bounds__(ACCUMULATE_GROUP, ACCUMULATE_GROUPS)
    accumulate(const G1Affine *points, const unsigned *entries, const uint2 *runs, const unsigned *info,
               G1Xyzz *buckets, G1Xyzz *partials, unsigned *firsts, const Params params) {
    const unsigned segment = blockIdx.x * ACCUMULATE_GROUP + threadIdx.x;
    const unsigned total = info[1];
    const unsigned length = segment_length(total, params.segments);
    const unsigned first = segment * length;
    if (segment >= params.segments || first >= total) return;
    const unsigned end = min(first + length, total);
    // The last run that begins at the first entry or before.
    unsigned run = 0;
    for (unsigned after = info[0]; after - run > 1;) {
        const unsigned middle = (run + after) / 2;
        if (runs[middle].x <= first) run = middle;
        else after = middle;
    }
    firsts[segment] = run;
    uint2 current = runs[run];
    unsigned run_end = runs[run + 1].x;
    G1Xyzz sum = g1_infinity();
    unsigned entry = entries[first];
    unsigned next_entry = entries[min(first + 1, end - 1)];
    G1Affine point = load(points + (entry & 0x7fffffffu));
#pragma unroll 1
    for (unsigned at = first + 1; ; at++) {
        // The next point is on its way while this one is added.
        const G1Affine *next_point = points + (next_entry & 0x7fffffffu);
#if LOADS_AHEAD
        const G1Affine next = load(next_point);
#else
        asm volatile("prefetch.global.L1 [%0];" ::"l"(next_point));
#endif
        const unsigned entry_after = entries[min(at + 1, end - 1)];
        if (entry >> 31) point = g1_affine_neg(point);
        // The sum that begins a bucket is infinite. With these branches the compiler sees that the addition needs the point
        // only at its beginning, and keeps all values in registers.
        if (!g1_affine_is_infinity(point)) {
            if (g1_is_infinity(sum)) sum = g1_from_affine(point);
            else sum = g1_add_affine(sum, point);
        }
        if (at == run_end || at == end) {
            G1Xyzz *to = buckets + current.y;
            if (current.x < first) to = partials + segment;
            else if (run_end > end) to = partials + params.segments + segment;
            store(to, sum);
            if (at == end) break;
            sum = g1_infinity();
            run++;
            current = runs[run];
            run_end = runs[run + 1].x;
        }
#if LOADS_AHEAD
        point = next;
#else
        point = load(next_point);
#endif
        entry = next_entry;
        next_entry = entry_after;
    }
}
