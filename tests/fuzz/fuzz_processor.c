/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: the JSON of an image processor with sizes of a picture. Refused with a message, or planned
 * twice the same within the limits, and processed into as many finite values as the plan says.
 *
 * Four bytes of width and height, then {"pre": {}, "proc": {}, "config": {}}, or what stands for "pre" alone.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "image/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct image_processor *p, uint32_t width, uint32_t height, struct arena *a)
{
    const struct image_limits limits = {.max_pixels = 1 << 15};
    struct image_plan s, again;
    struct err e = {0};
    int rc = image_plan(p, width, height, &limits, &s, &e);
    if (rc != ERR_OK && e.message[0] == '\0')
        abort();
    if (rc != ERR_OK)
        return;
    if (image_plan(p, width, height, &limits, &again, &e) != ERR_OK || s.placeholders != again.placeholders ||
        s.n_rows != again.n_rows)
        abort();
    uint64_t n = s.n_rows * s.row_floats;
    if (!n || n > (uint64_t)3 * 16 * limits.max_pixels)
        abort();
    float *x;
    struct image m = {.info = {.width = width, .height = height},
                      .rgb = arena_alloc(a, (size_t)width * height * 3)};
    if (!m.rgb)
        return;
    memset(m.rgb, 200, (size_t)width * height * 3);
    if (image_process(p, &s, &m, a, &x, &e) == ERR_OK)
        for (uint64_t i = 0; i < n; i++)
            if (!isfinite(x[i]))
                abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct json_limits limits = {.max_bytes = 1 << 16};
    const struct json *v;
    struct arena a;
    if (size < 4)
        return 0;
    uint32_t width = data[0] | (uint32_t)data[1] << 8, height = data[2] | (uint32_t)data[3] << 8;
    arena_init(&a, NULL, MEM_REQUEST);
    if (json_parse((const char *)data + 4, size - 4, &limits, &a, &v, NULL) == ERR_OK) {
        struct image_configs c = {json_get(v, "pre"), json_get(v, "proc"), json_get(v, "config")};
        if (!c.preprocessor && !c.processor)
            c.preprocessor = v;
        for (int backend = IMAGE_TORCHVISION; backend <= IMAGE_PILLOW; backend++) {
            enum image_backend chosen = (enum image_backend)backend;
            struct image_processor p;
            struct err e = {0};
            int rc = image_processor_open(&c, &chosen, &p, &e);
            if (rc != ERR_OK && e.message[0] == '\0')
                abort();
            if (rc == ERR_OK)
                use(&p, width, height, &a);
        }
    }
    arena_release(&a);
    return 0;
}
