// Computes the points of a window: 2^c times those of the window before, for windows of c bits. `points` has `count` points
// for each window; `level` is the window. Follows the group law and `params.cu`.

extern "C" __global__ void __launch_bounds__(TABLE_GROUP) tables(G1Affine *points, const Params params) {
    const unsigned point = blockIdx.x * TABLE_GROUP + threadIdx.x;
    if (point >= params.count) return;
    G1Affine *before = points + (size_t)(params.level - 1) * params.count + point;
    G1Xyzz multiple = g1_from_affine(load(before));
#pragma unroll 1
    for (unsigned bit = 0; bit < params.window_bits; bit++) multiple = g1_double(multiple);
    store(before + params.count, g1_to_affine(multiple));
}
