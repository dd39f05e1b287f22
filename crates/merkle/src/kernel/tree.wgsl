// Reduces aligned blocks of leaves to their roots, one block per workgroup. The code before this one defines
// LEAF_BYTES, PREFIXED and DOUBLE and a hash function: `leaf_hash`, `node_hash`, and `to_memory_order`, which converts
// a word of a digest between registers and memory and is its own inverse.

struct Params {
    log_leaves_per_thread: u32,
    // The input is leaf hashes.
    prehashed: u32,
    // Write every node, level by level, instead of the root only.
    all_nodes: u32,
    // The block of the first workgroup.
    first_block: u32,
}

var<immediate> params: Params;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;

const LOG_THREADS = 8u;

var<workgroup> shared_digests: array<array<u32, 8>, 256>;

// Returns the index of a level's first node among the nodes of a block of 1 << height leaves.
fn level_start(height: u32, level: u32) -> u32 {
    return (2u << height) - (2u << (height - level));
}

fn store(at: u32, digest: array<u32, 8>) {
    var words = digest;
    for (var word = 0u; word < 8u; word++) {
        output[at * 8u + word] = to_memory_order(words[word]);
    }
}

fn load(at: u32) -> array<u32, 8> {
    var words: array<u32, 8>;
    for (var word = 0u; word < 8u; word++) {
        words[word] = to_memory_order(input[at * 8u + word]);
    }
    return words;
}

@compute @workgroup_size(256)
fn merkle(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let block = params.first_block + group.x;
    let log_own_leaves = params.log_leaves_per_thread;
    let height = log_own_leaves + LOG_THREADS;
    let nodes = block << (height + 1u);

    // A thread reduces its own leaves first: `pending` holds the roots of complete subtrees, one per level, like the set
    // bits of a binary counter. After its last leaf, the thread continues with the other threads' digests. There is one
    // call of `node_hash` only, because drivers inline every call.
    var pending: array<array<u32, 8>, 9>;
    var digest: array<u32, 8>;
    let own_leaves = 1u << log_own_leaves;
    for (var own = 0u; own < own_leaves; own++) {
        let leaf = (thread << log_own_leaves) + own;
        if (params.prehashed != 0u) {
            digest = load((block << height) + leaf);
        } else {
            digest = leaf_hash((block << height) + leaf);
        }
        if (params.all_nodes != 0u) {
            store(nodes + leaf, digest);
        }
        var merges = countTrailingZeros(~own);
        if (own + 1u == own_leaves) {
            merges = height;
        }
        for (var level = 0u; level < merges; level++) {
            var left: array<u32, 8>;
            var right = digest;
            var index = leaf >> (level + 1u);
            var is_active = true;
            if (level < log_own_leaves) {
                left = pending[level];
            } else {
                shared_digests[thread] = digest;
                workgroupBarrier();
                index = thread;
                is_active = thread < (1u << (height - level - 1u));
                if (is_active) {
                    left = shared_digests[2u * thread];
                    right = shared_digests[2u * thread + 1u];
                }
                workgroupBarrier();
            }
            if (is_active) {
                digest = node_hash(left, right);
                if (params.all_nodes != 0u) {
                    store(nodes + level_start(height, level + 1u) + index, digest);
                }
            }
        }
        if (merges < 9u) {
            pending[merges] = digest;
        }
    }
    if (thread == 0u && params.all_nodes == 0u) {
        store(block, digest);
    }
}
