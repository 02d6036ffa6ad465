/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: whether tokenizer.json (or tiktoken.model) is there, can be read, and fits config.json. Refuses to
 * render or encode anything.
 */
#include "preflight/preflight_internal.h"

#include <string.h>

#include "base/file.h"
#include "text/text.h"

#define TOKENIZER           "tokenizer.json"
#define RANKS               "tiktoken.model" /* read where there is no tokenizer.json */
#define MAX_TOKENIZER_BYTES (256u * 1024u * 1024u)

/* Other files that hold a tokenizer, for the evidence. */
static int report_absent(struct ckpt *c, struct findings *f, struct err *e)
{
    static const char *const others[] = {"tokenizer.model", "vocab.json", "tekken.json", "vocab.txt"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        struct file_info info;
        const char *path = ckpt_path(c, others[i]);
        int rc = path ? file_stat(path, &info, e) : err_set(e, ERR_NOMEM, "no memory for a path");
        if (rc)
            return rc;
        if (info.exists) {
            finding_add_remedy(
                f, FINDING_T001, TOKENIZER,
                "convert the tokenizer to tokenizer.json (save_pretrained of the fast tokenizer)",
                "not in the directory; %s is, which is not read", others[i]);
            return ERR_OK;
        }
    }
    finding_add(f, FINDING_T001, TOKENIZER, "not in the directory");
    return ERR_OK;
}

static void check_ids(const struct spec *s, const struct tokenizer *t, const char *name, struct findings *f)
{
    uint32_t n = tokenizer_vocab(t);
    if ((int64_t)n > s->vocab_size) {
        finding_add(f, FINDING_T003, name, "its ids go up to %u, the model has rows for %lld", n - 1,
                    (long long)s->vocab_size);
        return; /* ids beyond the vocabulary would be its consequence */
    }
    if (s->bos_id >= s->vocab_size)
        finding_add(f, FINDING_T003, "bos_token_id", "%d, but vocab_size is %lld", s->bos_id,
                    (long long)s->vocab_size);
    for (uint32_t i = 0; i < s->n_eos; i++) {
        if (s->eos_ids[i] >= s->vocab_size) {
            finding_add(f, FINDING_T003, "eos_token_id", "%d, but vocab_size is %lld", s->eos_ids[i],
                        (long long)s->vocab_size);
            return;
        }
    }
}

/* config: tokenizer_config.json, for RANKS */
static int judge_text(const struct spec *s, const char *name, const char *text, size_t n,
                      const struct json *config, struct findings *f, struct d0 *d0, struct err *e)
{
    struct tokenizer *t = NULL;
    struct err why = {0};
    uint64_t object;
    if (ckpt_lfs_pointer(text, n, &object)) {
        finding_add(f, FINDING_W017, name, "a git-LFS pointer of %zu bytes to a file of %llu bytes", n,
                    (unsigned long long)object);
        return ERR_OK;
    }
    struct mem *mem = d0 ? &d0->mem : NULL;
    const struct tiktoken_rule rule = {s->tokenizer_pattern, (uint32_t)s->tokenizer_piece,
                                       (uint32_t)s->tokenizer_run, (uint32_t)s->tokenizer_reserved};
    int rc = strcmp(name, RANKS) == 0 ? tokenizer_open_ranks(&t, text, n, config, &rule, mem, &why)
                                      : tokenizer_open(&t, text, n, mem, &why);
    if (rc == ERR_NOMEM)
        return err_set(e, rc, "%s", why.message);
    if (rc == ERR_UNSUPPORTED)
        finding_add_remedy(f, FINDING_T002, name, "use a build that implements this part of the file", "%s",
                           why.message);
    else if (rc)
        finding_add(f, FINDING_T002, name, "%s", why.message);
    else
        check_ids(s, t, name, f);
    tokenizer_close(t);
    return ERR_OK;
}

/* Absent and unreadable are NULL here: another check judges that file. */
static const struct json *read_config(struct ckpt *c, struct arena *scratch)
{
    const struct json *root = NULL;
    char *text = NULL;
    size_t n = 0;
    const char *path = ckpt_path(c, "tokenizer_config.json");
    if (!path || file_read(path, MAX_TOKENIZER_BYTES, scratch, &text, &n, NULL) ||
        json_parse(text, n, NULL, scratch, &root, NULL))
        return NULL;
    return root;
}

int check_tokenizer(struct ckpt *c, const struct spec *s, struct findings *f, struct d0 *d0, struct err *e)
{
    struct arena scratch;
    struct err why = {0};
    char *text = NULL;
    size_t n = 0;
    const char *name = TOKENIZER, *path = ckpt_path(c, TOKENIZER), *other = ckpt_path(c, RANKS);
    if (!path || !other)
        return err_set(e, ERR_NOMEM, "no memory for a path");
    arena_init(&scratch, c->arena.mem, MEM_TEXT);
    int rc = file_read(path, MAX_TOKENIZER_BYTES, &scratch, &text, &n, &why);
    if (rc == ERR_MISSING) {
        struct err none = {0};
        int second = file_read(other, MAX_TOKENIZER_BYTES, &scratch, &text, &n, &none);
        if (second != ERR_MISSING) {
            name = RANKS;
            rc = second;
            why = none;
        }
    }
    if (rc == ERR_MISSING) {
        rc = report_absent(c, f, e);
    } else if (rc == ERR_LIMIT || rc == ERR_INVALID) {
        finding_add(f, FINDING_T002, name, "%s", why.message);
        rc = ERR_OK;
    } else if (rc) {
        err_set(e, rc, "%s", why.message);
    } else {
        rc = judge_text(s, name, text, n, read_config(c, &scratch), f, d0, e);
    }
    arena_release(&scratch);
    return rc;
}
