// Each thread multiplies two elements again and again. Follows the arithmetic of `Fr`.

struct Params {
    unsigned iterations;
    unsigned count;
};

extern "C" __global__ void __launch_bounds__(128) products(Fr *pairs, const Params params) {
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= params.count) return;
    Fr a = fr_load(pairs + 2 * thread), b = fr_load(pairs + 2 * thread + 1);
#pragma unroll 1
    for (unsigned i = 0; i < params.iterations; i++) {
        a = fr_mul(a, b);
        b = fr_mul(b, a);
    }
    fr_store(pairs + 2 * thread, a);
    fr_store(pairs + 2 * thread + 1, b);
}
