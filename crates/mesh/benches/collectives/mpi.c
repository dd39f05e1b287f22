/* The peer through MPI called directly from C: all-reduce of f32 by sum, in place, over the sizes given as
 * `bytes:iterations`. Rank 0 prints `bytes seconds seconds` a line: of vectors that are reduced again and again, and of
 * vectors that each rank has just written. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int index = 1; index < count; index++) {
        size_t bytes, iterations;
        if (sscanf(arguments[index], "%zu:%zu", &bytes, &iterations) != 2) MPI_Abort(MPI_COMM_WORLD, 2);
        size_t elements = bytes / sizeof(float);
        float *data = malloc(bytes);
        for (size_t i = 0; i < elements; i++) data[i] = (float)(rank + 1);
        MPI_Allreduce(MPI_IN_PLACE, data, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        float expected = (float)size * (float)(size + 1) / 2;
        for (size_t i = 0; i < elements; i++)
            if (data[i] != expected) MPI_Abort(MPI_COMM_WORLD, 3);
        for (size_t i = 0; i < elements; i++) data[i] = 0;
        double start = 0;
        for (size_t i = 0; i < iterations + iterations / 4; i++) {
            if (i == iterations / 4) {
                MPI_Barrier(MPI_COMM_WORLD);
                start = MPI_Wtime();
            }
            MPI_Allreduce(MPI_IN_PLACE, data, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        }
        double seconds = (MPI_Wtime() - start) / (double)iterations;
        double fresh = 0;
        for (size_t i = 0; i < iterations; i++) {
            for (size_t j = 0; j < elements; j++) data[j] = (float)i;
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
            MPI_Allreduce(MPI_IN_PLACE, data, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            fresh += MPI_Wtime() - start;
        }
        if (rank == 0) printf("%zu %.9f %.9f\n", bytes, seconds, fresh / (double)iterations);
        free(data);
    }
    MPI_Finalize();
    return 0;
}
