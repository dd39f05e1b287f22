// Computes the points of a window: 2^c times those of the window before, for windows of c bits. `points` has `count` points
// for each window; `level` is the window. Follows the group law and `params.wgsl`.

@group(0) @binding(0) var<storage, read_write> points: array<G1Affine>;

@compute @workgroup_size(TABLE_GROUP)
fn tables(@builtin(global_invocation_id) id: vec3<u32>) {
    let point = id.x;
    if (point >= params.count) { return; }
    let before = (params.level - 1u) * params.count + point;
    var multiple = g1_from_affine(points[before]);
    for (var bit = 0u; bit < params.window_bits; bit++) { multiple = g1_double(multiple); }
    points[before + params.count] = g1_to_affine(multiple);
}
