// Sorts the digits of scalars by bucket: counts them, computes each bucket's offset, and writes an entry for each digit.
// Follows the arithmetic of `Fr` and `params.cu`.

#define GROUP 256
#define ITEMS 8
#define NO_BUCKET 0xffffffffu
#define ALL_LANES 0xffffffffu

// A scalar's remaining bits, and the carry from the digit before.
struct Digits {
    Fr rest;
    unsigned carry;
};

struct Digit {
    // Index of the bucket, or NO_BUCKET for zero.
    unsigned bucket;
    unsigned is_negative;
};

// From Montgomery form to the number itself.
static __device__ __forceinline__ Digits digits_of(const Fr scalar) {
    const Fr unit = {{1, 0, 0, 0, 0, 0, 0, 0}};
    return Digits{fr_mul(scalar, unit), 0};
}

// The digit of the next window, from -2^(c-1) + 1 to 2^(c-1).
static __device__ __forceinline__ Digit next_digit(Digits &digits, const unsigned window, const Params params) {
    const unsigned bits = params.window_bits;
    const unsigned raw = (digits.rest.l[0] & ((1u << bits) - 1)) + digits.carry;
#pragma unroll
    for (unsigned i = 0; i < 7; i++) {
        digits.rest.l[i] = __funnelshift_r(digits.rest.l[i], digits.rest.l[i + 1], bits);
    }
    digits.rest.l[7] >>= bits;
    const unsigned is_negative = raw > (1u << (bits - 1)) ? 1 : 0;
    digits.carry = is_negative;
    const unsigned magnitude = is_negative ? (1u << bits) - raw : raw;
    const unsigned first = params.is_shared ? 0 : window << (bits - 1);
    return Digit{magnitude == 0 ? NO_BUCKET : first + magnitude - 1, is_negative};
}

// Whether the point of a scalar is infinite.
static __device__ __forceinline__ bool is_infinite(const unsigned *infinite, const unsigned scalar) {
    return (infinite[scalar / 32] >> (scalar % 32)) & 1;
}

// Counts the digits of each bucket. A digit's rank is its number among those of its bucket. `infinite` has a bit for each
// point: the digits of infinite points count as zeros.
extern "C" __global__ void __launch_bounds__(GROUP) count_digits(const Fr *scalars, const unsigned *infinite,
                                                                 unsigned *counters, unsigned *ranks,
                                                                 const Params params) {
    const unsigned scalar = blockIdx.x * GROUP + threadIdx.x;
    const unsigned lane = threadIdx.x & 31;
    // All lanes take part in the exchange within the warp: those without a scalar have only zeros.
    const bool counts = scalar < params.count && !is_infinite(infinite, scalar);
    Digits digits = digits_of(counts ? fr_load(scalars + scalar) : fr_zero());
    for (unsigned window = 0; window < params.windows; window++) {
        const Digit digit = next_digit(digits, window, params);
        // One addition for all lanes with the same bucket, so that equal scalars do not queue up.
        const unsigned peers = __match_any_sync(ALL_LANES, digit.bucket);
        const unsigned leader = __ffs(peers) - 1;
        unsigned first = 0;
        if (lane == leader && digit.bucket != NO_BUCKET) first = atomicAdd(counters + digit.bucket, __popc(peers));
        first = __shfl_sync(ALL_LANES, first, leader);
        if (digit.bucket != NO_BUCKET) {
            ranks[(size_t)window * params.count + scalar] = first + __popc(peers & ((1u << lane) - 1));
        }
    }
}

// Adds up the elements of all threads before this one. `shared` has GROUP elements; the last is the sum of all.
static __device__ uint2 exclusive_sum(uint2 *shared, const uint2 own) {
    const unsigned thread = threadIdx.x;
    shared[thread] = own;
    __syncthreads();
    for (unsigned distance = 1; distance < GROUP; distance *= 2) {
        const uint2 before = thread >= distance ? shared[thread - distance] : make_uint2(0, 0);
        __syncthreads();
        shared[thread].x += before.x;
        shared[thread].y += before.y;
        __syncthreads();
    }
    return make_uint2(shared[thread].x - own.x, shared[thread].y - own.y);
}

