// Passes of number-theoretic transforms over `Fr`. Follows the arithmetic of `Fr`; mod.rs explains the algorithm.
//
// LOG_TILE is the number of elements of a workgroup, as a power of two. A thread has four of them.

#define TILE (1u << LOG_TILE)
#define THREADS (TILE / 4)
// Tiles that a multiprocessor runs at once: with 80 registers a thread, its arithmetic never waits.
#define MIN_TILES_PER_SM 3
#define MAX_LOG_RADIX 10u
#define LOCAL_ROOTS 512u

struct Params {
    unsigned log_n;        // elements of the transform
    unsigned log_segment;  // elements of the independent transforms that remain, this pass included
    unsigned log_radix;    // of this pass
    unsigned log_table;    // order of the roots in the table
    unsigned flags;
    unsigned padding[3];
    Fr factor;
};

#define INVERSE 1u
#define TWIDDLES 2u
#define SCALE_BEFORE 4u
#define SCALE_AFTER 8u
#define FACTOR_AFTER 16u
#define NATURAL 32u

__shared__ uint4 shared_low[TILE], shared_high[TILE];

static __device__ __forceinline__ Fr from_shared(unsigned index) {
    const uint4 low = shared_low[index], high = shared_high[index];
    return Fr{ { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w } };
}

static __device__ __forceinline__ void to_shared(unsigned index, const Fr a) {
    shared_low[index] = make_uint4(a.l[0], a.l[1], a.l[2], a.l[3]);
    shared_high[index] = make_uint4(a.l[4], a.l[5], a.l[6], a.l[7]);
}

static __device__ __forceinline__ unsigned reverse(unsigned index, unsigned bits) {
    return bits == 0 ? 0 : __brev(index) >> (32 - bits);
}

// The columns of a workgroup, and this thread's place among them.
struct Place {
    unsigned thread_in_column;
    unsigned column_in_tile;
    unsigned log_columns_in_tile;
    unsigned segment_begin;
    unsigned column_in_segment;
    unsigned log_stride;
    // Of the outputs in natural order.
    unsigned reversed_column;
    bool exists;
};

static __device__ __forceinline__ Place place_of(const Params &params) {
    Place place;
    const unsigned tile = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    place.log_columns_in_tile = LOG_TILE - params.log_radix;
    place.column_in_tile = threadIdx.x & ((1u << place.log_columns_in_tile) - 1);
    place.thread_in_column = threadIdx.x >> place.log_columns_in_tile;
    place.log_stride = params.log_segment - params.log_radix;
    const unsigned column = (tile << place.log_columns_in_tile) + place.column_in_tile;
    place.exists = column < 1u << (params.log_n - params.log_radix);
    const unsigned chosen =
        params.flags & NATURAL ? reverse(column, params.log_n - params.log_radix) : column;
    place.reversed_column = column;
    place.segment_begin = chosen >> place.log_stride << params.log_segment;
    place.column_in_segment = chosen & ((1u << place.log_stride) - 1);
    return place;
}

static __device__ __forceinline__ unsigned address(const Place &place, unsigned row) {
    return place.segment_begin + (row << place.log_stride) + place.column_in_segment;
}

// The root of order 2^log_order to the power of `exponent`, from the small tables that precede the large one.
static __device__ __forceinline__ Fr
local_root(const Fr *roots, const Params &params, unsigned log_order, unsigned exponent) {
    const unsigned index = exponent << (MAX_LOG_RADIX - log_order);
    return fr_load(roots + (params.flags & INVERSE ? LOCAL_ROOTS : 0) + index);
}

