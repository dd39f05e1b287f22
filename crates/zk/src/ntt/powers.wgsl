// Tables of powers. Follows the arithmetic of `Fr`.

struct PowerParams { count: u32, log_n: u32, reversed: u32, padding: u32 }

// `squares` begins with a factor; after it come the base, its square, its fourth power and so on.
@group(0) @binding(0) var<storage, read> squares: array<Fr>;
@group(0) @binding(1) var<storage, read_write> powers: array<Fr>;
var<immediate> params: PowerParams;

@compute @workgroup_size(256)
fn ntt_powers(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let index = (group.x + groups.x * (group.y + groups.y * group.z)) * 256u + thread;
    if (index >= params.count) { return; }
    var exponent = index;
    if (params.reversed != 0u && params.log_n > 0u) { exponent = reverseBits(index) >> (32u - params.log_n); }
    var power = squares[0];
    for (var bit = 1u; bit <= 32u; bit++) {
        if (exponent == 0u) { break; }
        if ((exponent & 1u) != 0u) { power = fr_mul(power, squares[bit]); }
        exponent >>= 1u;
    }
    powers[index] = power;
}
