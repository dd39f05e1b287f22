// The kernels that measure a device. `iterations` sets how long a launch takes; the results are checked.

struct Params {
    unsigned iterations;
    unsigned addend;
};

// Eight independent chains of x = x * x + addend, so that latency hides behind throughput.
extern "C" __global__ void int32_multiply(unsigned *out, Params params) {
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned chain[8];
#pragma unroll
    for (unsigned c = 0; c < 8; c++) chain[c] = thread * 8 + c;
    for (unsigned i = 0; i < params.iterations; i++) {
#pragma unroll
        for (unsigned c = 0; c < 8; c++) chain[c] = chain[c] * chain[c] + params.addend;
    }
    unsigned result = 0;
#pragma unroll
    for (unsigned c = 0; c < 8; c++) result ^= chain[c];
    out[thread] = result;
}

// Eight independent chains of x = x * 0.75 + 0.5.
extern "C" __global__ void f32_multiply_add(float *out, Params params) {
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    float chain[8];
#pragma unroll
    for (unsigned c = 0; c < 8; c++) chain[c] = float(thread % 1024 + c);
    for (unsigned i = 0; i < params.iterations; i++) {
#pragma unroll
        for (unsigned c = 0; c < 8; c++) chain[c] = fmaf(chain[c], 0.75f, 0.5f);
    }
    float result = 0;
#pragma unroll
    for (unsigned c = 0; c < 8; c++) result += chain[c];
    out[thread] = result;
}

extern "C" __global__ void copy_words(const uint4 *in, uint4 *out, Params params) {
    unsigned long long count = params.iterations;
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < count; i += stride)
        out[i] = in[i];
}

extern "C" __global__ void nothing() {}
