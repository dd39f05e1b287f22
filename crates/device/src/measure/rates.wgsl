// The kernels that measure a device. `iterations` sets how long a launch takes; the results are checked.

struct Params {
    iterations: u32,
    addend: u32,
}

var<immediate> params: Params;

@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@group(0) @binding(0) var<storage, read_write> floats: array<f32>;
@group(0) @binding(0) var<storage, read> copy_in: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> copy_out: array<vec4<u32>>;

// Eight independent chains of x = x * x + addend, so that latency hides behind throughput.
@compute @workgroup_size(256)
fn int32_multiply(@builtin(global_invocation_id) id: vec3<u32>) {
    let first = vec4<u32>(id.x * 8u);
    var low = first + vec4<u32>(0u, 1u, 2u, 3u);
    var high = first + vec4<u32>(4u, 5u, 6u, 7u);
    let addend = vec4<u32>(params.addend);
    for (var i = 0u; i < params.iterations; i++) {
        low = low * low + addend;
        high = high * high + addend;
    }
    let both = low ^ high;
    words[id.x] = both.x ^ both.y ^ both.z ^ both.w;
}

// Eight independent chains of x = x * 0.75 + 0.5.
@compute @workgroup_size(256)
fn f32_multiply_add(@builtin(global_invocation_id) id: vec3<u32>) {
    let first = vec4<f32>(f32(id.x % 1024u));
    var low = first + vec4<f32>(0.0, 1.0, 2.0, 3.0);
    var high = first + vec4<f32>(4.0, 5.0, 6.0, 7.0);
    for (var i = 0u; i < params.iterations; i++) {
        low = fma(low, vec4<f32>(0.75), vec4<f32>(0.5));
        high = fma(high, vec4<f32>(0.75), vec4<f32>(0.5));
    }
    let both = low + high;
    floats[id.x] = both.x + both.y + both.z + both.w;
}

@compute @workgroup_size(256)
fn copy_words(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let stride = groups.x * 256u;
    for (var i = id.x; i < params.iterations; i += stride) {
        copy_out[i] = copy_in[i];
    }
}

@compute @workgroup_size(256)
fn nothing() {}
