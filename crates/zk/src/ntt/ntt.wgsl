// Passes of number-theoretic transforms over `Fr`. Follows the arithmetic of `Fr`; mod.rs explains the algorithm, and
// ntt.cu is the same in CUDA C. `INPUT` and `OUTPUT` are replaced by the names of buffers, which precede this text, as
// do the constants `LOG_TILE`, `TILE` and `THREADS`.

const MAX_LOG_RADIX = 10u;
const LOCAL_ROOTS = 512u;

struct Params {
    log_n: u32,
    log_segment: u32,
    log_radix: u32,
    log_table: u32,
    flags: u32,
    padding: array<u32, 3>,
    factor: Fr,
}

const INVERSE = 1u;
const TWIDDLES = 2u;
const SCALE_BEFORE = 4u;
const SCALE_AFTER = 8u;
const FACTOR_AFTER = 16u;
const NATURAL = 32u;

var<immediate> params: Params;
var<workgroup> tile_elements: array<Fr, TILE>;

fn has(flag: u32) -> bool { return (params.flags & flag) != 0u; }

fn reverse(index: u32, bits: u32) -> u32 {
    if (bits == 0u) { return 0u; }
    return reverseBits(index) >> (32u - bits);
}

struct Place {
    thread_in_column: u32,
    column_in_tile: u32,
    log_columns_in_tile: u32,
    segment_begin: u32,
    column_in_segment: u32,
    log_stride: u32,
    reversed_column: u32,
    exists: bool,
}

fn place_of(thread: u32, group: vec3<u32>, groups: vec3<u32>) -> Place {
    var place: Place;
    let tile = group.x + groups.x * (group.y + groups.y * group.z);
    place.log_columns_in_tile = LOG_TILE - params.log_radix;
    place.column_in_tile = thread & ((1u << place.log_columns_in_tile) - 1u);
    place.thread_in_column = thread >> place.log_columns_in_tile;
    place.log_stride = params.log_segment - params.log_radix;
    let column = (tile << place.log_columns_in_tile) + place.column_in_tile;
    place.exists = column < (1u << (params.log_n - params.log_radix));
    var chosen = column;
    if (has(NATURAL)) { chosen = reverse(column, params.log_n - params.log_radix); }
    place.reversed_column = column;
    place.segment_begin = (chosen >> place.log_stride) << params.log_segment;
    place.column_in_segment = chosen & ((1u << place.log_stride) - 1u);
    return place;
}

fn address(place: Place, row: u32) -> u32 {
    return place.segment_begin + (row << place.log_stride) + place.column_in_segment;
}

fn in_tile(place: Place, row: u32) -> u32 {
    return (row << place.log_columns_in_tile) + place.column_in_tile;
}

fn local_root(log_order: u32, exponent: u32) -> Fr {
    var first = 0u;
    if (has(INVERSE)) { first = LOCAL_ROOTS; }
    return roots[first + (exponent << (MAX_LOG_RADIX - log_order))];
}

fn twiddle(a: Fr, place: Place, row: u32) -> Fr {
    let order = 1u << params.log_table;
    var exponent = (reverse(row, params.log_radix) * place.column_in_segment)
        << (params.log_table - params.log_segment);
    if (has(INVERSE)) { exponent = (order - exponent) & (order - 1u); }
    let product = fr_mul(a, roots[2u * LOCAL_ROOTS + (exponent & (order / 2u - 1u))]);
    if (exponent >= order / 2u) { return fr_neg(product); }
    return product;
}

fn loaded(index: u32) -> Fr {
    let a = INPUT[index];
    if (has(SCALE_BEFORE)) { return fr_mul(a, scales[index]); }
    return a;
}

fn stored(index: u32, a: Fr) {
    var b = a;
    if (has(SCALE_AFTER)) { b = fr_mul(b, scales[index]); }
    if (has(FACTOR_AFTER)) { b = fr_mul(b, params.factor); }
    OUTPUT[index] = b;
}

fn first_row(place: Place, log_span: u32) -> u32 {
    let log_quarter = log_span - 2u;
    let group = place.thread_in_column >> log_quarter;
    return (group << log_span) + (place.thread_in_column & ((1u << log_quarter) - 1u));
}

