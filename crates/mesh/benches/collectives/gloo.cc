// The peer through Gloo: two processes over loopback, all-reduce of f32 by sum, in place, over the sizes given as
// `bytes:iterations`. Rank 0 prints `bytes seconds` a line. The first argument is a folder for the rendezvous.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

static int run(int rank, int size, int count, char **arguments) {
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    gloo::rendezvous::FileStore store(arguments[1]);
    context->connectFullMesh(store, device);
    uint32_t tag = 1;
    for (int index = 2; index < count; index++) {
        size_t bytes, iterations;
        if (sscanf(arguments[index], "%zu:%zu", &bytes, &iterations) != 2) return 2;
        std::vector<float> data(bytes / sizeof(float), float(rank + 1));
        auto reduce = [&] {
            gloo::AllreduceOptions options(context);
            options.setOutput(data.data(), data.size());
            options.setReduceFunction([](void *c, const void *a, const void *b, size_t n) { gloo::sum<float>(c, a, b, n); });
            options.setTag(tag++);
            gloo::allreduce(options);
        };
        reduce();
        for (float value : data)
            if (value != float(size * (size + 1)) / 2) return 3;
        for (float &value : data) value = 0;
        auto barrier = [&] {
            gloo::BarrierOptions options(context);
            options.setTag(tag++);
            gloo::barrier(options);
        };
        std::chrono::steady_clock::time_point start;
        for (size_t i = 0; i < iterations + iterations / 4; i++) {
            if (i == iterations / 4) {
                barrier();
                start = std::chrono::steady_clock::now();
            }
            reduce();
        }
        std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start, fresh{};
        for (size_t i = 0; i < iterations; i++) {
            for (float &value : data) value = float(i);
            barrier();
            start = std::chrono::steady_clock::now();
            reduce();
            fresh += std::chrono::steady_clock::now() - start;
        }
        if (rank == 0)
            printf("%zu %.9f %.9f\n", bytes, seconds.count() / double(iterations), fresh.count() / double(iterations));
    }
    return 0;
}

int main(int count, char **arguments) {
    pid_t child = fork();
    int code = run(child == 0 ? 1 : 0, 2, count, arguments);
    if (child == 0) return code;
    int status = 0;
    waitpid(child, &status, 0);
    return code ? code : WEXITSTATUS(status);
}
