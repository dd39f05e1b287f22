// The constraints of a circuit, and their quotient. Follows the arithmetic of `Fr`.

struct Params {
    unsigned count;
    // Constraints whose product is compared with C.
    unsigned checked;
    unsigned padding[2];
};

static __device__ __forceinline__ unsigned thread_index() {
    return (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)) * GROUP + threadIdx.x;
}

// Adds up the terms of a segment of a row.
extern "C" __global__ void __launch_bounds__(GROUP)
add_terms(const Fr *wires, const unsigned *starts, const unsigned *columns, const Fr *values, Fr *sums, const Params params) {
    const unsigned index = thread_index();
    if (index >= params.count) return;
    const unsigned end = starts[index + 1];
    Fr sum = fr_zero();
#pragma unroll 1
    for (unsigned term = starts[index]; term < end; term++)
        sum = fr_add(sum, fr_mul(fr_load(values + term), fr_load(wires + columns[term])));
    fr_store(sums + index, sum);
}

// Adds up the segments of a row.
extern "C" __global__ void __launch_bounds__(GROUP)
add_segments(const Fr *segments, const unsigned *starts, Fr *sums, const Params params) {
    const unsigned index = thread_index();
    if (index >= params.count) return;
    const unsigned end = starts[index + 1];
    Fr sum = fr_zero();
#pragma unroll 1
    for (unsigned segment = starts[index]; segment < end; segment++) sum = fr_add(sum, fr_load(segments + segment));
    fr_store(sums + index, sum);
}

// Writes a * b to c. Counts where c was something else, and finds the first such place.
extern "C" __global__ void __launch_bounds__(GROUP)
multiply_sides(const Fr *a, const Fr *b, Fr *c, unsigned *failed, const Params params) {
    const unsigned index = thread_index();
    if (index >= params.count) return;
    const Fr product = fr_mul(fr_load(a + index), fr_load(b + index));
    if (index < params.checked && !fr_eq(product, fr_load(c + index))) {
        atomicAdd(failed, 1);
        atomicMin(failed + 1, index);
    }
    fr_store(c + index, product);
}

// Writes a * b - c to a.
extern "C" __global__ void __launch_bounds__(GROUP)
quotient(Fr *a, const Fr *b, const Fr *c, const Params params) {
    const unsigned index = thread_index();
    if (index >= params.count) return;
    fr_store(a + index, fr_sub(fr_mul(fr_load(a + index), fr_load(b + index)), fr_load(c + index)));
}
