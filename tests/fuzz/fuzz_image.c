/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a picture: refused with a message, or decoded to as many bytes as its header says, twice the
 * same, and probed to the same sizes.
 */
#include <stdlib.h>
#include <string.h>

#include "image/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct image_limits limits = {.max_pixels = 1 << 18};
    struct image_info info;
    struct image m, again;
    struct arena a;
    struct err e = {0}, e2 = {0};
    arena_init(&a, NULL, MEM_REQUEST);
    int probed = image_probe(data, size, &limits, &info, &e);
    if (probed != ERR_OK && e.message[0] == '\0')
        abort();
    int rc = image_decode(data, size, &limits, IMAGE_ALPHA_DROP, &a, &m, &e2);
    if (rc != ERR_OK && e2.message[0] == '\0')
        abort();
    if (rc == ERR_OK) {
        size_t bytes = (size_t)m.info.width * m.info.height * 3;
        if (probed != ERR_OK || memcmp(&info, &m.info, sizeof info) != 0)
            abort();
        if (image_decode(data, size, &limits, IMAGE_ALPHA_DROP, &a, &again, &e) != ERR_OK ||
            memcmp(m.rgb, again.rgb, bytes) != 0)
            abort();
    }
    arena_release(&a);
    return 0;
}
