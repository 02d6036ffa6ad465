/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a safetensors file: a verdict, and where it is OK, every tensor lies within the file, in
 * order, without overlap.
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct st_file *f, uint64_t file_bytes)
{
    uint64_t at = 8 + f->header_bytes;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct ckpt_tensor *t = &f->tensors[i];
        uint64_t bytes;
        if (t->offset != at || !shape_bytes(t->dims, t->n_dims, t->dtype, &bytes) || bytes != t->bytes)
            abort();
        at += bytes;
    }
    if (at != file_bytes || f->data_end != at || !f->complete)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena;
    struct st_file f;
    char why[200];
    arena_init(&arena, NULL, MEM_CKPT);
    enum st_verdict v = st_parse((const char *)data, size, size, &arena, &f, why, sizeof(why));
    if (v == ST_OK)
        check(&f, size);
    else if (why[0] == '\0')
        abort();
    /* Fuzzers rarely get the length right: the same bytes as the header of a file that is as long as it says.
     */
    if (size < 100000) {
        char *head = malloc(size + 8);
        if (head) {
            for (unsigned i = 0; i < 8; i++)
                head[i] = (char)((uint64_t)size >> (8 * i));
            if (size)
                memcpy(head + 8, data, size);
            st_parse(head, size + 8, size + 8, &arena, &f, why, sizeof(why));
            if (f.complete && f.layout == ST_METADATA_INCOMPLETE_BUFFER && f.n_unknown == 0 &&
                f.data_end > size + 8 &&
                st_parse(head, size + 8, f.data_end, &arena, &f, why, sizeof(why)) == ST_OK)
                check(&f, f.data_end);
            free(head);
        }
    }
    arena_release(&arena);
    return 0;
}
