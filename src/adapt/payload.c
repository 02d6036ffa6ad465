/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the scan of every byte of the weights for NaN and infinity.
 * Refuses: more host memory than one chunk.
 */
#include "adapt/job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "tensor/tensor.h"

#define CHUNK_BYTES (4u << 20)

static int scan_tensor(struct job *j, const struct ckpt_tensor *t, void *chunk, struct payload_result *out,
                       struct err *e)
{
    struct tensor_scan scan = {0};
    uint64_t bits = dtype_bits(t->dtype);
    if (!dtype_is_float(t->dtype) || bits % 8 != 0) {
        out->skipped++;
        return ERR_OK;
    }
    for (uint64_t at = 0; at < t->bytes; at += CHUNK_BYTES) {
        uint64_t n = t->bytes - at < CHUNK_BYTES ? t->bytes - at : CHUNK_BYTES;
        int rc = ckpt_read(j->ckpt, t, at, chunk, n, e);
        if (rc)
            return rc;
        if (!tensor_scan_add(&scan, chunk, t->dtype, (size_t)(n * 8 / bits))) {
            out->skipped++;
            return ERR_OK;
        }
    }
    out->tensors++;
    out->bytes += t->bytes;
    out->all_zero += scan.n > 0 && scan.n_zero == scan.n;
    if (scan.n_nan || scan.n_inf) {
        out->bad++;
        finding_add(j->f, FINDING_W016, t->name,
                    "%" PRIu64 " NaN and %" PRIu64 " infinite of %" PRIu64 " values in %s", scan.n_nan,
                    scan.n_inf, scan.n, t->shard < j->ckpt->n_shards ? j->ckpt->shards[t->shard].name : "?");
    }
    return ERR_OK;
}

int payload_scan(struct job *j, struct payload_result *out, struct err *e)
{
    uint64_t begin = clock_ns();
    void *chunk = malloc(CHUNK_BYTES);
    int rc = chunk ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory for reading weights");
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; rc == ERR_OK && i < j->ckpt->n_tensors; i++)
        rc = scan_tensor(j, &j->ckpt->tensors[i], chunk, out, e);
    free(chunk);
    out->seconds = (double)(clock_ns() - begin) / 1e9;
    return rc;
}
