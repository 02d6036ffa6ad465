/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: whether tokenizer.json is there, can be read, and fits config.json. Refuses to render or encode
 * anything.
 */
#include "preflight/preflight_internal.h"

#include <string.h>

#include "base/file.h"
#include "text/text.h"

#define TOKENIZER           "tokenizer.json"
#define MAX_TOKENIZER_BYTES (256u * 1024u * 1024u)

/* Other files that hold a tokenizer, for the evidence. */
static int report_absent(struct ckpt *c, struct findings *f, struct err *e)
{
    static const char *const others[] = {"tokenizer.model", "tiktoken.model", "vocab.json", "tekken.json",
                                         "vocab.txt"};
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

static void check_ids(const struct spec *s, const struct tokenizer *t, struct findings *f)
{
    uint32_t n = tokenizer_vocab(t);
    if ((int64_t)n > s->vocab_size) {
        finding_add(f, FINDING_T003, TOKENIZER, "its ids go up to %u, the model has rows for %lld", n - 1,
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

static int judge_text(const struct spec *s, const char *text, size_t n, struct findings *f, struct d0 *d0,
                      struct err *e)
{
    struct tokenizer *t = NULL;
    struct err why = {0};
    uint64_t object;
    if (ckpt_lfs_pointer(text, n, &object)) {
        finding_add(f, FINDING_W017, TOKENIZER, "a git-LFS pointer of %zu bytes to a file of %llu bytes", n,
                    (unsigned long long)object);
        return ERR_OK;
    }
    int rc = tokenizer_open(&t, text, n, d0 ? &d0->mem : NULL, &why);
    if (rc == ERR_NOMEM)
        return err_set(e, rc, "%s", why.message);
    if (rc == ERR_UNSUPPORTED)
        finding_add_remedy(f, FINDING_T002, TOKENIZER, "use a build that implements this part of the file",
                           "%s", why.message);
    else if (rc)
        finding_add(f, FINDING_T002, TOKENIZER, "%s", why.message);
    else
        check_ids(s, t, f);
    tokenizer_close(t);
    return ERR_OK;
}

int check_tokenizer(struct ckpt *c, const struct spec *s, struct findings *f, struct d0 *d0, struct err *e)
{
    struct arena scratch;
    struct err why = {0};
    char *text = NULL;
    size_t n = 0;
    const char *path = ckpt_path(c, TOKENIZER);
    if (!path)
        return err_set(e, ERR_NOMEM, "no memory for a path");
    arena_init(&scratch, c->arena.mem, MEM_TEXT);
    int rc = file_read(path, MAX_TOKENIZER_BYTES, &scratch, &text, &n, &why);
    if (rc == ERR_MISSING) {
        rc = report_absent(c, f, e);
    } else if (rc == ERR_LIMIT || rc == ERR_INVALID) {
        finding_add(f, FINDING_T002, TOKENIZER, "%s", why.message);
        rc = ERR_OK;
    } else if (rc) {
        err_set(e, rc, "%s", why.message);
    } else {
        rc = judge_text(s, text, n, f, d0, e);
    }
    arena_release(&scratch);
    return rc;
}
