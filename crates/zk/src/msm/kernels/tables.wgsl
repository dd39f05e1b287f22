// Computes 2^(c k) times each point for every window k from 1 on. `points` has `count` points for each window, and those of
// the first are given. Follows the group law and `params.wgsl`.

@group(0) @binding(0) var<storage, read_write> points: array<G1Affine>;

@compute @workgroup_size(TABLE_GROUP)
fn tables(@builtin(global_invocation_id) id: vec3<u32>) {
    let point = id.x;
    if (point >= params.count) { return; }
    var multiple = g1_from_affine(points[point]);
    for (var window = 1u; window < params.windows; window++) {
        for (var bit = 0u; bit < params.window_bits; bit++) { multiple = g1_double(multiple); }
        points[window * params.count + point] = g1_to_affine(multiple);
    }
}
