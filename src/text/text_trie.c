/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte trie of tokens. Owns its nodes; immutable once built. A walk costs at most TEXT_MAX_ADDED
 * steps, whatever the text is.
 */
#include <stdlib.h>
#include <string.h>

#include "text/text_impl.h"

void trie_init(struct trie *t)
{
    memset(t, 0, sizeof *t);
}

void trie_release(struct trie *t)
{
    free(t->nodes);
    memset(t, 0, sizeof *t);
}

static int new_node(struct trie *t, unsigned char byte, uint32_t *out)
{
    if (t->n >= UINT32_MAX / 2)
        return ERR_LIMIT;
    if (vec_reserve((void **)&t->nodes, &t->capacity, t->n + 1, sizeof *t->nodes))
        return ERR_NOMEM;
    t->nodes[t->n] = (struct trie_node){.added = -1, .byte = byte};
    *out = (uint32_t)t->n++;
    return ERR_OK;
}

static uint32_t child_of(const struct trie *t, uint32_t node, unsigned char byte)
{
    uint32_t c = node == 0 ? t->first[byte] : t->nodes[node].child;
    while (node != 0 && c != 0 && t->nodes[c].byte != byte)
        c = t->nodes[c].sibling;
    return c;
}

int trie_add(struct trie *t, struct span key, int32_t added)
{
    uint32_t node = 0;
    if (t->n == 0) {
        int rc = new_node(t, 0, &node);
        if (rc)
            return rc;
    }
    for (size_t i = 0; i < key.n; i++) {
        unsigned char b = (unsigned char)key.s[i];
        uint32_t c = child_of(t, node, b);
        if (c == 0) {
            int rc = new_node(t, b, &c);
            if (rc)
                return rc;
            if (node == 0) {
                t->first[b] = c;
            } else {
                t->nodes[c].sibling = t->nodes[node].child;
                t->nodes[node].child = c;
            }
        }
        node = c;
    }
    /* the same text twice: the later one counts, as in the reference implementation */
    if (node != 0)
        t->nodes[node].added = added;
    return ERR_OK;
}

bool trie_step(const struct trie *t, uint32_t *node, unsigned char byte, int32_t *value)
{
    if (t->n == 0)
        return false;
    *node = child_of(t, *node, byte);
    if (*node == 0)
        return false;
    *value = t->nodes[*node].added;
    return true;
}

int32_t trie_longest(const struct trie *t, const char *s, size_t n, size_t *length)
{
    int32_t best = -1;
    uint32_t node = 0;
    for (size_t i = 0; i < n && t->n > 0; i++) {
        node = child_of(t, node, (unsigned char)s[i]);
        if (node == 0)
            break;
        if (t->nodes[node].added >= 0) {
            best = t->nodes[node].added;
            *length = i + 1;
        }
    }
    return best;
}
