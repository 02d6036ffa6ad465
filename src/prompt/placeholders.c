/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tokens stand for a picture: rules of an architecture file (docs/arch-files.md), compiled once, and
 * the text that they make of a picture of known sizes. Owns the rules. Refuses keys that it does not know,
 * and a text whose tokens are not as many as the rows of features that the picture gives.
 */
#include <stdio.h>
#include <string.h>

#include "prompt/prompt_impl.h"

#define MAX_WORDS 1024 /* bytes of one pattern */

struct reading {
    const struct prompt_front *p;
    struct err *e;
};

static int wrong(const struct reading *r, const char *key, const char *what)
{
    return err_set(r->e, ERR_FORMAT, "%s: placeholders: %s %s", r->p->spec->arch_name, key, what);
}

static int known_keys(const struct reading *r, const struct json *v, const char *const *known)
{
    for (uint32_t i = 0; i < v->n; i++) {
        size_t k = 0;
        while (known[k] && strcmp(known[k], v->as.members[i].key) != 0)
            k++;
        if (known[k] == NULL)
            return wrong(r, v->as.members[i].key, "is no key of them");
    }
    return ERR_OK;
}

enum field { FIELD_TOKENS, FIELD_ROW, FIELD_COLUMN, FIELD_WIDTH, FIELD_HEIGHT, N_FIELDS };
static const char *const fields[N_FIELDS] = {"tokens", "row", "column", "width", "height"};

/* The field that begins at s, behind a $; *n its length. N_FIELDS: none. */
static enum field field_at(const char *s, size_t *n)
{
    for (int i = 0; i < N_FIELDS; i++)
        if (str_starts(s, fields[i])) {
            *n = strlen(fields[i]);
            return (enum field)i;
        }
    return N_FIELDS;
}

/* A text of the rules. */
struct words {
    const char *key;
    int wanted; /* how many $tokens it must hold, -1: at most one */
    const char **out;
};

static int read_text(const struct reading *r, const struct json *from, const char *key, int wanted,
                     const char **out)
{
    const struct json *v = json_get(from, key);
    int held = 0;
    if (v == NULL || v->type == JSON_NULL)
        return ERR_OK;
    if (v->type != JSON_STRING || v->n > MAX_WORDS || strlen(v->as.string) != v->n)
        return wrong(r, key, "must be a text of at most 1024 bytes");
    for (const char *s = v->as.string; (s = strchr(s, '$')) != NULL; s++) {
        size_t n = 0;
        enum field f = field_at(s + 1, &n);
        if (f == N_FIELDS)
            return wrong(r, key, "holds a $ that begins no known field");
        held += f == FIELD_TOKENS;
    }
    if (held > 1 || (wanted >= 0 && held != wanted))
        return wrong(r, key, wanted ? "must hold $tokens once" : "must hold no $tokens");
    *out = v->as.string;
    return ERR_OK;
}

static int read_words(const struct reading *r, const struct json *from, const struct words *list, size_t n)
{
    int rc = ERR_OK;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = read_text(r, from, list[i].key, list[i].wanted, list[i].out);
    return rc;
}

static int read_flag(const struct reading *r, const struct json *from, const char *key, bool *out)
{
    const struct json *v = json_get(from, key);
    return v == NULL || json_bool(v, out) ? ERR_OK : wrong(r, key, "must be true or false");
}

static int read_tiles(const struct reading *r, const struct json *v, struct placeholder_rules *out)
{
    static const char *const known[] = {"first", "tile", "between", "row", "last", NULL};
    const struct words words[] = {{"first", -1, &out->first},
                                  {"tile", 1, &out->tile},
                                  {"between", 0, &out->between},
                                  {"row", 0, &out->row},
                                  {"last", -1, &out->last}};
    if (v->type != JSON_OBJECT)
        return wrong(r, "tiles", "is no table");
    int rc = known_keys(r, v, known);
    if (rc == 0)
        rc = read_words(r, v, words, ARRAY_LEN(words));
    return rc || out->tile ? rc : wrong(r, "tiles.tile", "is missing");
}

