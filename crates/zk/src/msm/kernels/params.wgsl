// The parameters of all kernels of a multi-scalar multiplication.
struct Params {
    count: u32,
    window_bits: u32,
    windows: u32,
    // 1 if all windows share one set of buckets, because the points of each window are precomputed.
    is_shared: u32,
    buckets: u32,
    segments: u32,
    // The first level of a tree that a launch computes, and the number of its levels.
    level: u32,
    levels: u32,
}
var<immediate> params: Params;

// Entries of a segment: one thread adds them up.
fn segment_length(entries: u32, segments: u32) -> u32 {
    return max((entries + segments - 1u) / segments, MIN_SEGMENT);
}
