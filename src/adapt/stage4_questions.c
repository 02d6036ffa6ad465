/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: questions on pictures whose answers or prompt tokens somebody else states: their file, asking,
 * counting what is right. Refuses: judging an answer by more than its words: capitals, blanks around and a
 * full stop do not count; sending pictures to the service that do not lie beside the file.
 */
#include "adapt/stage4.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

#define AT_LEAST            0.75 /* of known answers, where their file does not say */
#define MAX_QUESTIONS       64
#define MAX_PICTURES        4 /* of one */
#define QUESTIONS_MAX_BYTES (4u << 20)

/* Nothing from elsewhere on this machine goes to a service because a file says so. */
static bool leads_away(const char *file)
{
    for (const char *s = file; s; s = strchr(s, '/') ? strchr(s, '/') + 1 : NULL)
        if (str_starts(s, "..") && (s[2] == '/' || s[2] == '\0'))
            return true;
    return *file == '/';
}

/* NULL: no memory. */
static const char *picture_path(const char *file, const char *questions, struct arena *arena)
{
    const char *slash = strrchr(questions, '/');
    const int dir = slash ? (int)(slash + 1 - questions) : 0;
    return arena_printf(arena, "%.*s%s", dir, questions, file);
}

static int add_picture(const char *file, const char *questions, const char **part, struct arena *arena,
                       struct err *e)
{
    static const char *const types[] = {[IMAGE_JPEG] = "image/jpeg",
                                        [IMAGE_PNG] = "image/png",
                                        [IMAGE_WEBP] = "image/webp",
                                        [IMAGE_GIF] = "image/gif"};
    struct image_info info;
    char *bytes = NULL;
    size_t n = 0;
    if (leads_away(file))
        return err_set(e, ERR_FORMAT, "%s: a picture lies beside its file of questions, or below", file);
    const char *path = picture_path(file, questions, arena);
    int rc = path ? file_read(path, QUESTIONS_MAX_BYTES, arena, &bytes, &n, e)
                  : err_set(e, ERR_NOMEM, "out of memory for a path");
    if (rc == 0 && (rc = image_probe(bytes, n, NULL, &info, e)) != 0)
        err_ctx(e, "%s", path);
    if (rc == 0 && (*part = data_url(arena, types[info.format], bytes, n)) == NULL)
        rc = err_set(e, ERR_NOMEM, "out of memory for a picture");
    return rc;
}

static int read_question(const struct json *q, const char *questions, struct conversation *v,
                         struct arena *arena, struct err *e)
{
    const char *parts[MAX_PICTURES + 2] = {0};
    const struct json *many = json_get(q, "pictures");
    const char *one = json_string(json_get(q, "picture")), *text = json_string(json_get(q, "question"));
    size_t n = 0;
    int rc = ERR_OK;
    if (!text || str_starts(text, "data:")) /* parts that begin so are pictures */
        return err_set(e, ERR_FORMAT, "a question has no \"question\", or one that begins with \"data:\"");
    if (one)
        rc = add_picture(one, questions, &parts[n++], arena, e);
    for (size_t i = 0; rc == 0 && many && many->type == JSON_ARRAY && i < many->n; i++) {
        const char *file = json_string(json_at(many, i));
        if (!file || n == MAX_PICTURES)
            return err_set(e, ERR_FORMAT, "\"pictures\" holds %s", file ? "more than 4" : "what is no text");
        rc = add_picture(file, questions, &parts[n++], arena, e);
    }
    if (rc == 0 && n == 0) /* its answer would say nothing of pictures */
        return err_set(e, ERR_FORMAT, "a question has no picture");
    parts[n] = text;
    *v = (struct conversation){.name = "known answer",
                               .expected = json_string(json_get(q, "answer")),
                               .prompt_tokens = -1,
                               .max_tokens = 32};
    (void)json_i64(json_get(q, "prompt_tokens"), &v->prompt_tokens);
    return rc ? rc : conversation_make(v, json_string(json_get(q, "system")), parts, arena, e);
}

/* Lower case, without blanks around and a full stop behind. */
static void plain_answer(const char *s, char *out, size_t bytes)
{
    size_t n = 0;
    while (*s == ' ' || *s == '\n')
        s++;
    for (; *s && n + 1 < bytes; s++)
        out[n++] = *s >= 'A' && *s <= 'Z' ? (char)(*s + 32) : *s;
    while (n && (out[n - 1] == ' ' || out[n - 1] == '.' || out[n - 1] == '\n'))
        n--;
    out[n] = '\0';
}

static bool right_answer(const char *got, const char *expected)
{
    char a[200], b[200];
    plain_answer(got, a, sizeof(a));
    plain_answer(expected, b, sizeof(b));
    return strcmp(a, b) == 0;
}

