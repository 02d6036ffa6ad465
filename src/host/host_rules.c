/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: rules on versions, read from data and judged on the facts of a machine. Refuses to guess: a component
 * that is there with an unknown version leaves its rule unknown, which is said and is neither good nor bad.
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "host/host_internal.h"

#define MAX_RULES      1000
#define MAX_RULE_BYTES ((size_t)4 << 20)

/* ---- reading */

static bool read_texts(struct host_rules *out, const struct json *v, struct host_rule *r, const char *name,
                       struct err *e)
{
    const struct {
        const char *key, **to;
    } texts[] = {{"id", &r->id},
                 {"component", &r->component},
                 {"needs", &r->needs},
                 {"package_needs", &r->package_needs},
                 {"when_component", &r->when_component},
                 {"when", &r->when},
                 {"reason", &r->reason},
                 {"source", &r->source}};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (!host_take_string(&out->arena, v, texts[i].key, texts[i].to, name, e))
            return false;
    return true;
}

static int read_rule(struct host_rules *out, const struct json *v, struct host_rule *r, const char *name,
                     struct err *e)
{
    const char *severity = json_string(json_get(v, "severity"));
    *r = (struct host_rule){0};
    if (!read_texts(out, v, r, name, e))
        return ERR_FORMAT;
    if (!r->id || !r->component || !r->needs || !r->reason || !r->source)
        return err_set(e, ERR_FORMAT, "%s: rule %s lacks id, component, needs, reason or source", name,
                       r->id ? r->id : "without id");
    if (!severity || (strcmp(severity, "error") != 0 && strcmp(severity, "warning") != 0))
        return err_set(e, ERR_FORMAT, "%s: rule %s: severity is not \"error\" or \"warning\"", name, r->id);
    r->severity = severity[0] == 'e' ? SEVERITY_ERROR : SEVERITY_WARNING;
    if (!r->when != !r->when_component)
        return err_set(e, ERR_FORMAT, "%s: rule %s: when and when_component go together", name, r->id);
    const char *conditions[] = {r->needs, r->package_needs, r->when};
    for (size_t i = 0; i < ARRAY_LEN(conditions); i++)
        if (conditions[i] && host_version_matches("0", conditions[i]) < 0)
            return err_set(e, ERR_FORMAT, "%s: rule %s: \"%s\" is no condition like \">= 1.2, < 2\"", name,
                           r->id, conditions[i]);
    return ERR_OK;
}

int host_rules_parse(struct host_rules *out, const char *text, size_t n, const char *name, struct err *e)
{
    struct arena scratch;
    const struct json *tree;
    arena_init(&scratch, NULL, MEM_MISC);
    memset(out, 0, sizeof *out);
    arena_init(&out->arena, NULL, MEM_MISC);
    int rc = host_parse_document(text, n, "day0-compat", &scratch, &tree, name, e);
    const struct json *list = rc ? NULL : json_get(tree, "rules");
    if (!rc && (!list || list->type != JSON_ARRAY || list->n > MAX_RULES))
        rc = err_set(e, ERR_FORMAT, "%s: \"rules\" is no list of at most %d", name, MAX_RULES);
    if (!rc && !(out->items = arena_alloc_n(&out->arena, list->n, sizeof *out->items)))
        rc = err_set(e, ERR_NOMEM, "%s: no memory to read it", name);
    for (uint32_t i = 0; !rc && i < list->n; i++) {
        rc = read_rule(out, json_at(list, i), &out->items[i], name, e);
        out->n += !rc;
    }
    arena_release(&scratch);
    if (rc)
        host_rules_release(out);
    return rc;
}

int host_rules_open(struct host_rules *out, const char *path, struct err *e)
{
    if (!path)
        return host_rules_parse(out, host_compat[0].text, host_compat[0].n, host_compat[0].name, e);
    struct arena scratch;
    char *text;
    size_t n;
    arena_init(&scratch, NULL, MEM_MISC);
    int rc = file_read(path, MAX_RULE_BYTES, &scratch, &text, &n, e);
    if (!rc)
        rc = host_rules_parse(out, text, n, path, e);
    arena_release(&scratch);
    return rc;
}

void host_rules_release(struct host_rules *r)
{
    arena_release(&r->arena);
    r->items = NULL;
    r->n = 0;
}

