/* The plain loop that the exerciser is compared with: reads or writes one word of each unit, one after the other.
 * usage: loop BYTES STRIDE WRITE(0|1) SECONDS; prints the bytes touched in a second. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    size_t size = strtoull(argv[1], 0, 0), stride = strtoull(argv[2], 0, 0);
    int write = atoi(argv[3]);
    double seconds = atof(argv[4]);
    char *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    madvise(memory, size, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < size; at += 8)
        *(uint64_t *)(memory + at) = at * 0x9e3779b97f4a7c15ull;
    volatile uint64_t sink = 0;
    uint64_t rounds = 0;
    double begun = now(), took;
    do {
        uint64_t seen = 0;
        if (write)
            for (size_t at = 0; at < size; at += stride)
                *(volatile uint64_t *)(memory + at) = at;
        else
            for (size_t at = 0; at < size; at += stride)
                seen ^= *(volatile uint64_t *)(memory + at);
        sink = seen;
        rounds++;
        took = now() - begun;
    } while (took < seconds);
    (void)sink;
    printf("%.0f\n", rounds * (double)(size / stride * stride) / took);
    return 0;
}
