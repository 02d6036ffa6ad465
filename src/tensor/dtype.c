/* SPDX-License-Identifier: Apache-2.0
 *
 * Element types and shapes: one table, checked arithmetic. Knows no memory layout and no device.
 */
#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"

struct dtype_row {
    uint32_t dtype;
    uint8_t bits;
    bool is_float;
    double max_finite;
    const char *name;  /* safetensors */
    const char *torch; /* NULL: torch has no word for it here */
};

static const struct dtype_row rows[] = {
    {D0_F32, 32, true, 3.4028234663852886e38, "F32", "float32"},
    {D0_BF16, 16, true, 3.3895313892515355e38, "BF16", "bfloat16"},
    {D0_F16, 16, true, 65504.0, "F16", "float16"},
    {D0_I32, 32, false, 0, "I32", "int32"},
    {D0_I64, 64, false, 0, "I64", "int64"},
    {D0_U8, 8, false, 0, "U8", "uint8"},
    {D0_I8, 8, false, 0, "I8", "int8"},
    {D0_F64, 64, true, 1.7976931348623157e308, "F64", "float64"},
    {D0_BOOL, 8, false, 0, "BOOL", "bool"},
    {D0_I16, 16, false, 0, "I16", "int16"},
    {D0_U16, 16, false, 0, "U16", "uint16"},
    {D0_U32, 32, false, 0, "U32", "uint32"},
    {D0_U64, 64, false, 0, "U64", "uint64"},
    {D0_F8_E4M3, 8, true, 448.0, "F8_E4M3", "float8_e4m3fn"},
    {D0_F8_E5M2, 8, true, 57344.0, "F8_E5M2", "float8_e5m2"},
    {D0_F8_E8M0, 8, true, 1.7014118346046923e38, "F8_E8M0", "float8_e8m0fnu"},
    {D0_F4, 4, true, 6.0, "F4", NULL},
    {D0_F6_E2M3, 6, true, 7.5, "F6_E2M3", NULL},
    {D0_F6_E3M2, 6, true, 28.0, "F6_E3M2", NULL},
    {D0_C64, 64, false, 0, "C64", "complex64"},
    {D0_F8_E4M3FNUZ, 8, true, 240.0, "F8_E4M3FNUZ", "float8_e4m3fnuz"},
    {D0_F8_E5M2FNUZ, 8, true, 57344.0, "F8_E5M2FNUZ", "float8_e5m2fnuz"},
    {D0_U4, 4, false, 0, "U4", NULL},
};

static const struct dtype_row *find(uint32_t dtype)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].dtype == dtype)
            return &rows[i];
    return NULL;
}

unsigned dtype_bits(uint32_t dtype)
{
    const struct dtype_row *r = find(dtype);
    return r ? r->bits : 0;
}

const char *dtype_name(uint32_t dtype)
{
    const struct dtype_row *r = find(dtype);
    return r ? r->name : "?";
}

uint32_t dtype_parse(const char *safetensors_name)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (!strcmp(rows[i].name, safetensors_name) && rows[i].dtype != D0_U4) /* not a word of files */
            return rows[i].dtype;
    return 0;
}

uint32_t dtype_parse_torch(const char *name)
{
    if (str_starts(name, "torch."))
        name += strlen("torch.");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].torch && !strcmp(rows[i].torch, name))
            return rows[i].dtype;
    return 0;
}

bool dtype_is_float(uint32_t dtype)
{
    const struct dtype_row *r = find(dtype);
    return r && r->is_float;
}

double dtype_max_finite(uint32_t dtype)
{
    const struct dtype_row *r = find(dtype);
    return r ? r->max_finite : 0;
}

bool shape_elements(const int64_t *dims, unsigned n_dims, uint64_t *out)
{
    uint64_t n = 1;
    for (unsigned i = 0; i < n_dims; i++)
        if (dims[i] < 0 || !mul_u64(n, (uint64_t)dims[i], &n))
            return false;
    *out = n;
    return true;
}

bool shape_bytes(const int64_t *dims, unsigned n_dims, uint32_t dtype, uint64_t *out)
{
    uint64_t elements, bits;
    unsigned width = dtype_bits(dtype);
    if (!width || !shape_elements(dims, n_dims, &elements) || !mul_u64(elements, width, &bits) || bits % 8)
        return false;
    *out = bits / 8;
    return true;
}

const char *shape_format(const int64_t *dims, unsigned n_dims, char *buf, size_t bytes)
{
    size_t used = 0;
    int n = snprintf(buf, bytes, "[");
    for (unsigned i = 0; i < n_dims && n >= 0; i++) {
        used += (size_t)n < bytes - used ? (size_t)n : bytes - used - 1;
        n = snprintf(buf + used, bytes - used, i ? ", %lld" : "%lld", (long long)dims[i]);
    }
    if (n >= 0)
        used += (size_t)n < bytes - used ? (size_t)n : bytes - used - 1;
    snprintf(buf + used, bytes - used, "]");
    return buf;
}