static void ask_question(struct channels *c, struct known_answers *x, const struct conversation *v,
                         char *wrong_count, size_t bytes)
{
    struct served s;
    served_ask(c, v, false, c->j->arena, &s);
    const bool right = s.answered && s.text && v->expected && right_answer(s.text, v->expected);
    if (!s.answered && !x->first_unanswered[0])
        snprintf(x->first_unanswered, sizeof(x->first_unanswered), "%.80s: %.200s", v->text, s.why);
    if (v->expected) {
        x->known++;
        x->answered += s.answered;
        x->right += right;
    }
    if (v->prompt_tokens >= 0 && s.has_usage) {
        const bool equal = s.prompt_tokens == (uint64_t)v->prompt_tokens;
        if (!equal && x->counted == x->counted_right)
            snprintf(wrong_count, bytes, "\"%.80s\" with %u pictures: %llu prompt tokens, stated are %lld",
                     v->text, v->n_urls, (unsigned long long)s.prompt_tokens, (long long)v->prompt_tokens);
        x->counted++;
        x->counted_right += equal;
    }
    conversation_write(c, v, &s,
                       !s.answered    ? "not answered"
                       : !v->expected ? "answered"
                       : right        ? "right"
                                      : "wrong");
}

static int read_questions(const char *path, struct arena *arena, const struct json **root, struct err *e)
{
    char *text = NULL;
    size_t n = 0;
    int rc = file_read(path, QUESTIONS_MAX_BYTES, arena, &text, &n, e);
    if (rc == 0)
        rc = json_parse(text, n, NULL, arena, root, e);
    const struct json *list = rc ? NULL : json_get(*root, "questions");
    if (rc == 0 && (!list || list->type != JSON_ARRAY))
        rc = err_set(e, ERR_FORMAT, "%s: it holds no array \"questions\"", path);
    return rc;
}

static int see_picture(const struct json *name, const char *questions, struct arena *arena,
                       int (*see)(void *ctx, const char *path, struct err *e), void *ctx, struct err *e)
{
    const char *file = json_string(name);
    if (!file || leads_away(file))
        return ERR_OK; /* reading the question will say so */
    const char *path = picture_path(file, questions, arena);
    return path ? see(ctx, path, e) : err_set(e, ERR_NOMEM, "out of memory for a path");
}

int questions_pictures(const char *path, struct arena *arena,
                       int (*see)(void *ctx, const char *path, struct err *e), void *ctx, struct err *e)
{
    const struct json *root = NULL, *list;
    struct err why = {0};
    int rc = read_questions(path, arena, &root, &why);
    if (rc)
        return rc == ERR_NOMEM ? err_set(e, rc, "%s", why.message) : ERR_OK;
    list = json_get(root, "questions");
    for (size_t i = 0; rc == 0 && i < list->n; i++) {
        const struct json *q = json_at(list, i), *many = json_get(q, "pictures");
        rc = see_picture(json_get(q, "picture"), path, arena, see, ctx, e);
        for (size_t k = 0; rc == 0 && many && many->type == JSON_ARRAY && k < many->n; k++)
            rc = see_picture(json_at(many, k), path, arena, see, ctx, e);
    }
    return rc;
}

int questions_check(const char *path, struct err *e)
{
    const struct json *root = NULL;
    struct arena scratch;
    arena_init(&scratch, NULL, MEM_REPORT);
    int rc = read_questions(path, &scratch, &root, e);
    const struct json *list = rc ? NULL : json_get(root, "questions");
    for (size_t i = 0; rc == 0 && i < list->n && i < MAX_QUESTIONS; i++) {
        struct conversation v;
        struct arena one;
        arena_init(&one, NULL, MEM_REPORT);
        rc = read_question(json_at(list, i), path, &v, &one, e);
        arena_release(&one);
    }
    arena_release(&scratch);
    return rc;
}

int questions_run(struct channels *c, struct known_answers *x, struct err *e)
{
    struct job *j = c->j;
    const char *path = j->o->questions;
    const struct json *root = NULL;
    char wrong_count[240] = "";
    if (!path)
        return ERR_OK;
    job_progress(j, STAGE_CHANNELS, "questions whose answers are known");
    int rc = read_questions(path, j->arena, &root, e);
    if (rc)
        return rc;
    const struct json *list = json_get(root, "questions");
    x->at_least = AT_LEAST;
    (void)json_f64(json_get(root, "at_least"), &x->at_least);
    json_key(c->w, "questions");
    json_begin_array(c->w);
    for (size_t i = 0; rc == 0 && i < list->n && i < MAX_QUESTIONS; i++) {
        struct conversation v;
        rc = read_question(json_at(list, i), path, &v, j->arena, e);
        if (rc == 0)
            ask_question(c, x, &v, wrong_count, sizeof(wrong_count));
    }
    json_end_array(c->w);
    if (rc)
        return rc;
    if (x->counted_right < x->counted)
        finding_add(j->f, FINDING_I005, "stated prompt tokens", "%zu of %zu differ; %s",
                    x->counted - x->counted_right, x->counted, wrong_count);
    if (x->answered && (double)x->right < x->at_least * (double)x->answered)
        finding_add(j->f, FINDING_I010, "known answers", "%zu of %zu right, at least %.0f %% are asked for",
                    x->right, x->answered, 100 * x->at_least);
    return ERR_OK;
}