// Multiplies by the root of the segment's order to the power of row times column: the twiddles between two passes.
static __device__ __forceinline__ Fr
twiddle(const Fr a, const Fr *roots, const Params &params, const Place &place, unsigned row) {
    const unsigned order = 1u << params.log_table;
    unsigned exponent = (reverse(row, params.log_radix) * place.column_in_segment)
                        << (params.log_table - params.log_segment);
    if (params.flags & INVERSE) exponent = (order - exponent) & (order - 1);
    const bool is_upper_half = exponent >= order / 2;
    const Fr root = fr_load(roots + 2 * LOCAL_ROOTS + (exponent & (order / 2 - 1)));
    const Fr product = fr_mul(a, root);
    return is_upper_half ? fr_neg(product) : product;
}

static __device__ __forceinline__ Fr loaded(const Fr *in, const Fr *scales, const Params &params, unsigned index) {
    const Fr a = fr_load(in + index);
    return params.flags & SCALE_BEFORE ? fr_mul(a, fr_load(scales + index)) : a;
}

static __device__ __forceinline__ void
stored(Fr *out, const Fr *scales, const Params &params, unsigned index, Fr a) {
    if (params.flags & SCALE_AFTER) a = fr_mul(a, fr_load(scales + index));
    if (params.flags & FACTOR_AFTER) a = fr_mul(a, params.factor);
    fr_store(out + index, a);
}

// The first of a thread's four rows in a round over 2^log_span rows; the others follow at a quarter of the span.
static __device__ __forceinline__ unsigned first_row(const Place &place, unsigned log_span) {
    const unsigned log_quarter = log_span - 2;
    const unsigned group = place.thread_in_column >> log_quarter;
    return (group << log_span) + (place.thread_in_column & ((1u << log_quarter) - 1));
}

static __device__ __forceinline__ void
read_rows(Fr a[4], const Place &place, unsigned row, unsigned log_step) {
#pragma unroll
    for (unsigned q = 0; q < 4; q++)
        a[q] = from_shared(((row + (q << log_step)) << place.log_columns_in_tile) + place.column_in_tile);
}

static __device__ __forceinline__ void
write_rows(const Fr a[4], const Place &place, unsigned row, unsigned log_step) {
#pragma unroll
    for (unsigned q = 0; q < 4; q++)
        to_shared(((row + (q << log_step)) << place.log_columns_in_tile) + place.column_in_tile, a[q]);
}

// a + b and a - b in place.
static __device__ __forceinline__ void butterfly(Fr &a, Fr &b) {
    const Fr sum = fr_add(a, b);
    b = fr_sub(a, b);
    a = sum;
}

// Decimation in frequency: inputs in natural order, outputs in bit-reversed order.
static __device__ __forceinline__ void
decimate_in_frequency(const Fr *in, Fr *out, const Fr *roots, const Fr *scales, const Params &params) {
    const Place place = place_of(params);
    const unsigned rows = 1u << params.log_radix;
    Fr a[4];
    unsigned log_span = params.log_radix;
    if (place.exists) {
        const unsigned log_step = max(log_span, 2u) - 2;
        const unsigned row = first_row(place, log_step + 2);
#pragma unroll
        for (unsigned q = 0; q < 4; q++)
            if (q < rows) a[q] = loaded(in, scales, params, address(place, row + (q << log_step)));
    }
    const bool exchanges = log_span > 2;
#pragma unroll 1
    for (bool is_first = true; log_span > 2; log_span -= 2, is_first = false) {
        if (place.exists) {
            const unsigned row = first_row(place, log_span);
            if (!is_first) read_rows(a, place, row, log_span - 2);
            const unsigned j = row & ((1u << log_span) - 1);
            butterfly(a[0], a[2]);
            butterfly(a[1], a[3]);
            a[2] = fr_mul(a[2], local_root(roots, params, log_span, j));
            a[3] = fr_mul(a[3], local_root(roots, params, log_span, j + (1u << (log_span - 2))));
            butterfly(a[0], a[1]);
            butterfly(a[2], a[3]);
            const Fr root = local_root(roots, params, log_span, 2 * j);
            a[1] = fr_mul(a[1], root);
            a[3] = fr_mul(a[3], root);
            write_rows(a, place, row, log_span - 2);
        }
        __syncthreads();
    }
    if (!place.exists) return;
    const unsigned row = 4 * place.thread_in_column;
    if (exchanges) read_rows(a, place, row, 0);
    if (log_span == 2) {
        butterfly(a[0], a[2]);
        butterfly(a[1], a[3]);
        a[3] = fr_mul(a[3], local_root(roots, params, 2, 1));
    }
    if (rows > 1) butterfly(a[0], a[1]);
    if (rows > 2) butterfly(a[2], a[3]);
#pragma unroll
    for (unsigned q = 0; q < 4; q++) {
        if (q >= rows) break;
        if (params.flags & TWIDDLES) a[q] = twiddle(a[q], roots, params, place, row + q);
        const unsigned index =
            params.flags & NATURAL
                ? place.reversed_column
                      + (reverse(row + q, params.log_radix) << (params.log_n - params.log_radix))
                : address(place, row + q);
        stored(out, scales, params, index, a[q]);
    }
}

