/* SPDX-License-Identifier: Apache-2.0
 *
 * The Lua host: one state per script, with its own allocator, instruction hook and deadline. Everything that
 * may throw runs under lua_pcall; no C frame that owns memory is ever jumped over. Not thread-safe.
 *
 * Why the limits hold against scripts that catch errors: once a limit is reached the hook fires on every
 * instruction and raises again, so a loop around pcall gets one instruction further each time and unwinds.
 * Large allocations look at the clock too, because one instruction may copy or collect hundreds of megabytes.
 */
#include "script/script_internal.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"

#define SCRIPT_STEP         256          /* instructions between two looks at the clock */
#define SCRIPT_MAX_CHUNK    (256u << 10) /* label checks of the compiler are quadratic in the text */
#define SCRIPT_LARGE        (64u << 10)
#define SCRIPT_MAX_REFUSALS 8 /* each refused allocation costs a full collection */

static void on_count(lua_State *L, lua_Debug *ar);

static void look_closely(struct script *s)
{
    s->step = 1;
    if (s->L)
        lua_sethook(s->L, on_count, LUA_MASKCOUNT, 1);
}

static void *allocate(void *ud, void *ptr, size_t old_bytes, size_t bytes)
{
    struct script *s = ud;
    if (ptr == NULL)
        old_bytes = 0; /* it is a type tag then */
    if (bytes == 0) {
        free(ptr);
        s->used_bytes -= old_bytes;
        return NULL;
    }
    if (bytes > old_bytes) {
        if (bytes >= SCRIPT_LARGE && s->deadline_ns && clock_ns() > s->deadline_ns) {
            s->stop = STOP_TIME;
            look_closely(s);
            return NULL;
        }
        if (bytes - old_bytes > s->max_bytes - s->used_bytes || s->refusals > SCRIPT_MAX_REFUSALS) {
            s->refusals++;
            look_closely(s);
            return NULL;
        }
    }
    void *p = realloc(ptr, bytes);
    if (p == NULL)
        return bytes <= old_bytes ? ptr : NULL; /* shrinking may not fail */
    s->used_bytes += bytes - old_bytes;
    return p;
}

static const char *stop_text(const struct script *s, char *buf, size_t n)
{
    switch (s->stop) {
    case STOP_MEMORY:
        snprintf(buf, n, "memory limit of %llu bytes", (unsigned long long)s->max_bytes);
        break;
    case STOP_INSTRUCTIONS:
        snprintf(buf, n, "instruction limit of %llu", (unsigned long long)s->max_instructions);
        break;
    default:
        snprintf(buf, n, "time limit of %llu ms", (unsigned long long)(s->max_wall_ns / 1000000));
        break;
    }
    return buf;
}

static void on_count(lua_State *L, lua_Debug *ar)
{
    struct script *s = *(struct script **)lua_getextraspace(L);
    (void)ar;
    s->instructions += s->step;
    if (s->stop == STOP_NOT) {
        if (s->instructions > s->max_instructions)
            s->stop = STOP_INSTRUCTIONS;
        else if (s->refusals > SCRIPT_MAX_REFUSALS)
            s->stop = STOP_MEMORY;
        else if (clock_ns() > s->deadline_ns)
            s->stop = STOP_TIME;
    }
    if (s->stop != STOP_NOT) {
        look_closely(s);
        lua_pushliteral(L, "limit"); /* interned before: needs no memory when there is none left */
        lua_error(L);
    }
}

static int set_up(lua_State *L)
{
    lua_pushliteral(L, "limit");
    lua_setfield(L, LUA_REGISTRYINDEX, "day0.limit"); /* keeps the string alive */
    return script_libraries(L);
}

/* Puts the message of the failed call into e. The error object is on top of the stack. */
static int failed(struct script *s, int status, const char *what, struct err *e)
{
    char buf[96], text[512];
    if (status == LUA_ERRMEM && s->stop == STOP_NOT)
        s->stop = STOP_MEMORY;
    if (s->stop != STOP_NOT)
        return err_set(e, ERR_LIMIT, "%s: %s exceeded", what, stop_text(s, buf, sizeof buf));
    if (lua_type(s->L, -1) != LUA_TSTRING)
        return err_set(e, ERR_FORMAT, "%s: error object is a %s value", what, luaL_typename(s->L, -1));
    snprintf(text, sizeof text, "%s", lua_tostring(s->L, -1));
    for (char *p = text; *p; p++) /* the text may end on a terminal */
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = ' ';
    text[utf8_complete_prefix(text, strlen(text))] = 0;
    return err_set(e, ERR_FORMAT, "%s", text);
}

/* Runs f(context) protected, with a deadline of its own. */
static int run(struct script *s, lua_CFunction f, void *context, const char *what, struct err *e)
{
    lua_settop(s->L, 0);
    s->refusals = 0;
    s->step = SCRIPT_STEP;
    s->stop = STOP_NOT;
    s->deadline_ns = clock_ns() + s->max_wall_ns;
    lua_sethook(s->L, on_count, LUA_MASKCOUNT, SCRIPT_STEP);
    lua_pushcfunction(s->L, f);
    lua_pushlightuserdata(s->L, context);
    int status = lua_pcall(s->L, 1, 0, 0);
    int rc = status == LUA_OK && s->stop == STOP_NOT ? ERR_OK : failed(s, status, what, e);
    lua_settop(s->L, 0);
    s->deadline_ns = 0;
    return rc;
}

