// Each thread multiplies two elements again and again. Follows the arithmetic of `Fr`.

struct Params { iterations: u32, count: u32 }

@group(0) @binding(0) var<storage, read_write> pairs: array<Fr>;
var<immediate> params: Params;

@compute @workgroup_size(128)
fn products(@builtin(global_invocation_id) id: vec3<u32>) {
    let thread = id.x;
    if (thread >= params.count) { return; }
    var a = pairs[2u * thread];
    var b = pairs[2u * thread + 1u];
    for (var i = 0u; i < params.iterations; i++) {
        a = fr_mul(a, b);
        b = fr_mul(b, a);
    }
    pairs[2u * thread] = a;
    pairs[2u * thread + 1u] = b;
}