// For each group of GROUP * ITEMS buckets: the number of digits, and of buckets with any.
extern "C" __global__ void __launch_bounds__(GROUP)
    sum_counters(const unsigned *counters, uint2 *sums, const Params params) {
    __shared__ uint2 shared[GROUP];
    const unsigned first = (blockIdx.x * GROUP + threadIdx.x) * ITEMS;
    uint2 own = make_uint2(0, 0);
    for (unsigned bucket = first; bucket < first + ITEMS && bucket < params.buckets; bucket++) {
        const unsigned digits = counters[bucket];
        own.x += digits;
        own.y += digits > 0 ? 1 : 0;
    }
    exclusive_sum(shared, own);
    if (threadIdx.x == GROUP - 1) sums[blockIdx.x] = shared[GROUP - 1];
}

// One workgroup: turns the sums of all groups, at most GROUP * ITEMS, into the sums of the groups before them. `info` is
// the number of runs and of entries.
extern "C" __global__ void __launch_bounds__(GROUP)
    scan_sums(uint2 *sums, unsigned *info, uint2 *runs, const Params params) {
    __shared__ uint2 shared[GROUP];
    const unsigned groups = (params.buckets + GROUP * ITEMS - 1) / (GROUP * ITEMS);
    const unsigned first = threadIdx.x * ITEMS;
    uint2 own = make_uint2(0, 0);
    for (unsigned group = first; group < first + ITEMS && group < groups; group++) {
        own.x += sums[group].x;
        own.y += sums[group].y;
    }
    uint2 before = exclusive_sum(shared, own);
    for (unsigned group = first; group < first + ITEMS && group < groups; group++) {
        const uint2 sum = sums[group];
        sums[group] = before;
        before.x += sum.x;
        before.y += sum.y;
    }
    if (threadIdx.x == GROUP - 1) {
        const uint2 all = shared[GROUP - 1];
        info[0] = all.y;
        info[1] = all.x;
        // The end of the last run.
        runs[all.y] = make_uint2(all.x, 0);
    }
}

// Computes the offset of each bucket's entries, and the runs: first entry and bucket of each bucket with entries.
extern "C" __global__ void __launch_bounds__(GROUP) write_offsets(const unsigned *counters, const uint2 *sums,
                                                                  unsigned *offsets, uint2 *runs, const Params params) {
    __shared__ uint2 shared[GROUP];
    const unsigned first = (blockIdx.x * GROUP + threadIdx.x) * ITEMS;
    uint2 own = make_uint2(0, 0);
    for (unsigned bucket = first; bucket < first + ITEMS && bucket < params.buckets; bucket++) {
        const unsigned digits = counters[bucket];
        own.x += digits;
        own.y += digits > 0 ? 1 : 0;
    }
    uint2 before = exclusive_sum(shared, own);
    before.x += sums[blockIdx.x].x;
    before.y += sums[blockIdx.x].y;
    for (unsigned bucket = first; bucket < first + ITEMS && bucket < params.buckets; bucket++) {
        const unsigned digits = counters[bucket];
        offsets[bucket] = before.x;
        if (digits > 0) {
            runs[before.y] = make_uint2(before.x, bucket);
            before.x += digits;
            before.y += 1;
        }
    }
}

// Writes an entry for each digit: the index of its point, and its sign in the highest bit.
extern "C" __global__ void __launch_bounds__(GROUP) write_entries(const Fr *scalars, const unsigned *infinite,
                                                                  const unsigned *ranks, const unsigned *offsets,
                                                                  unsigned *entries, const Params params) {
    const unsigned scalar = blockIdx.x * GROUP + threadIdx.x;
    if (scalar >= params.count || is_infinite(infinite, scalar)) return;
    Digits digits = digits_of(fr_load(scalars + scalar));
    for (unsigned window = 0; window < params.windows; window++) {
        const Digit digit = next_digit(digits, window, params);
        if (digit.bucket != NO_BUCKET) {
            const unsigned rank = ranks[(size_t)window * params.count + scalar];
            const unsigned point = params.is_shared ? window * params.count + scalar : scalar;
            entries[offsets[digit.bucket] + rank] = point | digit.is_negative << 31;
        }
    }
}
