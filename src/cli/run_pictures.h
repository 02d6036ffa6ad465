/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to cli: the pictures of day0 run.
 */
#ifndef CLI_RUN_PICTURES_H
#define CLI_RUN_PICTURES_H

#include "api/api.h"

#define RUN_MAX_PICTURES 64
#define RUN_MARKER       "<image>" /* where a picture stands in the text */

/* A prompt with pictures, ready to generate from. */
struct run_pictures {
    struct arena arena;
    struct prompt_pictures pictures;
    struct prompt_layout layout;
    struct sched_image *images; /* [pictures.n] */
    uint64_t decode_ns, process_ns;
    struct generate_pictures generate; /* points into the above */
};

/* One message of a user: the pictures of the files where the text has RUN_MARKER, those that are left before
 * it. Renders it, and makes the pictures one by one. Release in any case. ERR_INVALID: more markers than
 * files. */
int run_pictures_make(struct run_pictures *r, const struct session *s, const char *text, size_t n,
                      const char *const *files, uint32_t n_files, struct ids *ids, struct err *e);
void run_pictures_release(struct run_pictures *r);

#endif
