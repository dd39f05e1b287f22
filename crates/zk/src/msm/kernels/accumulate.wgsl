// Adds up the points of each bucket. Follows the group law and `params.wgsl`.
//
// The sorted entries are cut into segments of equal length, one for each thread, whatever the sizes of the buckets. A
// bucket within a segment is written to `buckets`. A segment's share of a bucket that began in an earlier segment is
// written to `partials[segment]`, and its share of a bucket that continues in the next segment, unless it began earlier,
// to `partials[segments + segment]`. `firsts` is the run of each segment's first entry.

@group(0) @binding(0) var<storage, read> points: array<G1Affine>;
@group(0) @binding(1) var<storage, read> entries: array<u32>;
@group(0) @binding(2) var<storage, read> runs: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> info: array<u32>;
@group(0) @binding(4) var<storage, read_write> buckets: array<G1Xyzz>;
@group(0) @binding(5) var<storage, read_write> partials: array<G1Xyzz>;
@group(0) @binding(6) var<storage, read_write> firsts: array<u32>;

@compute @workgroup_size(ACCUMULATE_GROUP)
fn accumulate(@builtin(global_invocation_id) id: vec3<u32>) {
    let segment = id.x;
    let total = info[1];
    let length = segment_length(total, params.segments);
    let first = segment * length;
    if (segment >= params.segments || first >= total) { return; }
    let end = min(first + length, total);
    // The last run that begins at the first entry or before.
    var run = 0u;
    var after = info[0];
    while (after - run > 1u) {
        let middle = (run + after) / 2u;
        if (runs[middle].x <= first) { run = middle; } else { after = middle; }
    }
    firsts[segment] = run;
    var current = runs[run];
    var run_end = runs[run + 1u].x;
    var sum = g1_infinity();
    for (var at = first + 1u; at <= end; at++) {
        let entry = entries[at - 1u];
        var point = points[entry & 0x7fffffffu];
        if ((entry >> 31u) == 1u) { point = g1_affine_neg(point); }
        sum = g1_add_affine(sum, point);
        if (at == run_end || at == end) {
            if (current.x < first) {
                partials[segment] = sum;
            } else if (run_end > end) {
                partials[params.segments + segment] = sum;
            } else {
                buckets[current.y] = sum;
            }
            if (at < end) {
                sum = g1_infinity();
                run++;
                current = runs[run];
                run_end = runs[run + 1u].x;
            }
        }
    }
}