static int read_rules(const struct reading *r, const struct json *v, struct placeholder_rules *out)
{
    static const char *const known[] = {"needs",     "marker",  "token",     "picture", "line",
                                        "last_line", "by_grid", "both_ways", "tiles",   NULL};
    const struct words words[] = {{"token", 0, &out->token},
                                  {"picture", 1, &out->picture},
                                  {"line", 0, &out->line},
                                  {"last_line", 0, &out->last_line}};
    const struct json *tiles = json_get(v, "tiles");
    *out = (struct placeholder_rules){.picture = "$tokens"};
    int rc = known_keys(r, v, known);
    if (rc == 0)
        rc = read_text(r, v, "marker", 0, &out->marker);
    if (rc == 0 && (out->marker == NULL || *out->marker == '\0'))
        rc = wrong(r, "marker", "is missing");
    out->token = out->marker;
    if (rc == 0)
        rc = read_words(r, v, words, ARRAY_LEN(words));
    if (rc == 0)
        rc = read_flag(r, v, "by_grid", &out->by_grid);
    if (rc == 0)
        rc = read_flag(r, v, "both_ways", &out->both_ways);
    return rc || tiles == NULL ? rc : read_tiles(r, tiles, out);
}

int placeholders_compile(const struct prompt_front *p, bool *found, struct placeholder_rules *out,
                         struct err *e)
{
    const struct reading r = {p, e};
    const struct json *list = p->spec->placeholders;
    *found = false;
    if (list == NULL || list->type == JSON_NULL)
        return ERR_OK;
    bool many = list->type == JSON_ARRAY;
    for (uint32_t i = 0; i < (many ? list->n : 1); i++) {
        const struct json *v = many ? json_at(list, i) : list;
        const char *needs = json_string(json_get(v, "needs"));
        if (v->type != JSON_OBJECT)
            return err_set(e, ERR_FORMAT, "%s: placeholders is no table", p->spec->arch_name);
        if (needs && tokenizer_id(p->tokenizer, needs) < 0)
            continue;
        *found = true;
        return read_rules(&r, v, out);
    }
    return ERR_OK;
}

/* ---- the text of one picture ---- */

struct writing {
    const struct placeholder_rules *rules;
    const struct prompt_picture *m;
    const struct image_processor *processor;
    uint64_t each;        /* tokens of one $tokens */
    uint64_t written;     /* so far */
    uint32_t row, column; /* of the tile, from 1 */
    struct strbuf *out;
};

static void write_tokens(struct writing *w)
{
    const struct placeholder_rules *r = w->rules;
    uint64_t across = w->each;
    if (r->line && w->processor->merge)
        across = w->m->plan.grid_w / w->processor->merge;
    for (uint64_t i = 1; i <= w->each && !strbuf_failed(w->out); i++) {
        strbuf_puts(w->out, r->token);
        if (r->line && across && i % across == 0)
            strbuf_puts(w->out, i == w->each && r->last_line ? r->last_line : r->line);
    }
    w->written += w->each;
}

static void write_words(struct writing *w, const char *s)
{
    while (s && *s) {
        size_t n = strcspn(s, "$");
        strbuf_add(w->out, s, n);
        s += n;
        if (*s == '\0')
            return;
        switch (field_at(s + 1, &n)) {
        case FIELD_TOKENS:
            write_tokens(w);
            break;
        case FIELD_ROW:
            strbuf_printf(w->out, "%u", w->row);
            break;
        case FIELD_COLUMN:
            strbuf_printf(w->out, "%u", w->column);
            break;
        case FIELD_WIDTH:
            strbuf_printf(w->out, "%u", w->m->info.width);
            break;
        case FIELD_HEIGHT:
            strbuf_printf(w->out, "%u", w->m->info.height);
            break;
        case N_FIELDS:
            BUG("a pattern that was not checked");
        }
        s += 1 + n;
    }
}

static void write_tiles(struct writing *w)
{
    const struct image_plan *s = &w->m->plan;
    write_words(w, w->rules->first);
    for (w->row = 1; w->row <= s->rows; w->row++) {
        for (w->column = 1; w->column <= s->columns; w->column++) {
            if (w->row > 1 || w->column > 1)
                write_words(w, w->rules->between);
            write_words(w, w->rules->tile);
        }
        write_words(w, w->rules->row);
    }
    write_words(w, w->rules->last);
}

