/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON into Lua and back, by copy. Both directions are bounded in depth and in the number of values; keys of
 * objects come out sorted, because Lua's own order differs from run to run. Everything here may throw and
 * runs under a protected call.
 */
#include "script/script_internal.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCRIPT_MAX_DEPTH  100
#define SCRIPT_MAX_VALUES (4u << 20)
#define SCRIPT_MAX_TEXT   (64u << 20)

static void push_array(lua_State *L, const struct json *v, unsigned depth, bool ordered)
{
    lua_createtable(L, (int)v->n, 1);
    for (uint32_t i = 0; i < v->n; i++) {
        script_push_json(L, &v->as.items[i], depth + 1, ordered);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_pushinteger(L, v->n);
    lua_setfield(L, -2, "n");
}

/* Lua has no order of keys. */
static void keep_order(lua_State *L, const struct json *v)
{
    lua_createtable(L, 0, 1);
    lua_createtable(L, (int)v->n, 0);
    for (uint32_t i = 0; i < v->n; i++) {
        lua_pushlstring(L, v->as.members[i].key, v->as.members[i].key_bytes);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_setfield(L, -2, "keys");
    lua_setmetatable(L, -2);
}

static void push_object(lua_State *L, const struct json *v, unsigned depth, bool ordered)
{
    lua_createtable(L, 0, (int)v->n);
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json_member *m = &v->as.members[i];
        lua_pushlstring(L, m->key, m->key_bytes);
        script_push_json(L, &m->value, depth + 1, ordered);
        lua_rawset(L, -3);
    }
    if (ordered)
        keep_order(L, v);
}

void script_push_json(lua_State *L, const struct json *v, unsigned depth, bool ordered)
{
    if (depth > SCRIPT_MAX_DEPTH || (v && v->n > INT32_MAX))
        luaL_error(L, "a JSON argument is nested too deeply or too large");
    luaL_checkstack(L, 6, "JSON argument");
    switch (v ? v->type : JSON_NULL) {
    case JSON_NULL:
        lua_pushlightuserdata(L, NULL);
        break;
    case JSON_BOOL:
        lua_pushboolean(L, v->as.boolean);
        break;
    case JSON_INT:
        lua_pushinteger(L, v->as.i);
        break;
    case JSON_UINT:
        lua_pushnumber(L, (lua_Number)v->as.u);
        break;
    case JSON_DOUBLE:
        lua_pushnumber(L, v->as.d);
        break;
    case JSON_STRING:
        lua_pushlstring(L, v->as.string, v->n);
        break;
    case JSON_ARRAY:
        push_array(L, v, depth, ordered);
        break;
    case JSON_OBJECT:
        push_object(L, v, depth, ordered);
        break;
    }
}

/* ---- back ---- */

void script_dump_release(struct script_dump *d)
{
    strbuf_release(&d->text);
    free(d->keys);
}

/* Array: keys are exactly 1..n, and perhaps `n` with that value. -1: an object. */
static int64_t array_length(lua_State *L, int index)
{
    lua_Unsigned n = lua_rawlen(L, index), seen = 0;
    lua_pushnil(L);
    while (lua_next(L, index)) {
        if (lua_isinteger(L, -2)) {
            lua_Integer k = lua_tointeger(L, -2);
            if (k < 1 || (lua_Unsigned)k > n)
                n = LUA_MAXINTEGER; /* no border of ours: cannot be an array */
            seen++;
        } else if (lua_type(L, -2) == LUA_TSTRING && strcmp(lua_tostring(L, -2), "n") == 0 &&
                   lua_isinteger(L, -1) && lua_tointeger(L, -1) == (lua_Integer)lua_rawlen(L, index)) {
            /* JSON arrays come in with it */
        } else {
            lua_pop(L, 2);
            return seen ? -2 : -1;
        }
        lua_pop(L, 1);
    }
    return seen == n ? (int64_t)n : -2;
}

static int by_key(const void *a, const void *b)
{
    const struct script_key *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int c = memcmp(x->text, y->text, n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static void dump_object(lua_State *L, struct script_dump *d, int index, unsigned depth)
{
    size_t first = d->n_keys;
    lua_pushnil(L);
    while (lua_next(L, index)) {
        lua_pop(L, 1);
        if (lua_type(L, -1) != LUA_TSTRING)
            luaL_error(L, "a result holds a table whose keys are neither 1..n nor strings");
        if (vec_reserve((void **)&d->keys, &d->keys_capacity, d->n_keys + 1, sizeof *d->keys))
            luaL_error(L, "no memory for a result");
        struct script_key *k = &d->keys[d->n_keys++];
        k->text = lua_tolstring(L, -1, &k->n); /* stays while the table holds it */
        if (memchr(k->text, 0, k->n))
            luaL_error(L, "a result holds a key with a NUL byte");
    }
    size_t last = d->n_keys;
    qsort(d->keys + first, last - first, sizeof *d->keys, by_key);
    json_begin_object(&d->writer);
    for (size_t i = first; i < last; i++) {
        lua_pushlstring(L, d->keys[i].text, d->keys[i].n);
        lua_rawget(L, index);
        if (!utf8_valid(d->keys[i].text, d->keys[i].n))
            luaL_error(L, "a result holds a key that is no UTF-8");
        json_key(&d->writer, d->keys[i].text);
        script_dump_value(L, d, lua_gettop(L), depth + 1);
        lua_pop(L, 1);
    }
    json_end_object(&d->writer);
    d->n_keys = first;
}

static void dump_table(lua_State *L, struct script_dump *d, int index, unsigned depth)
{
    if (depth >= SCRIPT_MAX_DEPTH)
        luaL_error(L, "a result is nested deeper than %d levels, or holds itself", SCRIPT_MAX_DEPTH);
    int64_t n = array_length(L, index);
    if (n == -2)
        luaL_error(L, "a result holds a table whose keys are neither 1..n nor strings");
    if (n < 0) {
        dump_object(L, d, index, depth);
        return;
    }
    json_begin_array(&d->writer);
    for (int64_t i = 1; i <= n; i++) {
        lua_rawgeti(L, index, i);
        script_dump_value(L, d, lua_gettop(L), depth + 1);
        lua_pop(L, 1);
    }
    json_end_array(&d->writer);
}

static void dump_number(lua_State *L, struct script_dump *d, int index)
{
    if (lua_isinteger(L, index)) {
        json_write_i64(&d->writer, lua_tointeger(L, index));
        return;
    }
    double v = lua_tonumber(L, index);
    if (!isfinite(v))
        luaL_error(L, "a result holds a number that is not finite");
    json_write_f64(&d->writer, v);
}

void script_dump_value(lua_State *L, struct script_dump *d, int index, unsigned depth)
{
    size_t n;
    const char *s;
    if (++d->n_values > SCRIPT_MAX_VALUES || d->text.len > SCRIPT_MAX_TEXT)
        luaL_error(L, "a result holds more than %d values or %d MiB", (int)SCRIPT_MAX_VALUES,
                   (int)(SCRIPT_MAX_TEXT >> 20));
    if (strbuf_failed(&d->text))
        luaL_error(L, "no memory for a result");
    luaL_checkstack(L, 6, "result");
    switch (lua_type(L, index)) {
    case LUA_TNIL:
    case LUA_TLIGHTUSERDATA:
        json_write_null(&d->writer);
        break;
    case LUA_TBOOLEAN:
        json_write_bool(&d->writer, lua_toboolean(L, index));
        break;
    case LUA_TNUMBER:
        dump_number(L, d, index);
        break;
    case LUA_TSTRING:
        s = lua_tolstring(L, index, &n);
        if (n > SCRIPT_MAX_TEXT)
            luaL_error(L, "a result holds a string of more than %d MiB", (int)(SCRIPT_MAX_TEXT >> 20));
        json_write_string_n(&d->writer, s, n);
        break;
    case LUA_TTABLE:
        dump_table(L, d, index, depth);
        break;
    default:
        luaL_error(L, "a result holds a %s", luaL_typename(L, index));
    }
}
