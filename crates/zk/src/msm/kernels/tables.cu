// Computes 2^(c k) times each point for every window k from 1 on. `points` has `count` points for each window, and those of
// the first are given. Follows the group law and `params.cu`.

extern "C" __global__ void __launch_bounds__(TABLE_GROUP) tables(G1Affine *points, const Params params) {
    const unsigned point = blockIdx.x * TABLE_GROUP + threadIdx.x;
    if (point >= params.count) return;
    G1Xyzz multiple = g1_from_affine(load(points + point));
#pragma unroll 1
    for (unsigned window = 1; window < params.windows; window++) {
#pragma unroll 1
        for (unsigned bit = 0; bit < params.window_bits; bit++) multiple = g1_double(multiple);
        store(points + (size_t)window * params.count + point, g1_to_affine(multiple));
    }
}