int placeholders_write(const struct prompt_front *p, const struct prompt_picture *m, struct strbuf *out,
                       struct err *e)
{
    const struct placeholder_rules *r = &p->eyes->rules;
    const bool tiles = r->tile && m->plan.n_tiles > 1;
    struct writing w = {.rules = r, .m = m, .processor = &p->eyes->processor, .out = out};
    w.each = tiles ? m->n_rows / m->plan.n_tiles : m->n_rows;
    if (tiles)
        write_tiles(&w);
    else
        write_words(&w, r->picture);
    if (strbuf_failed(out))
        return err_set(e, ERR_NOMEM, "out of memory for the prompt");
    if (w.written != m->n_rows)
        return err_set(e, ERR_MISMATCH,
                       "messages[%u].content[%u]: %llu tokens stand for a picture of %u rows", m->message,
                       m->part, (unsigned long long)w.written, m->n_rows);
    return ERR_OK;
}

/* ---- in a rendering ---- */

static bool touches(const struct text_range *r, size_t n, size_t *at, size_t from, size_t to)
{
    while (*at < n && r[*at].to <= from)
        ++*at;
    return *at < n && r[*at].from < to;
}

static int add_range(struct jinja_output *out, size_t from, size_t to)
{
    if (vec_reserve((void **)&out->marked, &out->capacity, out->n_marked + 1, sizeof *out->marked))
        return ERR_NOMEM;
    out->marked[out->n_marked++] = (struct text_range){from, to};
    return ERR_OK;
}

/* Markers of r that nobody who writes messages can have written: *n of them. With `out` the text goes there,
 * each marker replaced; beyond the list's pictures they are only counted. */
static int replace(const struct prompt_front *p, const struct prompt_pictures *pictures, bool trust,
                   const struct jinja_output *r, struct jinja_output *out, uint32_t *n, struct err *e)
{
    const char *text = strbuf_cstr(&r->text), *marker = p->eyes->rules.marker;
    const size_t len = strlen(marker);
    size_t done = 0, at = 0, copied = trust ? r->n_marked : 0;
    int rc = ERR_OK;
    *n = 0;
    for (const char *hit = text; (hit = memmem(hit, r->text.len - (size_t)(hit - text), marker, len)) != NULL;
         hit += len) {
        size_t from = (size_t)(hit - text);
        if (!trust && touches(r->marked, r->n_marked, &at, from, from + len)) {
            hit -= len - 1; /* on from the next byte */
            continue;
        }
        ++*n;
        if (out == NULL || *n > pictures->n)
            continue;
        for (; rc == 0 && copied < r->n_marked && r->marked[copied].from < from; copied++)
            rc = add_range(out, r->marked[copied].from - done + out->text.len,
                           r->marked[copied].to - done + out->text.len);
        strbuf_add(&out->text, text + done, from - done);
        if (rc == 0)
            rc = placeholders_write(p, &pictures->list[*n - 1], &out->text, e);
        if (rc == ERR_MISMATCH)
            return rc;
        done = from + len;
    }
    if (out == NULL)
        return ERR_OK;
    for (; rc == 0 && copied < r->n_marked; copied++)
        rc = add_range(out, r->marked[copied].from - done + out->text.len,
                       r->marked[copied].to - done + out->text.len);
    strbuf_add(&out->text, text + done, r->text.len - done);
    return rc || strbuf_failed(&out->text) ? err_set(e, ERR_NOMEM, "out of memory for the prompt") : ERR_OK;
}

uint32_t placeholders_count(const struct prompt_front *p, const struct jinja_output *r)
{
    uint32_t n = 0;
    replace(p, NULL, false, r, NULL, &n, NULL);
    return n;
}

int placeholders_replace(const struct prompt_front *p, const struct prompt_pictures *pictures, bool trust,
                         struct jinja_output *r, struct err *e)
{
    struct jinja_output out = {0};
    uint32_t n = 0;
    int rc = replace(p, pictures, trust, r, &out, &n, e);
    if (rc == 0 && n != pictures->n)
        rc = err_set(e, ERR_MISMATCH, "the chat template writes %s %u times, and there are %u pictures",
                     p->eyes->rules.marker, n, pictures->n);
    if (rc) {
        jinja_output_release(&out);
        return rc;
    }
    jinja_output_release(r);
    *r = out;
    return ERR_OK;
}
