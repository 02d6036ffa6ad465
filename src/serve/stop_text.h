/* SPDX-License-Identifier: Apache-2.0
 *
 * Text on its way out, held back as long as it could still become a stop string. Whole characters in, whole
 * characters out.
 */
#ifndef SERVE_STOP_TEXT_H
#define SERVE_STOP_TEXT_H

#include "serve/request_params.h"

struct stop_text {
    const struct stop_string *stops;
    uint32_t n_stops;
    struct strbuf held;
    uint64_t released; /* bytes given out so far */
    bool hit;          /* a stop string came: the rest is dropped */
};

/* After text was appended to held: how many of its bytes are certain now. Sets hit where a stop string begins
 * there. */
size_t stop_text_certain(struct stop_text *s);
/* Drops n bytes from the front of held; they were given out. */
void stop_text_release(struct stop_text *s, size_t n);

#endif
