/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights stored as codes, widened to float32 sixteen at a time, compiled once per instruction set. The
 * values are those of tensor/format.c, bit for bit; formats that do not come in whole runs of sixteen go
 * there.
 */

/* Sixteen codes from element k on (a multiple of 16 for half bytes), without scale. */
INLINE __m128i NAME(nibbles)(const unsigned char *row, size_t k)
{
    const __m128i low = _mm_set1_epi8(15);
    __m128i v = _mm_loadl_epi64((const __m128i *)(row + k / 2));
    return _mm_unpacklo_epi8(_mm_and_si128(v, low), _mm_and_si128(_mm_srli_epi16(v, 4), low));
}

INLINE lanes NAME(sixteen)(const uint32_t dtype, const unsigned char *row, size_t k)
{
    if (dtype == D0_U4)
        return lanes_of_u8(NAME(nibbles)(row, k));
    if (dtype == D0_F4) { /* the upper bytes of 0 0.5 1 1.5 2 3 4 6 and their negatives as F16 */
        const __m128i table =
            _mm_setr_epi8(0, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46, (char)0x80, (char)0xb8, (char)0xbc,
                          (char)0xbe, (char)0xc0, (char)0xc2, (char)0xc4, (char)0xc6);
        __m256i upper = _mm256_cvtepu8_epi16(_mm_shuffle_epi8(table, NAME(nibbles)(row, k)));
        return lanes_of_halves(_mm256_slli_epi16(upper, 8));
    }
    __m128i bytes = _mm_loadu_si128((const __m128i *)(row + k));
    if (dtype == D0_I8)
        return lanes_of_i8(bytes);
    if (dtype == D0_U8)
        return lanes_of_u8(bytes);
    __m256i v = _mm256_cvtepu8_epi16(bytes);
    if (dtype == D0_F8_E5M2)
        return lanes_of_halves(_mm256_slli_epi16(v, 8));
    /* E4M3: as F16 its exponent is 8 too small; all ones is NaN there, too */
    const __m256i ones = _mm256_set1_epi16(0x7f);
    __m256i magnitude = _mm256_and_si256(v, ones), sign = _mm256_slli_epi16(_mm256_andnot_si256(ones, v), 8);
    __m256i half = _mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign);
    half = _mm256_or_si256(half, _mm256_cmpeq_epi16(magnitude, ones));
    return lanes_mul(lanes_of_halves(half), lanes_set1(256));
}

INLINE float NAME(scale_of)(const unsigned char *scales, uint32_t dtype, size_t i)
{
    union {
        uint32_t u;
        float f;
    } v;
    if (dtype == D0_F8_E8M0 && scales[i] != 0 && scales[i] != 255) {
        v.u = (uint32_t)scales[i] << 23;
        return v.f;
    }
    if (dtype == D0_F8_E4M3 && (scales[i] & 0x7f) != 0x7f)
        return _cvtsh_ss((uint16_t)((scales[i] & 0x7f) << 7 | (scales[i] & 0x80) << 8)) * 256;
    if (dtype == D0_F32 || dtype == D0_BF16)
        return ref_load(scales, dtype, i);
    return tensor_scale(scales, dtype, i);
}

/* Where one row lies, counted over all matrices. */
struct NAME(code_row) {
    const unsigned char *codes;
    size_t first; /* its first group, in scales and zeros */
    float global;
};

INLINE struct NAME(code_row)
    NAME(code_row_of)(const struct tensor_form *f, const unsigned char *data, size_t row)
{
    const struct d0_format *q = &f->format;
    const size_t n = (size_t)f->n, group_n = q->group_n && q->group_n < n ? q->group_n : n, matrix = row / n;
    return (struct NAME(code_row)){
        .codes = data + row * f->row_bytes,
        .first = (matrix * (size_t)f->groups_n + row % n / group_n) * (size_t)f->groups_k,
        .global = q->flags & D0_FORMAT_GLOBAL ? ref_load(data + f->global, D0_F32, matrix) : 1};
}

