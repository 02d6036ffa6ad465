/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: which weight files a directory should hold (index, else listing and numbering), and what each one's
 * header says. Faults are kept until their consequences are known. Refuses to follow names out of the
 * directory and to read beyond the headers.
 */
#include "ckpt/ckpt_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define MAX_INDEX_BYTES (256u * 1024u * 1024u)
#define LFS_MAX_BYTES   1024u /* a pointer file has about 130 */

bool ckpt_lfs_pointer(const char *text, size_t n, uint64_t *object_bytes)
{
    static const char start[] = "version https://git-lfs.github.com/spec/";
    char copy[LFS_MAX_BYTES + 1];
    *object_bytes = 0;
    if (n > LFS_MAX_BYTES || n < sizeof(start) - 1 || memcmp(text, start, sizeof(start) - 1) != 0)
        return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    const char *size = strstr(copy, "\nsize ");
    if (size) {
        char number[24];
        size_t digits = strspn(size + 6, "0123456789");
        int64_t v;
        snprintf(number, sizeof(number), "%.*s", (int)(digits < 20 ? digits : 20), size + 6);
        if (str_to_i64(number, &v))
            *object_bytes = (uint64_t)v;
    }
    return true;
}

__attribute__((format(printf, 4, 5))) static void set_fault(struct opening *o, size_t shard,
                                                            enum finding_id id, const char *fmt, ...)
{
    char text[600];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    const char *kept = arena_strdup(&o->scratch, text);
    struct shard_fault *fault = &o->faults[shard];
    fault->set = true;
    fault->id = id;
    fault->evidence = kept ? kept : "";
}

/* ---- the index */

static const char *find_index(const struct opening *o)
{
    static const char usual[] = "model.safetensors.index.json";
    const char *only = NULL;
    size_t n = 0;
    for (size_t i = 0; i < o->n_names; i++) {
        if (!strcmp(o->names[i], usual))
            return usual;
        if (str_ends(o->names[i], ".safetensors.index.json")) {
            only = o->names[i];
            n++;
        }
    }
    return n == 1 ? only : NULL;
}

static int load_index(struct opening *o, struct err *e)
{
    const char *name = find_index(o);
    struct err why = {0};
    char *text = NULL, shown[120];
    size_t n = 0;
    uint64_t object;
    if (!name)
        return ERR_OK;
    ckpt_show(name, shown, sizeof(shown));
    const char *path = path_join(&o->scratch, o->c->dir, name);
    if (!path)
        return err_set(e, ERR_NOMEM, "no memory for a path");
    int rc = file_read(path, MAX_INDEX_BYTES, &o->scratch, &text, &n, &why);
    if (rc == ERR_LIMIT || rc == ERR_INVALID) {
        finding_add(o->f, FINDING_W006, shown, "%s", why.message);
        return ERR_OK;
    }
    if (rc)
        return err_set(e, rc, "%s", why.message);
    if (ckpt_lfs_pointer(text, n, &object)) {
        finding_add(o->f, FINDING_W017, shown, "a git-LFS pointer of %zu bytes to a file of %llu bytes", n,
                    (unsigned long long)object);
        return ERR_OK;
    }
    rc = ckpt_index_parse(text, n, &o->c->arena, &o->index, &why);
    if (rc == ERR_NOMEM)
        return err_set(e, rc, "%s: %s", name, why.message);
    if (rc) {
        finding_add(o->f, FINDING_W006, shown, "%s; the files' own headers are used instead", why.message);
        return ERR_OK;
    }
    o->c->has_index = true;
    o->c->index_name = arena_strdup(&o->c->arena, name);
    if (!o->c->index_name)
        return err_set(e, ERR_NOMEM, "no memory for a name");
    if (o->index.n_bad_files) {
        char bad[120];
        finding_add(
            o->f, FINDING_W006, shown,
            "%zu of %zu tensors are placed in what is no file name ending in .safetensors, first: \"%s\"",
            o->index.n_bad_files, o->index.n_entries, ckpt_show(o->index.bad_file, bad, sizeof(bad)));
        o->contradicted = true;
    }
    return ERR_OK;
}

/* ---- the list of shards */

/* Sets of numbered files, name-00002-of-00005.safetensors: without an index the numbers tell that one is
 * missing. */
struct set {
    const char *stem; /* in the scratch arena */
    uint32_t total, next, n_missing, first_missing;
    int digits, total_digits; /* as the names are written */
};

/* The digits that end at `end`, at most 9 of them: their number and how many they are; 0 if there are none.
 */
static size_t digits_before(const char *name, size_t end, uint32_t *value)
{
    size_t n = 0;
    while (n < end && n < 9 && name[end - n - 1] >= '0' && name[end - n - 1] <= '9')
        n++;
    *value = n ? (uint32_t)strtoul(name + end - n, NULL, 10) : 0;
    return n;
}