/* ---- judging */

enum presence { ABSENT, PRESENT, VERSION_UNKNOWN };

static enum presence component(const struct host *h, const char *name, const char **version,
                               const char **package)
{
    *version = *package = NULL;
    if (strcmp(name, "kernel") == 0) {
        *version = h->kernel;
        return h->kernel ? PRESENT : VERSION_UNKNOWN;
    }
    const struct host_library *l = host_find_library(h, name);
    if (!l || !l->found)
        return ABSENT;
    *version = l->version;
    *package = l->package;
    return l->version ? PRESENT : VERSION_UNKNOWN;
}

enum host_rule_state host_rule_judge(const struct host_rule *r, const struct host *h, char *seen, size_t n)
{
    const char *version, *package, *other, *unused;
    if (n)
        seen[0] = 0;
    if (r->when) {
        enum presence p = component(h, r->when_component, &other, &unused);
        if (p == ABSENT)
            return HOST_RULE_NOT_APPLICABLE;
        if (p == VERSION_UNKNOWN) {
            snprintf(seen, n, "%s of unknown version", r->when_component);
            return HOST_RULE_UNKNOWN;
        }
        if (host_version_matches(other, r->when) != 1)
            return HOST_RULE_NOT_APPLICABLE;
    }
    enum presence p = component(h, r->component, &version, &package);
    if (p == ABSENT)
        return HOST_RULE_NOT_APPLICABLE;
    snprintf(seen, n, "%s %s%s%s%s", r->component, version ? version : "of unknown version",
             package ? " (package " : "", package ? package : "", package ? ")" : "");
    if (package && r->package_needs && host_version_matches(package, r->package_needs) == 1)
        return HOST_RULE_HOLDS;
    if (p == VERSION_UNKNOWN)
        return HOST_RULE_UNKNOWN;
    if (host_version_matches(version, r->needs) == 1)
        return HOST_RULE_HOLDS;
    /* A distribution may have mended this version: without the package's version nobody knows. */
    return r->package_needs && !package ? HOST_RULE_UNKNOWN : HOST_RULE_VIOLATED;
}

const char *host_rule_state_name(enum host_rule_state s)
{
    static const char *const names[] = {"holds", "violated", "not applicable", "unknown"};
    return names[s];
}

void host_rules_check(const struct host_rules *r, const struct host *h, struct findings *f)
{
    char seen[300], remedy[400];
    for (size_t i = 0; i < r->n; i++) {
        const struct host_rule *x = &r->items[i];
        if (host_rule_judge(x, h, seen, sizeof seen) != HOST_RULE_VIOLATED)
            continue;
        snprintf(remedy, sizeof remedy, "install %s %s%s%s", x->component, x->needs,
                 x->package_needs ? ", or the package " : "", x->package_needs ? x->package_needs : "");
        finding_add_severity(f, FINDING_P002, x->severity, x->component, remedy,
                             "%s; rule %s wants %s%s%s%s%s: %s (%s)", seen, x->id, x->needs,
                             x->when ? " with " : "", x->when ? x->when_component : "", x->when ? " " : "",
                             x->when ? x->when : "", x->reason, x->source);
    }
}

void host_rules_write_json(const struct host_rules *r, const struct host *h, struct json_writer *w)
{
    char seen[300];
    json_begin_array(w);
    for (size_t i = 0; i < r->n; i++) {
        enum host_rule_state s = host_rule_judge(&r->items[i], h, seen, sizeof seen);
        json_begin_object(w);
        json_put_string(w, "rule", r->items[i].id);
        json_put_string(w, "state", host_rule_state_name(s));
        json_put_string(w, "component", r->items[i].component);
        json_put_string(w, "needs", r->items[i].needs);
        json_put_string(w, "package_needs", r->items[i].package_needs);
        json_put_string(w, "when_component", r->items[i].when_component);
        json_put_string(w, "when", r->items[i].when);
        json_put_string(w, "seen", seen[0] ? seen : NULL);
        json_put_string(w, "severity", severity_name(r->items[i].severity));
        json_put_string(w, "reason", r->items[i].reason);
        json_put_string(w, "source", r->items[i].source);
        json_end_object(w);
    }
    json_end_array(w);
}