fn frequency(place: Place) {
    let rows = 1u << params.log_radix;
    var a0: Fr; var a1: Fr; var a2: Fr; var a3: Fr;
    var log_span = params.log_radix;
    if (place.exists) {
        let log_step = max(log_span, 2u) - 2u;
        let row = first_row(place, log_step + 2u);
        a0 = loaded(address(place, row));
        if (rows > 1u) { a1 = loaded(address(place, row + (1u << log_step))); }
        if (rows > 2u) {
            a2 = loaded(address(place, row + (2u << log_step)));
            a3 = loaded(address(place, row + (3u << log_step)));
        }
    }
    let exchanges = log_span > 2u;
    var is_first = true;
    while (log_span > 2u) {
        if (place.exists) {
            let row = first_row(place, log_span);
            let step = 1u << (log_span - 2u);
            if (!is_first) {
                a0 = tile_elements[in_tile(place, row)];
                a1 = tile_elements[in_tile(place, row + step)];
                a2 = tile_elements[in_tile(place, row + 2u * step)];
                a3 = tile_elements[in_tile(place, row + 3u * step)];
            }
            let j = row & ((1u << log_span) - 1u);
            let b0 = fr_add(a0, a2);
            let b1 = fr_add(a1, a3);
            let b2 = fr_mul(fr_sub(a0, a2), local_root(log_span, j));
            let b3 = fr_mul(fr_sub(a1, a3), local_root(log_span, j + step));
            let root = local_root(log_span, 2u * j);
            tile_elements[in_tile(place, row)] = fr_add(b0, b1);
            tile_elements[in_tile(place, row + step)] = fr_mul(fr_sub(b0, b1), root);
            tile_elements[in_tile(place, row + 2u * step)] = fr_add(b2, b3);
            tile_elements[in_tile(place, row + 3u * step)] = fr_mul(fr_sub(b2, b3), root);
        }
        workgroupBarrier();
        log_span -= 2u;
        is_first = false;
    }
    if (!place.exists) { return; }
    let row = 4u * place.thread_in_column;
    if (exchanges) {
        a0 = tile_elements[in_tile(place, row)];
        a1 = tile_elements[in_tile(place, row + 1u)];
        a2 = tile_elements[in_tile(place, row + 2u)];
        a3 = tile_elements[in_tile(place, row + 3u)];
    }
    if (log_span == 2u) {
        let b0 = fr_add(a0, a2);
        let b1 = fr_add(a1, a3);
        let b2 = fr_sub(a0, a2);
        let b3 = fr_mul(fr_sub(a1, a3), local_root(2u, 1u));
        a0 = b0; a1 = b1; a2 = b2; a3 = b3;
    }
    // A missing element is zero.
    finished(place, row, fr_add(a0, a1));
    if (rows > 1u) { finished(place, row + 1u, fr_sub(a0, a1)); }
    if (rows > 2u) {
        finished(place, row + 2u, fr_add(a2, a3));
        finished(place, row + 3u, fr_sub(a2, a3));
    }
}

// The end of a pass in frequency, for one element.
fn finished(place: Place, row: u32, a: Fr) {
    var b = a;
    if (has(TWIDDLES)) { b = twiddle(b, place, row); }
    var index = address(place, row);
    if (has(NATURAL)) {
        index = place.reversed_column
            + (reverse(row, params.log_radix) << (params.log_n - params.log_radix));
    }
    stored(index, b);
}

// The begin of a pass in time, for one element.
fn begun(place: Place, row: u32) -> Fr {
    let a = loaded(address(place, row));
    if (has(TWIDDLES)) { return twiddle(a, place, row); }
    return a;
}

fn time(place: Place) {
    let rows = 1u << params.log_radix;
    var a0: Fr; var a1: Fr; var a2: Fr; var a3: Fr;
    var row = 4u * place.thread_in_column;
    var step = 1u;
    var log_span = 2u - (params.log_radix & 1u);
    if (place.exists) {
        let c0 = begun(place, row);
        var c1: Fr;
        if (rows > 1u) { c1 = begun(place, row + 1u); }
        a0 = fr_add(c0, c1);
        a1 = fr_sub(c0, c1);
        if (rows > 2u) {
            let c2 = begun(place, row + 2u);
            let c3 = begun(place, row + 3u);
            a2 = fr_add(c2, c3);
            a3 = fr_sub(c2, c3);
        }
        if (log_span == 2u && rows > 2u) {
            let b0 = a0;
            let b1 = a1;
            let b3 = fr_mul(a3, local_root(2u, 1u));
            a0 = fr_add(b0, a2);
            a2 = fr_sub(b0, a2);
            a1 = fr_add(b1, b3);
            a3 = fr_sub(b1, b3);
        }
    }
    while (log_span < params.log_radix) {
        if (place.exists) {
            tile_elements[in_tile(place, row)] = a0;
            tile_elements[in_tile(place, row + step)] = a1;
            tile_elements[in_tile(place, row + 2u * step)] = a2;
            tile_elements[in_tile(place, row + 3u * step)] = a3;
        }
        workgroupBarrier();
        log_span += 2u;
        step = 1u << (log_span - 2u);
        if (place.exists) {
            row = first_row(place, log_span);
            let j = row & ((1u << log_span) - 1u);
            let root = local_root(log_span, 2u * j);
            let c0 = tile_elements[in_tile(place, row)];
            let c1 = fr_mul(tile_elements[in_tile(place, row + step)], root);
            let c2 = tile_elements[in_tile(place, row + 2u * step)];
            let c3 = fr_mul(tile_elements[in_tile(place, row + 3u * step)], root);
            let b0 = fr_add(c0, c1);
            let b1 = fr_sub(c0, c1);
            let b2 = fr_mul(fr_add(c2, c3), local_root(log_span, j));
            let b3 = fr_mul(fr_sub(c2, c3), local_root(log_span, j + step));
            a0 = fr_add(b0, b2);
            a1 = fr_add(b1, b3);
            a2 = fr_sub(b0, b2);
            a3 = fr_sub(b1, b3);
        }
    }
    if (!place.exists) { return; }
    stored(address(place, row), a0);
    if (rows > 1u) { stored(address(place, row + step), a1); }
    if (rows > 2u) {
        stored(address(place, row + 2u * step), a2);
        stored(address(place, row + 3u * step), a3);
    }
}

@compute @workgroup_size(THREADS)
fn ENTRY(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    PASS(place_of(thread, group, groups));
}