/* Splits stem-00002-of-00005.safetensors; false if the name is not like that. Five digits at least: numbers
 * without leading zeros would neither sort nor tell their width. */
static bool numbered(const char *name, size_t *stem_bytes, uint32_t *n, struct set *set)
{
    static const char tail[] = ".safetensors", middle[] = "-of-";
    size_t at = strlen(name);
    if (!str_ends(name, tail))
        return false;
    at -= sizeof(tail) - 1;
    set->total_digits = (int)digits_before(name, at, &set->total);
    at -= (size_t)set->total_digits;
    if (set->total_digits == 0 || at < sizeof(middle) || memcmp(name + at - 4, middle, 4) != 0)
        return false;
    at -= 4;
    set->digits = (int)digits_before(name, at, n);
    at -= (size_t)set->digits;
    if (set->digits < 5 || at == 0 || name[at - 1] != '-')
        return false;
    *stem_bytes = at - 1;
    return *n >= 1 && *n <= set->total;
}

static void miss(struct set *s, uint32_t from, uint32_t to)
{
    if (from >= to)
        return;
    if (s->n_missing == 0)
        s->first_missing = from;
    s->n_missing += to - from;
}

static void report_sets(struct opening *o, struct set *sets, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct set *s = &sets[i];
        char subject[200], stem[120];
        miss(s, s->next, s->total + 1);
        if (s->n_missing == 0)
            continue;
        o->c->n_lost_shards += s->n_missing;
        if (o->c->partial) {
            o->arrivals.unknown = true;
            snprintf(subject, sizeof(subject), "%s-%0*u-of-%0*u.safetensors", s->stem, s->digits,
                     s->first_missing, s->total_digits, s->total);
            tally_add(&o->arrivals.absent, arena_strdup(&o->scratch, subject));
            o->arrivals.absent.n += s->n_missing - 1;
            continue;
        }
        snprintf(subject, sizeof(subject), "%s-%0*u-of-%0*u.safetensors",
                 ckpt_show(s->stem, stem, sizeof(stem)), s->digits, s->first_missing, s->total_digits,
                 s->total);
        if (s->n_missing == 1)
            finding_add(o->f, FINDING_W002, subject,
                        "the only one missing of %u files of this numbering; there is no "
                        "index that says what it held",
                        s->total);
        else
            finding_add(o->f, FINDING_W002, subject,
                        "the first one missing of %u files of this numbering, %u are; there "
                        "is no index that says what they held",
                        s->total, s->n_missing);
    }
}

static int check_numbering(struct opening *o, struct err *e)
{
    struct strmap map = {0};
    void *sets = NULL;
    size_t n_sets = 0, capacity = 0;
    int rc = ERR_OK;
    for (size_t i = 0; !rc && i < o->n_names; i++) { /* sorted: numbers of one set come in ascending order */
        size_t stem_bytes;
        struct set new = {.next = 1};
        uint32_t number, at = (uint32_t)n_sets;
        if (!numbered(o->names[i], &stem_bytes, &number, &new) ||
            (o->second_copy && second_copy_name(o->names[i])))
            continue;
        new.stem = arena_strndup(&o->scratch, o->names[i], stem_bytes);
        char *key =
            arena_printf(&o->scratch, "%.*s/%d/%u", (int)stem_bytes, o->names[i], new.digits, new.total);
        int put = new.stem &&key ? strmap_put(&map, key, strlen(key), at, &at) : ERR_NOMEM;
        if (put == 0 && vec_reserve(&sets, &capacity, n_sets + 1, sizeof(struct set)))
            put = ERR_NOMEM;
        if (put < 0) {
            rc = err_set(e, ERR_NOMEM, "no memory to sort file names");
            break;
        }
        if (put == 0)
            ((struct set *)sets)[n_sets++] = new;
        struct set *s = &((struct set *)sets)[at];
        miss(s, s->next, number);
        s->next = number + 1;
    }
    if (!rc)
        report_sets(o, sets, n_sets);
    free(sets);
    strmap_release(&map);
    return rc;
}

static int by_shard_name(const void *a, const void *b)
{
    return strcmp(((const struct ckpt_shard *)a)->name, ((const struct ckpt_shard *)b)->name);
}

/* Without an index two layouts side by side would both be read: the one that HF's files repeat is left out.
 */
static void set_second_copy_aside(struct opening *o)
{
    struct ckpt *c = o->c;
    size_t n = 0;
    for (size_t i = 0; i < c->n_shards; i++)
        n += second_copy_name(c->shards[i].name);
    o->second_copy = !c->has_index && n > 0 && n < c->n_shards;
    for (size_t i = 0; o->second_copy && i < c->n_shards; i++)
        c->shards[i].unindexed = second_copy_name(c->shards[i].name);
}

