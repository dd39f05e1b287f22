// Reduces aligned blocks of leaves to their roots, one block a workgroup. In front of this come definitions
// (LEAF_BYTES, PREFIXED, DOUBLE) and a hash function, which gives `leaf_hash`, `node_hash`, and what a digest's words
// are in memory (`in_memory`, its own inverse).

struct Params {
    log_leaves_a_thread: u32,
    // The input is digests, which are taken as they are.
    hashed: u32,
    // Every node is written out, level by level, and not the root alone.
    whole: u32,
    // The block that the first workgroup has.
    first_block: u32,
}

var<immediate> params: Params;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;

const LOG_THREADS = 8u;

var<workgroup> together: array<array<u32, 8>, 256>;

// Where a level's nodes begin among the nodes of a block of 1 << height leaves.
fn level_start(height: u32, level: u32) -> u32 {
    return (2u << height) - (2u << (height - level));
}

fn store(at: u32, digest: array<u32, 8>) {
    var words = digest;
    for (var word = 0u; word < 8u; word++) {
        output[at * 8u + word] = in_memory(words[word]);
    }
}

fn load(at: u32) -> array<u32, 8> {
    var words: array<u32, 8>;
    for (var word = 0u; word < 8u; word++) {
        words[word] = in_memory(input[at * 8u + word]);
    }
    return words;
}

@compute @workgroup_size(256)
fn merkle(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let block = params.first_block + group.x;
    let alone = params.log_leaves_a_thread;
    let height = alone + LOG_THREADS;
    let nodes = block << (height + 1u);

    // A thread reduces its own leaves first: the roots of complete subtrees wait in `waiting`, one a level, as the ones of
    // a binary counter do. After its last leaf it goes on with what the other threads have. There is one call of
    // `node_hash`, because drivers write out every call.
    var waiting: array<array<u32, 8>, 9>;
    var digest: array<u32, 8>;
    let own_leaves = 1u << alone;
    for (var own = 0u; own < own_leaves; own++) {
        let leaf = (thread << alone) + own;
        if (params.hashed != 0u) {
            digest = load((block << height) + leaf);
        } else {
            digest = leaf_hash((block << height) + leaf);
        }
        if (params.whole != 0u) {
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
            if (level < alone) {
                left = waiting[level];
            } else {
                together[thread] = digest;
                workgroupBarrier();
                index = thread;
                is_active = thread < (1u << (height - level - 1u));
                if (is_active) {
                    left = together[2u * thread];
                    right = together[2u * thread + 1u];
                }
                workgroupBarrier();
            }
            if (is_active) {
                digest = node_hash(left, right);
                if (params.whole != 0u) {
                    store(nodes + level_start(height, level + 1u) + index, digest);
                }
            }
        }
        if (merges < 9u) {
            waiting[merges] = digest;
        }
    }
    if (thread == 0u && params.whole == 0u) {
        store(block, digest);
    }
}
