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

const THREADS = 256u;
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
    // a binary counter do.
    var waiting: array<array<u32, 8>, 9>;
    var digest: array<u32, 8>;
    for (var own = 0u; own < (1u << alone); own++) {
        var index = (thread << alone) + own;
        let leaf = (block << height) + index;
        if (params.hashed != 0u) {
            digest = load(leaf);
        } else {
            digest = leaf_hash(leaf);
        }
        if (params.whole != 0u) {
            store(nodes + index, digest);
        }
        let merges = countTrailingZeros(~own);
        for (var level = 0u; level < merges; level++) {
            digest = node_hash(waiting[level], digest);
            index >>= 1u;
            if (params.whole != 0u) {
                store(nodes + level_start(height, level + 1u) + index, digest);
            }
        }
        waiting[merges] = digest;
    }

    // Then the workgroup reduces the threads' nodes together.
    for (var step = 1u; step <= LOG_THREADS; step++) {
        together[thread] = digest;
        workgroupBarrier();
        let count = THREADS >> step;
        if (thread < count) {
            digest = node_hash(together[2u * thread], together[2u * thread + 1u]);
            if (params.whole != 0u) {
                store(nodes + level_start(height, alone + step) + thread, digest);
            }
        }
        workgroupBarrier();
    }
    if (thread == 0u && params.whole == 0u) {
        store(block, digest);
    }
}
