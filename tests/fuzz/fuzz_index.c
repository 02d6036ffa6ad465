/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as an index file: refused, or every file name is a plain one.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "ckpt/ckpt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena;
    struct ckpt_index x;
    struct err e = {0};
    arena_init(&arena, NULL, MEM_CKPT);
    int rc = ckpt_index_parse((const char *)data, size, &arena, &x, &e);
    if (rc && (e.message[0] == '\0' || x.n_entries))
        abort();
    size_t bad = 0;
    for (size_t i = 0; i < x.n_entries; i++) {
        uint32_t file = x.entries[i].file;
        bad += file == CKPT_INDEX_BAD_FILE;
        if (file != CKPT_INDEX_BAD_FILE && (file >= x.n_files || !path_is_plain_name(x.files[file])))
            abort();
    }
    if (bad != x.n_bad_files || (bad && !x.bad_file))
        abort();
    ckpt_index_release(&x);
    arena_release(&arena);
    return 0;
}