// Decimation in time: inputs in bit-reversed order, outputs in natural order.
static __device__ __forceinline__ void
decimate_in_time(Fr *data, const Fr *roots, const Fr *scales, const Params &params) {
    const Place place = place_of(params);
    const unsigned rows = 1u << params.log_radix;
    Fr a[4];
    const unsigned first = 4 * place.thread_in_column;
    unsigned log_span = params.log_radix & 1 ? 1 : 2;
    if (place.exists) {
#pragma unroll
        for (unsigned q = 0; q < 4; q++) {
            if (q >= rows) break;
            a[q] = loaded(data, scales, params, address(place, first + q));
            if (params.flags & TWIDDLES) a[q] = twiddle(a[q], roots, params, place, first + q);
        }
        if (rows > 1) butterfly(a[0], a[1]);
        if (rows > 2) butterfly(a[2], a[3]);
        if (log_span == 2 && rows > 2) {
            a[3] = fr_mul(a[3], local_root(roots, params, 2, 1));
            butterfly(a[0], a[2]);
            butterfly(a[1], a[3]);
        }
    }
    unsigned row = first, log_step = 0;
#pragma unroll 1
    while (log_span < params.log_radix) {
        if (place.exists) write_rows(a, place, row, log_step);
        __syncthreads();
        log_span += 2;
        log_step = log_span - 2;
        if (place.exists) {
            row = first_row(place, log_span);
            read_rows(a, place, row, log_step);
            const unsigned j = row & ((1u << log_span) - 1);
            const Fr root = local_root(roots, params, log_span, 2 * j);
            a[1] = fr_mul(a[1], root);
            a[3] = fr_mul(a[3], root);
            butterfly(a[0], a[1]);
            butterfly(a[2], a[3]);
            a[2] = fr_mul(a[2], local_root(roots, params, log_span, j));
            a[3] = fr_mul(a[3], local_root(roots, params, log_span, j + (1u << log_step)));
            butterfly(a[0], a[2]);
            butterfly(a[1], a[3]);
        }
    }
    if (!place.exists) return;
#pragma unroll
    for (unsigned q = 0; q < 4; q++)
        if (q < rows) stored(data, scales, params, address(place, row + (q << log_step)), a[q]);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_TILES_PER_SM)
ntt_frequency(const Fr *in, Fr *out, const Fr *roots, const Fr *scales, const Params params) {
    decimate_in_frequency(in, out, roots, scales, params);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_TILES_PER_SM)
ntt_frequency_in_place(Fr *data, const Fr *roots, const Fr *scales, const Params params) {
    decimate_in_frequency(data, data, roots, scales, params);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_TILES_PER_SM)
ntt_time_in_place(Fr *data, const Fr *roots, const Fr *scales, const Params params) {
    decimate_in_time(data, roots, scales, params);
}