/* Indexed files first, then the others, each in order of names. */
static int list_shards(struct opening *o, struct err *e)
{
    struct ckpt *c = o->c;
    size_t n = 0;
    c->shards = arena_alloc_n(&c->arena, o->index.n_files + o->n_names + 1, sizeof(*c->shards));
    if (!c->shards)
        return err_set(e, ERR_NOMEM, "no memory for the list of shards");
    for (size_t i = 0; i < o->index.n_files; i++)
        c->shards[n++] = (struct ckpt_shard){.name = o->index.files[i], .fd = -1, .past_fd = -1};
    if (n > 1)
        qsort(c->shards, n, sizeof(*c->shards), by_shard_name);
    for (size_t i = 0; i < o->n_names; i++) {
        const char *name = o->names[i];
        if (!str_ends(name, ".safetensors") || strmap_get(&o->index.by_file, name, strlen(name), NULL))
            continue;
        name = arena_strdup(&c->arena, name);
        if (!name)
            return err_set(e, ERR_NOMEM, "no memory for a name");
        c->shards[n++] =
            (struct ckpt_shard){.name = name, .unindexed = c->has_index, .fd = -1, .past_fd = -1};
    }
    c->n_shards = n;
    set_second_copy_aside(o);
    o->faults = arena_alloc_n(&o->scratch, n, sizeof(*o->faults));
    o->files = arena_alloc_n(&o->scratch, n, sizeof(*o->files));
    return o->faults && o->files ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for the list of shards");
}

/* A directory without any weights: say what is there instead. */
static void report_no_weights(struct opening *o)
{
    if (o->c->partial) {
        o->arrivals.unknown = true;
        tally_add(&o->arrivals.absent, "*.safetensors");
        return;
    }
    struct tally other = {0};
    char path[4096], text[400];
    struct stat st;
    int n = snprintf(path, sizeof(path), "%s/model.safetensors", o->c->dir);
    if (n > 0 && (size_t)n < sizeof(path) && lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) {
        finding_add(o->f, FINDING_W002, "model.safetensors", "a symbolic link to a file that is not there");
        return;
    }
    for (size_t i = 0; i < o->n_names; i++) {
        const char *name = o->names[i];
        if (str_ends(name, ".bin") || str_ends(name, ".gguf") || str_ends(name, ".pt") ||
            str_ends(name, ".pth"))
            tally_add(&other, name);
    }
    if (other.n)
        finding_add(o->f, FINDING_W001, o->c->dir, "no *.safetensors file; weights in other formats: %s",
                    tally_format(&other, "file", text, sizeof(text)));
    else
        finding_add(o->f, FINDING_W001, o->c->dir, "no *.safetensors file among %zu names", o->n_names);
}

int shards_collect(struct opening *o, struct err *e)
{
    int rc = load_index(o, e);
    if (!rc)
        rc = list_shards(o, e);
    if (!rc && o->c->n_shards == 0)
        report_no_weights(o);
    if (!rc && !o->c->has_index)
        rc = check_numbering(o, e);
    if (!rc && o->c->n_lost_shards == 0 && o->c->n_shards == 0)
        o->c->n_lost_shards = 1; /* everything is lost, which the finding says */
    return rc;
}

/* ---- one header */

/* A fault that the rest of a running download will mend. */
static void arriving(struct opening *o, size_t i, uint64_t wanted)
{
    o->faults[i].wanted = wanted;
    o->c->shards[i].arriving = o->c->partial;
}

