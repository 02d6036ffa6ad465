/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: opening and closing a checkpoint directory, and its small JSON files. Refuses to call a directory
 * unreadable because of what is in it: that becomes findings. A checkpoint may be used from several threads
 * once it is open; closing is for one.
 */
#include "ckpt/ckpt_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#define MAX_CONFIG_BYTES (8u * 1024u * 1024u)

/* A JSON object in the directory. Absent: *out stays NULL. `missing`: report absence, too. */
static int load_object(struct opening *o, const char *name, bool missing, const struct json **out,
                       char sha256[65], struct err *e)
{
    struct ckpt *c = o->c;
    struct err why = {0};
    struct file_info info;
    char *text = NULL;
    size_t n = 0;
    uint64_t object;
    const struct json *tree = NULL;
    const char *path = ckpt_path(c, name);
    if (!path)
        return err_set(e, ERR_NOMEM, "no memory for a path");
    int rc = file_stat(path, &info, e);
    if (rc)
        return rc;
    if (!info.exists) {
        if (missing)
            finding_add(o->f, FINDING_C001, name, "not in %s", c->dir);
        return ERR_OK;
    }
    rc = file_read(path, MAX_CONFIG_BYTES, &o->scratch, &text, &n, &why);
    if (rc == ERR_LIMIT || rc == ERR_INVALID) {
        finding_add(o->f, FINDING_C002, name, "%s", why.message);
        return ERR_OK;
    }
    if (rc)
        return err_set(e, rc, "%s", why.message);
    if (ckpt_lfs_pointer(text, n, &object)) {
        finding_add(o->f, FINDING_W017, name, "a git-LFS pointer of %zu bytes to a file of %llu bytes", n,
                    (unsigned long long)object);
        return ERR_OK;
    }
    if (sha256 && (rc = sha256_hex(text, n, sha256, e)))
        return rc;
    const struct json_limits limits = {.max_bytes = MAX_CONFIG_BYTES};
    rc = json_parse(text, n, &limits, &c->arena, &tree, &why);
    if (rc == ERR_NOMEM)
        return err_set(e, rc, "%s: %s", name, why.message);
    if (rc)
        finding_add(o->f, FINDING_C002, name, "%s", why.message);
    else if (tree->type != JSON_OBJECT)
        finding_add(o->f, FINDING_C002, name, "an object was expected, not %s", json_type_name(tree->type));
    else
        *out = tree;
    return ERR_OK;
}

static int fill(struct opening *o, struct err *e)
{
    struct ckpt *c = o->c;
    int rc = dir_list(c->dir, &o->scratch, &o->names, &o->n_names, e);
    if (!rc)
        rc = load_object(o, "config.json", true, &c->config, c->config_sha256, e);
    if (!rc)
        rc = load_object(o, "generation_config.json", false, &c->generation_config, NULL, e);
    if (!rc)
        rc = load_object(o, "hf_quant_config.json", false, &c->quant_config, NULL, e);
    if (!rc)
        rc = shards_collect(o, e);
    if (!rc)
        rc = shards_parse(o, e);
    if (!rc)
        rc = inventory_build(o, e);
    if (!rc)
        rc = inventory_check_index(o, e);
    if (!rc) {
        inventory_report(o);
        rc = second_copy_check(o, e);
    }
    return rc;
}

int ckpt_open(struct ckpt **out, const char *dir, struct findings *f, struct d0 *d0, struct err *e)
{
    return ckpt_open_with(out, dir, NULL, f, d0, e);
}

int ckpt_open_with(struct ckpt **out, const char *dir, const struct ckpt_options *options, struct findings *f,
                   struct d0 *d0, struct err *e)
{
    struct file_info info;
    int rc = file_stat(dir, &info, e);
    if (rc)
        return rc;
    if (!info.exists || !info.is_dir) {
        err_set(e, ERR_MISSING, "%s: %s", dir, info.exists ? "not a directory" : "no such directory");
        err_hint(e, "name the directory that holds config.json and the *.safetensors files");
        return ERR_MISSING;
    }
    struct ckpt *c = calloc(1, sizeof(*c));
    if (!c)
        return err_set(e, ERR_NOMEM, "no memory for a checkpoint");
    struct opening o = {.c = c, .f = f};
    arena_init(&c->arena, d0 ? &d0->mem : NULL, MEM_CKPT);
    arena_init(&o.scratch, d0 ? &d0->mem : NULL, MEM_CKPT);
    c->partial = options && options->partial;
    c->dir = arena_strdup(&c->arena, dir);
    rc = c->dir ? fill(&o, e) : err_set(e, ERR_NOMEM, "no memory for a checkpoint");
    ckpt_index_release(&o.index);
    arena_release(&o.scratch);
    if (rc) {
        err_ctx(e, "opening the checkpoint %s", dir);
        ckpt_close(c);
        return rc;
    }
    *out = c;
    return ERR_OK;
}

void ckpt_close(struct ckpt *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_shards; i++) {
        if (c->shards[i].fd >= 0)
            close(c->shards[i].fd);
        if (c->shards[i].past_fd >= 0)
            close(c->shards[i].past_fd);
    }
    if (c->by_name)
        strmap_release(c->by_name);
    if (c->lost_names)
        strmap_release(c->lost_names);
    arena_release(&c->arena);
    free(c);
}

const struct ckpt_tensor *ckpt_find(const struct ckpt *c, const char *name)
{
    uint32_t at;
    return c->by_name && strmap_get(c->by_name, name, strlen(name), &at) ? &c->tensors[at] : NULL;
}

bool ckpt_lost(const struct ckpt *c, const char *name)
{
    if (!c->has_index || c->n_shards == 0)
        return c->n_lost_shards > 0 || c->n_shards == 0;
    return c->lost_names && strmap_get(c->lost_names, name, strlen(name), NULL);
}

const char *ckpt_path(struct ckpt *c, const char *name)
{
    return path_join(&c->arena, c->dir, name);
}
