/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of fusions, expanded from fusions.def, and the words that choose among them. Owns no pass: those
 * are graph_fuse.c's. Refuses a name that the table does not have.
 */
#include "graph/graph.h"

#include <stdio.h>
#include <string.h>

static const struct fusion_info fusion_table[FUSION_N] = {
#define FUSION(ID, name_, exactness_, limit_, meaning_)                                                      \
    [FUSION_##                                                                                               \
        ID] = {.name = (name_), .exactness = FUSION_##exactness_, .limit = (limit_), .meaning = (meaning_)},
#include "graph/fusions.def"
#undef FUSION
};

_Static_assert(FUSION_N <= 32, "fusions are bits of a 32-bit mask");

const struct fusion_info *fusion_info(enum fusion f)
{
    return (unsigned)f < FUSION_N ? &fusion_table[f] : NULL;
}

const char *fusion_exactness_name(enum fusion_exactness x)
{
    return x == FUSION_BIT_EQUAL ? "bit-equal" : "bounded";
}

uint32_t fusions_exact(void)
{
    uint32_t mask = 0;
    for (unsigned i = 0; i < FUSION_N; i++)
        if (fusion_table[i].exactness == FUSION_BIT_EQUAL)
            mask |= FUSION_BIT(i);
    return mask;
}

static bool is_word(const char *text, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(text, word, n) == 0;
}

int fusions_parse(const char *text, uint32_t *mask, struct err *e)
{
    uint32_t out = text ? 0 : fusions_exact();
    for (size_t n; text; text = text[n] ? text + n + 1 : NULL) {
        unsigned i = 0;
        n = strcspn(text, ",");
        if (is_word(text, n, "none"))
            continue;
        if (is_word(text, n, "all")) {
            out |= fusions_exact();
            continue;
        }
        while (i < FUSION_N && !is_word(text, n, fusion_table[i].name))
            i++;
        if (i == FUSION_N) {
            char known[FUSIONS_TEXT];
            err_set(e, ERR_USAGE, "'%.*s' is no fusion", n < 40 ? (int)n : 40, text);
            err_hint(e, "use all, none, or any of %s", fusions_format(UINT32_MAX, known, sizeof known));
            return ERR_USAGE;
        }
        out |= FUSION_BIT(i);
    }
    *mask = out;
    return ERR_OK;
}

const char *fusions_format(uint32_t mask, char *buf, size_t bytes)
{
    size_t at = 0;
    snprintf(buf, bytes, "none");
    for (unsigned i = 0; i < FUSION_N && at < bytes; i++)
        if (mask & FUSION_BIT(i)) {
            int n = snprintf(buf + at, bytes - at, "%s%s", at ? "," : "", fusion_table[i].name);
            at += n > 0 ? (size_t)n : 0;
        }
    return buf;
}