static void judge_shard(struct opening *o, size_t i, const struct st_file *file, enum st_verdict v,
                        const char *why, bool starts_as_json)
{
    struct ckpt_shard *s = &o->c->shards[i];
    char a[32], b[32];
    uint64_t needed = v == ST_INVALID_HEADER_LENGTH ? 8 + file->header_bytes : file->data_end;
    if (file->complete && (v == ST_OK || file->n_unknown))
        v = file->layout;
    bool short_header = v == ST_INVALID_HEADER_LENGTH && starts_as_json;
    s->lost = !file->complete;
    s->usable =
        file->complete && (v == ST_OK || (v == ST_METADATA_INCOMPLETE_BUFFER && needed < s->file_bytes));
    if (v == ST_OK)
        return;
    s->malformed = v != ST_METADATA_INCOMPLETE_BUFFER;
    if (v == ST_HEADER_TOO_SMALL)
        set_fault(o, i, FINDING_W003, "%s bytes: not even the length of its header",
                  format_count(s->file_bytes, a, sizeof(a)));
    else if (short_header || (v == ST_METADATA_INCOMPLETE_BUFFER && needed > s->file_bytes))
        set_fault(o, i, FINDING_W003, "%s byte%s short of what its header declares: %s of %s%s",
                  format_count(needed - s->file_bytes, a, sizeof(a)), needed - s->file_bytes == 1 ? "" : "s",
                  format_count(s->file_bytes, b, sizeof(b)), format_count(needed, (char[32]){0}, 32),
                  short_header ? ", and that is the header alone" : "");
    else if (v == ST_METADATA_INCOMPLETE_BUFFER)
        set_fault(o, i, FINDING_W005, "%s byte%s more than its header declares: %s instead of %s",
                  format_count(s->file_bytes - needed, a, sizeof(a)), s->file_bytes - needed == 1 ? "" : "s",
                  format_count(s->file_bytes, b, sizeof(b)), format_count(needed, (char[32]){0}, 32));
    else
        set_fault(o, i, FINDING_W004, "%s: %s", st_verdict_name(v), why);
    if (o->faults[i].id == FINDING_W003)
        arriving(o, i, v == ST_METADATA_INCOMPLETE_BUFFER ? needed : 0);
    if (v == ST_METADATA_INCOMPLETE_BUFFER)
        return;
    /* Space that was reserved and not yet written starts with zeros. */
    if (file->header_bytes == 0 && s->file_bytes > 8)
        arriving(o, i, 0);
}

/* Header of an open file. Reads 8 bytes, then as many as they say. */
static int parse_open(struct opening *o, size_t i, int fd, const char *path, struct err *e)
{
    struct ckpt_shard *s = &o->c->shards[i];
    char start[LFS_MAX_BYTES], why[400];
    uint64_t object, n = 0;
    size_t have = s->file_bytes < sizeof(start) ? (size_t)s->file_bytes : sizeof(start);
    int rc = file_pread(fd, path, start, have, 0, e);
    if (rc)
        return rc;
    if (s->file_bytes <= sizeof(start) && ckpt_lfs_pointer(start, have, &object)) {
        s->lost = true;
        set_fault(o, i, FINDING_W017, "a git-LFS pointer of %zu bytes to a file of %llu bytes", have,
                  (unsigned long long)object);
        arriving(o, i, object);
        return ERR_OK;
    }
    for (unsigned b = 0; b < 8 && have >= 8; b++)
        n |= (uint64_t)(unsigned char)start[b] << (8 * b);
    char *head = start, *large = NULL;
    if (have >= 8 && n <= ST_MAX_HEADER_BYTES && n + 8 <= s->file_bytes && n + 8 > have) {
        have = (size_t)n + 8;
        head = large = malloc(have);
        if (!large)
            return err_set(e, ERR_NOMEM, "%s: no memory for a header of %llu bytes", path,
                           (unsigned long long)n);
        rc = file_pread(fd, path, large, have, 0, e);
    }
    if (!rc) {
        struct st_file *file = &o->files[i];
        enum st_verdict v = st_parse(head, have, s->file_bytes, &o->c->arena, file, why, sizeof(why));
        s->header_bytes = file->header_bytes;
        s->n_tensors = (uint32_t)file->n_tensors;
        if (v == ST_OUT_OF_MEMORY)
            rc = err_set(e, ERR_NOMEM, "%s: no memory for its header", path);
        else
            judge_shard(o, i, file, v, why, have > 8 && (head[8] == '{' || head[8] == ' '));
    }
    free(large);
    return rc;
}

static int parse_one(struct opening *o, size_t i, struct err *e)
{
    struct ckpt_shard *s = &o->c->shards[i];
    struct file_info info;
    struct stat st;
    int fd;
    const char *path = path_join(&o->scratch, o->c->dir, s->name);
    if (!path)
        return err_set(e, ERR_NOMEM, "no memory for a path");
    int rc = file_stat(path, &info, e);
    if (rc)
        return rc;
    if (!info.exists || !info.is_file) {
        s->lost = true;
        bool link = lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
        set_fault(o, i, FINDING_W002, "%s",
                  link && !info.exists ? "a symbolic link to a file that is not there"
                  : info.exists        ? "this name is not a file"
                                       : "not in the directory");
        if (!info.exists)
            arriving(o, i, 0);
        return ERR_OK;
    }
    rc = file_open_read(path, &fd, e);
    if (rc)
        return rc;
    s->present = true;
    s->file_bytes = info.bytes;
    rc = parse_open(o, i, fd, path, e);
    close(fd);
    return rc;
}

int shards_parse(struct opening *o, struct err *e)
{
    int rc = ERR_OK;
    for (size_t i = 0; !rc && i < o->c->n_shards; i++)
        rc = parse_one(o, i, e);
    for (size_t i = 0; i < o->c->n_shards; i++)
        o->c->n_lost_shards += o->c->shards[i].lost;
    return rc;
}
