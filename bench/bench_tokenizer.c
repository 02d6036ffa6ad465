/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_tokenizer TOKENIZER.json TEXT: processor seconds to encode the text, the best of five, and its number
 * of ids. On stderr how long the tokenizer took to open. For tokenizer_bench.sh.
 */
#include <stdio.h>
#include <time.h>

#include "base/file.h"
#include "text/text.h"

#define MAX_FILE (256u << 20)
#define RUNS     5

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    struct arena a;
    struct tokenizer *t = NULL;
    struct ids ids = {0};
    struct err e = {0};
    char *json, *text;
    size_t n, length;
    double best = 1e9;
    if (argc != 3) {
        fprintf(stderr, "usage: bench_tokenizer TOKENIZER.json TEXT\n");
        return 2;
    }
    arena_init(&a, NULL, MEM_MISC);
    int rc = file_read(argv[1], MAX_FILE, &a, &json, &n, &e);
    if (rc == 0)
        rc = file_read(argv[2], MAX_FILE, &a, &text, &length, &e);
    double begin = now();
    if (rc == 0)
        rc = tokenizer_open(&t, json, n, NULL, &e);
    fprintf(stderr, "opened in %.3f s\n", now() - begin);
    for (int i = 0; i < RUNS && rc == 0; i++) {
        ids.n = 0;
        begin = now();
        rc = tokenizer_encode(t, text, length, TOKENIZE_PARSE_SPECIAL, &ids, &e);
        double took = now() - begin;
        best = took < best ? took : best;
    }
    if (rc)
        fprintf(stderr, "%s\n", e.message);
    else
        printf("%.4f %zu\n", best, ids.n);
    tokenizer_close(t);
    ids_release(&ids);
    arena_release(&a);
    return rc != 0;
}
