/* SPDX-License-Identifier: Apache-2.0
 *
 * The library that scripts see. Owns the list of permitted functions and the guards of those that loop in C.
 *
 * The instruction hook only counts VM instructions, so a library function that loops in C is permitted only
 * if the length of its loop is bounded by memory that exists. That rules out patterns (find, match, gmatch,
 * gsub), rep, pack, table.move, and insert, remove, concat, sort and unpack on tables whose length is a lie:
 * a __len or __index metamethod, or a border far beyond the elements. Finalizers run with the hook off, so no
 * metatable may have __gc. Random numbers and %p would make a trace differ from run to run.
 */
#include "script/script_internal.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <string.h>

#define SCRIPT_MAX_LIST (1 << 24) /* elements of a table that a C loop may walk */

static const char *const base_allowed[] = {
    "assert", "error",  "getmetatable", "ipairs",       "next",     "pairs",    "pcall", "rawequal", "rawget",
    "rawlen", "rawset", "select",       "setmetatable", "tonumber", "tostring", "type",  "_VERSION", NULL};
static const char *const math_allowed[] = {"abs", "acos",       "asin", "atan", "ceil", "cos", "deg",
                                           "exp", "floor",      "fmod", "huge", "log",  "max", "maxinteger",
                                           "min", "mininteger", "modf", "pi",   "rad",  "sin", "sqrt",
                                           "tan", "tointeger",  "type", "ult",  NULL};
static const char *const string_allowed[] = {"byte",    "char", "format", "len", "lower",
                                             "reverse", "sub",  "upper",  NULL};
static const char *const table_allowed[] = {"concat", "insert", "pack", "remove", "sort", "unpack", NULL};
static const char *const table_guarded[] = {"concat", "insert", "remove", "sort", "unpack", NULL};

static bool listed(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (strcmp(*list, name) == 0)
            return true;
    return false;
}

/* Removes what is not on the list from the table on top of the stack. */
static void prune(lua_State *L, const char *const *allowed)
{
    lua_pushnil(L);
    while (lua_next(L, -2)) {
        lua_pop(L, 1);
        if (lua_type(L, -1) == LUA_TSTRING && listed(allowed, lua_tostring(L, -1)))
            continue;
        lua_pushvalue(L, -1);
        lua_pushnil(L);
        lua_rawset(L, -4);
    }
}

/* Upvalue 1: the library function. The first argument must be a plain list of bounded length. */
static int guarded_list(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    if (lua_getmetatable(L, 1))
        return luaL_error(L, "a list with a metatable is not accepted here");
    if (lua_rawlen(L, 1) > SCRIPT_MAX_LIST)
        return luaL_error(L, "the list is too long");
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
    return lua_gettop(L);
}

/* Width and precision are limited to two digits by the library itself. */
static int guarded_format(lua_State *L)
{
    size_t n;
    const char *s = luaL_checklstring(L, 1, &n);
    for (size_t i = 0; i < n; i++) {
        if (s[i] != '%')
            continue;
        i++;
        while (i < n && strchr("-+ #0123456789.", s[i]) && s[i])
            i++;
        if (i < n && s[i] == 'p')
            return luaL_error(L, "%%p is not accepted");
    }
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, 1);
    return 1;
}

static int guarded_setmetatable(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    if (lua_type(L, 2) == LUA_TTABLE) {
        lua_pushliteral(L, "__gc");
        lua_rawget(L, 2);
        if (!lua_isnil(L, -1))
            return luaL_error(L, "__gc is not accepted");
        lua_pop(L, 1);
    }
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, 1);
    return 1;
}

static int guarded_getmetatable(lua_State *L)
{
    luaL_checkany(L, 1);
    /* the metatable of strings would let a script change what every string does */
    if (!lua_istable(L, 1) || (!luaL_getmetafield(L, 1, "__metatable") && !lua_getmetatable(L, 1)))
        lua_pushnil(L);
    return 1;
}

/* Replaces field `name` of the table on top by a guard that holds the original. */
static void guard(lua_State *L, const char *name, lua_CFunction f)
{
    lua_getfield(L, -1, name);
    lua_pushcclosure(L, f, 1);
    lua_setfield(L, -2, name);
}

int script_libraries(lua_State *L)
{
    luaL_requiref(L, "_G", luaopen_base, 1);
    prune(L, base_allowed);
    guard(L, "setmetatable", guarded_setmetatable);
    guard(L, "getmetatable", guarded_getmetatable);
    lua_pop(L, 1);
    luaL_requiref(L, LUA_MATHLIBNAME, luaopen_math, 1);
    prune(L, math_allowed);
    lua_pop(L, 1);
    luaL_requiref(L, LUA_STRLIBNAME, luaopen_string,
                  1); /* also the metatable of strings, whose __index is this table */
    prune(L, string_allowed);
    guard(L, "format", guarded_format);
    lua_pop(L, 1);
    luaL_requiref(L, LUA_TABLIBNAME, luaopen_table, 1);
    prune(L, table_allowed);
    for (size_t i = 0; table_guarded[i]; i++)
        guard(L, table_guarded[i], guarded_list);
    lua_pop(L, 1);
    /* requiref leaves the loaded tables in the registry only, where scripts cannot reach */
    lua_pushlightuserdata(L, NULL);
    lua_setglobal(L, "null");
    return 0;
}
