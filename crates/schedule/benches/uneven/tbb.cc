// The work of shapes.rs through TBB's parallel_for. Reads `load COUNT` with an item a line, and `run`; answers each run
// with its nanoseconds and the checksum of its results.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/version.h>

struct Item {
    uint32_t seed, rounds;
};

static uint64_t work(const Item &item) {
    uint64_t value = item.seed;
    for (uint32_t round = 0; round < item.rounds; round++) {
        value = value * 0x9E3779B97F4A7C15u + 0x7F4A7C15u;
        value ^= value >> 29;
    }
    return value;
}

int main() {
    std::ios::sync_with_stdio(false);
    std::cout << TBB_VERSION_STRING << std::endl;
    std::vector<Item> items;
    std::string command;
    while (std::cin >> command) {
        if (command == "load") {
            size_t count;
            std::cin >> count;
            items.resize(count);
            for (Item &item : items)
                std::cin >> item.seed >> item.rounds;
            continue;
        }
        auto start = std::chrono::steady_clock::now();
        // Not zeroed first, since Rust's vectors are not either.
        std::unique_ptr<uint64_t[]> results(new uint64_t[items.size()]);
        tbb::parallel_for(
            tbb::blocked_range<size_t>(0, items.size()),
            [&](const tbb::blocked_range<size_t> &range) {
                for (size_t i = range.begin(); i < range.end(); i++)
                    results[i] = work(items[i]);
            },
            tbb::auto_partitioner());
        auto took = std::chrono::steady_clock::now() - start;
        uint64_t checksum = 0;
        for (size_t i = 0; i < items.size(); i++)
            checksum = (checksum ^ results[i]) * 0x100000001B3u;
        std::cout << std::chrono::duration_cast<std::chrono::nanoseconds>(took).count() << ' ' << checksum << std::endl;
    }
}
