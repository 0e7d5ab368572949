/* Time of MPI_Allreduce by size, for bench/compare/all_reduce: mpicc -O2, then mpirun -n RANKS
   all_reduce_mpi BYTES... Prints one JSON line per size, like the all_reduce program of Regatta. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int repeats(long bytes) {
    long n = (160L << 20) / (bytes > 0 ? bytes : 1);
    return n < 4 ? 4 : n > 1000 ? 1000 : (int)n;
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int a = 1; a < argc; a++) {
        long bytes = atol(argv[a]);
        int n = repeats(bytes), warm_up = n / 10 + 2;
        float *data = calloc(bytes / 4 + 1, 4);
        double *times = malloc(n * sizeof *times);
        for (int i = 0; i < warm_up + n; i++) {
            double start = MPI_Wtime();
            MPI_Allreduce(MPI_IN_PLACE, data, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (i >= warm_up)
                times[i - warm_up] = MPI_Wtime() - start;
        }
        qsort(times, n, sizeof *times, ascending);
        if (rank == 0) {
            printf("{\"bytes\": %ld, \"us\": %.3f}\n", bytes, times[n / 2] * 1e6);
            fflush(stdout);
        }
        free(times);
        free(data);
    }
    MPI_Finalize();
    return 0;
}