int script_open(struct script **out, const struct script_limits *limits, struct err *e)
{
    static const struct script_limits none;
    const struct script_limits *l = limits ? limits : &none;
    struct script *s = calloc(1, sizeof *s);
    if (s == NULL)
        return err_set(e, ERR_NOMEM, "no memory for a script");
    s->max_bytes = l->max_bytes ? l->max_bytes : 256u << 20;
    s->max_instructions = l->max_instructions ? l->max_instructions : 200000000u;
    s->max_wall_ns = l->max_wall_ns ? l->max_wall_ns : 10000000000u;
    if (s->max_wall_ns > (uint64_t)INT64_MAX / 2)
        s->max_wall_ns = (uint64_t)INT64_MAX / 2;
    s->L = lua_newstate(allocate, s);
    if (s->L == NULL) {
        free(s);
        return err_set(e, ERR_LIMIT, "%llu bytes are too few for a script", (unsigned long long)l->max_bytes);
    }
    *(struct script **)lua_getextraspace(s->L) = s;
    int rc = run(s, set_up, NULL, "script set-up", e);
    if (rc) {
        script_close(s);
        return rc;
    }
    *out = s;
    return ERR_OK;
}

void script_close(struct script *s)
{
    if (s == NULL)
        return;
    lua_close(s->L);
    free(s);
}

/* ---- load ---- */

struct load_args {
    const char *name, *text, *result;
    size_t n;
    bool guest;
};

static int do_load(lua_State *L)
{
    const struct load_args *a = lua_touserdata(L, 1);
    if (luaL_loadbufferx(L, a->text, a->n, a->name, "t") != LUA_OK)
        return lua_error(L);
    if (a->guest)
        script_guest_globals(L);
    lua_call(L, 0, 1);
    if (a->result && !lua_isnil(L, -1))
        lua_setglobal(L, a->result);
    return 0;
}

static int load(struct script *s, const char *chunk_name, const char *text, size_t n, const char *result_name,
                bool guest, struct err *e)
{
    char name[160];
    snprintf(name, sizeof name, "=%s", chunk_name);
    if (n > SCRIPT_MAX_CHUNK)
        return err_set(e, ERR_LIMIT, "%s: %zu bytes of script text, at most %u", chunk_name, n,
                       SCRIPT_MAX_CHUNK);
    struct load_args a = {.name = name, .text = text, .n = n, .result = result_name, .guest = guest};
    return run(s, do_load, &a, chunk_name, e);
}

int script_load(struct script *s, const char *chunk_name, const char *text, size_t n, const char *result_name,
                struct err *e)
{
    return load(s, chunk_name, text, n, result_name, false, e);
}

int script_load_guest(struct script *s, const char *chunk_name, const char *text, size_t n,
                      const char *result_name, struct err *e)
{
    return load(s, chunk_name, text, n, result_name, true, e);
}

/* ---- call ---- */

struct call_args {
    const char *function;
    const struct json *const *args;
    size_t n_args;
    bool ordered;
    struct script_dump *dump; /* NULL: only look whether the function is there */
    bool found;
};

/* Pushes the value at a dotted path of globals, without metamethods; nil if a step is no table. */
static void push_path(lua_State *L, const char *path)
{
    lua_pushglobaltable(L);
    while (*path) {
        size_t n = strcspn(path, ".");
        if (!lua_istable(L, -1)) {
            lua_pushnil(L);
            return;
        }
        lua_pushlstring(L, path, n);
        lua_rawget(L, -2);
        lua_remove(L, -2);
        path += n;
        if (*path == '.')
            path++;
    }
}

static int do_call(lua_State *L)
{
    struct call_args *a = lua_touserdata(L, 1);
    push_path(L, a->function);
    a->found = lua_isfunction(L, -1);
    if (a->dump == NULL)
        return 0;
    if (!a->found)
        return luaL_error(L, "there is no function %s", a->function);
    luaL_checkstack(L, (int)a->n_args + 2, "arguments");
    for (size_t i = 0; i < a->n_args; i++)
        script_push_json(L, a->args[i], 0, a->ordered);
    lua_call(L, (int)a->n_args, 1);
    script_dump_value(L, a->dump, lua_gettop(L), 0);
    return 0;
}

static int call(struct script *s, const char *function, const struct json *const *args, size_t n_args,
                bool ordered, struct arena *arena, const struct json **result, struct err *e)
{
    static const struct json_limits limits = {.max_bytes = 128u << 20, .max_depth = 128};
    struct script_dump dump = {.text = STRBUF_INIT};
    struct call_args a = {
        .function = function, .args = args, .n_args = n_args, .ordered = ordered, .dump = &dump};
    if (n_args > 16)
        return err_set(e, ERR_INVALID, "%s: %zu arguments, at most 16", function, n_args);
    json_writer_init(&dump.writer, &dump.text, false);
    int rc = run(s, do_call, &a, function, e);
    if (!rc && strbuf_failed(&dump.text))
        rc = err_set(e, ERR_NOMEM, "no memory for the result of %s", function);
    if (!rc)
        rc = json_parse(dump.text.data, dump.text.len, &limits, arena, result, e);
    script_dump_release(&dump);
    if (rc)
        err_ctx(e, "calling %s", function);
    return rc;
}

int script_call(struct script *s, const char *function, const struct json *const *args, size_t n_args,
                struct arena *arena, const struct json **result, struct err *e)
{
    return call(s, function, args, n_args, false, arena, result, e);
}

int script_call_ordered(struct script *s, const char *function, const struct json *const *args, size_t n_args,
                        struct arena *arena, const struct json **result, struct err *e)
{
    return call(s, function, args, n_args, true, arena, result, e);
}

bool script_has(struct script *s, const char *function)
{
    struct call_args a = {.function = function};
    return run(s, do_call, &a, function, NULL) == ERR_OK && a.found;
}