INLINE float NAME(group_scale)(const struct tensor_form *f, const unsigned char *data,
                               const struct NAME(code_row) * r, size_t group)
{
    const struct d0_format *q = &f->format;
    float scale = NAME(scale_of)(data + f->scales, q->scale_dtype, r->first + group);
    if (q->flags & D0_FORMAT_GLOBAL)
        scale = q->flags & D0_FORMAT_DIVIDE ? scale / r->global : scale * r->global;
    return scale;
}

INLINE float NAME(group_zero)(const struct tensor_form *f, const unsigned char *data,
                              const struct NAME(code_row) * r, size_t group)
{
    return f->format.flags & D0_FORMAT_ZEROS ? (float)data[f->zeros + r->first + group]
                                             : (float)f->format.bias;
}

INLINE size_t NAME(group_columns)(const struct tensor_form *f)
{
    size_t k = (size_t)f->k, group_k = f->format.group_k;
    return group_k && group_k < k ? group_k : k;
}

/* Are groups whole runs of sixteen columns in the order of the columns? */
INLINE bool NAME(codes_in_runs)(const struct tensor_form *f)
{
    size_t group_k = f->format.group_k;
    return !(f->format.flags & D0_FORMAT_ORDER) &&
           (group_k == 0 || group_k >= (size_t)f->k || group_k % 16 == 0);
}

/* One run of a row within one column of blocks: `n` elements from `from`, each sixteen `stride` floats apart.
 */
INLINE float *NAME(widen_group)(const uint32_t dtype, const unsigned char *row, size_t from, size_t n,
                                float scale, float zero, size_t stride, float *out)
{
    const lanes s = lanes_set1(scale), z = lanes_set1(zero);
    for (size_t k = from; k < from + n; k += 16, out += stride)
        lanes_store(out, lanes_mul(lanes_sub(NAME(sixteen)(dtype, row, k), z), s));
    return out;
}

INLINE void NAME(widen_codes_of)(const uint32_t dtype, const struct tensor_form *f, const unsigned char *data,
                                 size_t row, size_t from, size_t n, size_t stride, float *out)
{
    const size_t group_k = NAME(group_columns)(f);
    const struct NAME(code_row) r = NAME(code_row_of)(f, data, row);
    while (n >= 16) {
        size_t group = from / group_k, end = (group + 1) * group_k,
               run = (end < from + n ? end - from : n) / 16 * 16;
        out = NAME(widen_group)(dtype, r.codes, from, run, NAME(group_scale)(f, data, &r, group),
                                NAME(group_zero)(f, data, &r, group), stride, out);
        from += run;
        n -= run;
    }
    if (n) {
        float rest[16] = {0};
        tensor_form_run(f, data, row, from, n, rest);
        memcpy(out, rest, sizeof rest);
    }
}

/* Elements from .. from + n - 1 of a row to out, each sixteen `stride` floats apart; a last part of sixteen
 * is filled up with zeroes. */
static void NAME(widen_codes)(const struct tensor_form *f, const unsigned char *data, size_t row, size_t from,
                              size_t n, size_t stride, float *out)
{
    if (!NAME(codes_in_runs)(f) || from % 16) {
        for (; n; out += stride) {
            size_t m = n < 16 ? n : 16;
            memset(out, 0, 16 * sizeof *out);
            tensor_form_run(f, data, row, from, m, out);
            from += m;
            n -= m;
        }
        return;
    }
    switch (f->dtype) {
    case D0_F8_E4M3:
        NAME(widen_codes_of)(D0_F8_E4M3, f, data, row, from, n, stride, out);
        break;
    case D0_F8_E5M2:
        NAME(widen_codes_of)(D0_F8_E5M2, f, data, row, from, n, stride, out);
        break;
    case D0_F4:
        NAME(widen_codes_of)(D0_F4, f, data, row, from, n, stride, out);
        break;
    case D0_I8:
        NAME(widen_codes_of)(D0_I8, f, data, row, from, n, stride, out);
        break;
    case D0_U8:
        NAME(widen_codes_of)(D0_U8, f, data, row, from, n, stride, out);
        break;
    default:
        NAME(widen_codes_of)(D0_U4, f, data, row, from, n, stride, out);
        break;
    }
}
