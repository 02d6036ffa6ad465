/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to oracle: one array of another tool, in a .npy file of its own or in a safetensors file.
 */
#ifndef ORACLE_IMPORT_IMPL_H
#define ORACLE_IMPORT_IMPL_H

#include "ckpt/ckpt.h"

struct import_source {
    const char *name; /* "x.npy" without its ending, or the tensor's */
    const char *path;
    uint32_t dtype, n_dims;
    int64_t dims[TENSOR_MAX_DIMS];
    uint64_t offset;
};

/* Fills type, shape and offset. ERR_FORMAT, ERR_UNSUPPORTED. */
int npy_open(int fd, const char *path, uint64_t file_bytes, struct import_source *out, struct err *e);

#endif
