/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the text of model.safetensors.index.json. Half a million names must cost a fraction of a second and a
 * hostile text no more memory than its size allows, hence the pull scanner. Refuses file names that could
 * lead out of the directory.
 */
#include "ckpt/ckpt.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "ckpt/json_scan.h"

struct index_parse {
    struct arena *arena;
    struct ckpt_index *out;
    struct json_scan s;
    void *entries, *files;
    size_t entries_capacity, files_capacity;
    struct json_text last_text; /* neighbours mostly name the same file */
    uint32_t last_file;
    bool no_memory;
};

static bool fail_memory(struct index_parse *p)
{
    p->no_memory = true;
    return json_scan_fail(&p->s, "out of memory");
}

static bool file_number(struct index_parse *p, const struct json_text *text, uint32_t *file)
{
    struct ckpt_index *x = p->out;
    if (p->last_text.raw && p->last_text.n == text->n && !memcmp(p->last_text.raw, text->raw, text->n)) {
        *file = p->last_file;
    } else {
        char *name = json_text_copy(text, p->arena);
        if (!name)
            return fail_memory(p);
        if (text->has_nul || !path_is_plain_name(name) || !str_ends(name, ".safetensors")) {
            *file = CKPT_INDEX_BAD_FILE;
            x->bad_file = x->bad_file ? x->bad_file : name;
        } else {
            int rc = strmap_put(&x->by_file, name, strlen(name), (uint32_t)x->n_files, file);
            if (rc < 0 ||
                (rc == 0 && vec_reserve(&p->files, &p->files_capacity, x->n_files + 1, sizeof(char *))))
                return fail_memory(p);
            if (rc == 0) {
                *file = (uint32_t)x->n_files;
                ((const char **)p->files)[x->n_files++] = name;
            }
        }
        p->last_text = *text;
        p->last_file = *file;
    }
    x->n_bad_files += *file == CKPT_INDEX_BAD_FILE;
    return true;
}

static bool read_entry(struct index_parse *p, const struct json_text *key)
{
    struct json_text value;
    struct ckpt_index_entry entry = {0};
    if (key->has_nul)
        return json_scan_fail(&p->s, "a tensor name with a NUL character");
    if (!json_scan_string(&p->s, &value) || !file_number(p, &value, &entry.file))
        return false;
    char *name = json_text_copy(key, p->arena);
    if (!name || vec_reserve(&p->entries, &p->entries_capacity, p->out->n_entries + 1,
                             sizeof(struct ckpt_index_entry)))
        return fail_memory(p);
    entry.tensor = name;
    int rc = strmap_put(&p->out->by_name, name, strlen(name), (uint32_t)p->out->n_entries, NULL);
    if (rc < 0)
        return fail_memory(p);
    if (rc == 1)
        return json_scan_fail(&p->s, "a tensor name twice in weight_map");
    ((struct ckpt_index_entry *)p->entries)[p->out->n_entries++] = entry;
    return true;
}

static bool read_weight_map(struct index_parse *p)
{
    bool first = true;
    struct json_text key;
    if (!json_scan_expect(&p->s, '{'))
        return false;
    while (json_scan_member(&p->s, &first, &key)) {
        if (!read_entry(p, &key))
            return false;
    }
    return !p->s.error;
}

/* total_size: an integer; some writers give 1.2e10 or a string, which says nothing we could rely on. */
static bool read_metadata(struct index_parse *p)
{
    bool first = true;
    struct json_text key;
    if (!json_scan_take(&p->s, '{'))
        return json_scan_skip(&p->s);
    while (json_scan_member(&p->s, &first, &key)) {
        bool is_total = json_text_is(&key, "total_size");
        struct json_scan before = p->s;
        if (!json_scan_skip(&p->s))
            return false;
        uint64_t total;
        if (is_total && json_scan_u64(&before, &total)) {
            p->out->has_total_size = true;
            p->out->total_size = total;
        }
    }
    return !p->s.error;
}

static void read_document(struct index_parse *p)
{
    bool first = true, map = false, metadata = false;
    struct json_text key;
    if (!json_scan_expect(&p->s, '{'))
        return;
    while (json_scan_member(&p->s, &first, &key)) {
        bool is_map = json_text_is(&key, "weight_map"), is_metadata = json_text_is(&key, "metadata");
        if ((is_map && map) || (is_metadata && metadata)) {
            json_scan_fail(&p->s, "a key twice");
            return;
        }
        map = map || is_map;
        metadata = metadata || is_metadata;
        if (!(is_map ? read_weight_map(p) : is_metadata ? read_metadata(p) : json_scan_skip(&p->s)))
            return;
    }
    if (json_scan_end(&p->s) && !map)
        json_scan_fail(&p->s, "no weight_map");
}

static bool keep(struct arena *arena, void *list, size_t n, size_t element_bytes, void *out)
{
    void *copy = arena_alloc_n(arena, n, element_bytes);
    if (copy && n)
        memcpy(copy, list, n * element_bytes);
    memcpy(out, &copy, sizeof(copy));
    return copy;
}

int ckpt_index_parse(const char *text, size_t n, struct arena *arena, struct ckpt_index *out, struct err *e)
{
    struct index_parse p = {.arena = arena, .out = out};
    *out = (struct ckpt_index){0};
    if (!json_scan_utf8(text, n))
        return err_set(e, ERR_FORMAT, "not UTF-8");
    json_scan_init(&p.s, text, n);
    read_document(&p);
    if (!p.s.error && (!keep(arena, p.entries, out->n_entries, sizeof(*out->entries), &out->entries) ||
                       !keep(arena, p.files, out->n_files, sizeof(*out->files), &out->files)))
        fail_memory(&p);
    free(p.entries);
    free(p.files);
    if (!p.s.error)
        return ERR_OK;
    ckpt_index_release(out);
    return p.no_memory ? err_set(e, ERR_NOMEM, "no memory for the index")
                       : err_set(e, ERR_FORMAT, "byte %zu: %s", json_scan_offset(&p.s), p.s.error);
}

void ckpt_index_release(struct ckpt_index *x)
{
    strmap_release(&x->by_name);
    strmap_release(&x->by_file);
    *x = (struct ckpt_index){0};
}
