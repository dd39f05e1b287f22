// Tables of powers. Follows the arithmetic of `Fr`.

struct PowerParams {
    unsigned count;
    unsigned log_n;
    unsigned reversed;
    unsigned padding;
};

// `squares` begins with a factor; after it come the base, its square, its fourth power and so on.
extern "C" __global__ void __launch_bounds__(256) ntt_powers(const Fr *squares, Fr *out, const PowerParams params) {
    const unsigned group = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned index = group * 256 + threadIdx.x;
    if (index >= params.count) return;
    unsigned exponent = params.reversed && params.log_n > 0 ? __brev(index) >> (32 - params.log_n) : index;
    Fr power = fr_load(squares);
#pragma unroll 1
    for (unsigned bit = 1; exponent != 0; bit++, exponent >>= 1)
        if (exponent & 1) power = fr_mul(power, fr_load(squares + bit));
    fr_store(out + index, power);
}
