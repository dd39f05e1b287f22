// Sorts the digits of scalars by bucket: counts them, computes each bucket's offset, and writes an entry for each digit.
// Follows the arithmetic of `Fr` and `params.wgsl`. The bindings of each kernel are declared before it.

const GROUP = 256u;
const ITEMS = 8u;
const NO_BUCKET = 0xffffffffu;

// A scalar's remaining bits, and the carry from the digit before.
struct Digits { lo: vec4<u32>, hi: vec4<u32>, carry: u32 }

// Index of the bucket, or NO_BUCKET for zero, and the sign.
struct Digit { bucket: u32, is_negative: u32 }

// From Montgomery form to the number itself.
fn digits_of(scalar: Fr) -> Digits {
    let number = fr_mul(scalar, Fr(vec4<u32>(1u, 0u, 0u, 0u), vec4<u32>(0u)));
    return Digits(number.lo, number.hi, 0u);
}

// The digit of the next window, from -2^(c-1) + 1 to 2^(c-1).
fn next_digit(digits: ptr<function, Digits>, window: u32) -> Digit {
    let bits = params.window_bits;
    let left = 32u - bits;
    let lo = (*digits).lo;
    let hi = (*digits).hi;
    let raw = (lo.x & ((1u << bits) - 1u)) + (*digits).carry;
    (*digits).lo = vec4<u32>((lo.x >> bits) | (lo.y << left), (lo.y >> bits) | (lo.z << left),
                             (lo.z >> bits) | (lo.w << left), (lo.w >> bits) | (hi.x << left));
    (*digits).hi = vec4<u32>((hi.x >> bits) | (hi.y << left), (hi.y >> bits) | (hi.z << left),
                             (hi.z >> bits) | (hi.w << left), hi.w >> bits);
    let is_negative = u32(raw > (1u << (bits - 1u)));
    (*digits).carry = is_negative;
    var magnitude = raw;
    if (is_negative == 1u) { magnitude = (1u << bits) - raw; }
    var first = 0u;
    if (params.is_shared == 0u) { first = window << (bits - 1u); }
    if (magnitude == 0u) { return Digit(NO_BUCKET, is_negative); }
    return Digit(first + magnitude - 1u, is_negative);
}
//! count_digits
@group(0) @binding(0) var<storage, read> scalars: array<Fr>;
@group(0) @binding(1) var<storage, read> infinite: array<u32>;
@group(0) @binding(2) var<storage, read_write> counters: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> ranks: array<u32>;

// Counts the digits of each bucket. A digit's rank is its number among those of its bucket. `infinite` has a bit for each
// point: the digits of infinite points count as zeros.
@compute @workgroup_size(256)
fn count_digits(@builtin(global_invocation_id) id: vec3<u32>) {
    let scalar = id.x;
    if (scalar >= params.count) { return; }
    if (((infinite[scalar / 32u] >> (scalar % 32u)) & 1u) == 1u) { return; }
    var digits = digits_of(scalars[scalar]);
    for (var window = 0u; window < params.windows; window++) {
        let digit = next_digit(&digits, window);
        if (digit.bucket != NO_BUCKET) {
            ranks[window * params.count + scalar] = atomicAdd(&counters[digit.bucket], 1u);
        }
    }
}
//! write_entries
@group(0) @binding(0) var<storage, read> scalars: array<Fr>;
@group(0) @binding(1) var<storage, read> infinite: array<u32>;
@group(0) @binding(2) var<storage, read> ranks: array<u32>;
@group(0) @binding(3) var<storage, read> offsets: array<u32>;
@group(0) @binding(4) var<storage, read_write> entries: array<u32>;

// Writes an entry for each digit: the index of its point, and its sign in the highest bit.
@compute @workgroup_size(256)
fn write_entries(@builtin(global_invocation_id) id: vec3<u32>) {
    let scalar = id.x;
    if (scalar >= params.count) { return; }
    if (((infinite[scalar / 32u] >> (scalar % 32u)) & 1u) == 1u) { return; }
    var digits = digits_of(scalars[scalar]);
    for (var window = 0u; window < params.windows; window++) {
        let digit = next_digit(&digits, window);
        if (digit.bucket != NO_BUCKET) {
            let rank = ranks[window * params.count + scalar];
            var point = scalar;
            if (params.is_shared == 1u) { point = window * params.count + scalar; }
            entries[offsets[digit.bucket] + rank] = point | (digit.is_negative << 31u);
        }
    }
}
