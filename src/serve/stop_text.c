/* SPDX-License-Identifier: Apache-2.0
 *
 * Stop strings over a growing text. held is short: it never keeps more than the longest stop string less one
 * byte from one call to the next.
 */
#include "serve/stop_text.h"

#include <string.h>

/* Length of the longest end of s that is a proper beginning of stop. */
static size_t partial(const char *s, size_t n, const struct stop_string *stop)
{
    size_t k = n < stop->n - 1 ? n : stop->n - 1;
    while (k > 0 && memcmp(s + n - k, stop->text, k) != 0)
        k--;
    return k;
}

size_t stop_text_certain(struct stop_text *s)
{
    const char *text = strbuf_cstr(&s->held);
    size_t n = s->held.len, first = n, keep = 0;
    for (uint32_t i = 0; i < s->n_stops; i++) {
        const char *at = memmem(text, n, s->stops[i].text, s->stops[i].n);
        if (at && (size_t)(at - text) < first)
            first = (size_t)(at - text);
        s->hit = s->hit || at;
        size_t k = partial(text, n, &s->stops[i]);
        keep = k > keep ? k : keep;
    }
    return s->hit ? first : n - keep;
}

void stop_text_release(struct stop_text *s, size_t n)
{
    if (n > 0 && n < s->held.len)
        memmove(s->held.data, s->held.data + n, s->held.len - n);
    if (n > 0) {
        s->held.len -= n;
        s->held.data[s->held.len] = '\0';
    }
    s->released += n;
}
