/* SPDX-License-Identifier: Apache-2.0
 *
 * Globals of a chunk that is not trusted. Owns the wall between it and the chunks before it: it gets copies,
 * so that nothing it does to a name, a library table or a metatable reaches what those chunks call. Refuses,
 * with the name, what would only shadow: whoever redefines a function of the API means to deceive or is
 * mistaken.
 */
#include <lauxlib.h>
#include <lua.h>
#include <string.h>

#include "base/mem.h"
#include "script/script_internal.h"

#define RESERVED "day0_"

static bool reserved(lua_State *L, int index)
{
    return lua_type(L, index) == LUA_TSTRING &&
           strncmp(lua_tostring(L, index), RESERVED, sizeof RESERVED - 1) == 0;
}

/* Copies the fields of the table at `from` into the table at `to`; names of ours are left out. */
static void copy_fields(lua_State *L, int from, int to)
{
    lua_pushnil(L);
    while (lua_next(L, from)) {
        if (reserved(L, -2)) {
            lua_pop(L, 1);
            continue;
        }
        lua_pushvalue(L, -2);
        lua_insert(L, -2);
        lua_rawset(L, to);
    }
}

/* __newindex. Upvalue 1: what the chunk sees. */
static int set_global(lua_State *L)
{
    lua_settop(L, 3);
    lua_pushvalue(L, 2);
    bool taken = reserved(L, 2) || lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL;
    if (taken && lua_type(L, 2) == LUA_TSTRING)
        return luaL_error(L, "%s belongs to the API and may not be set", lua_tostring(L, 2));
    lua_settop(L, 3);
    lua_rawset(L, 1);
    return 0;
}

/* Into the metatable on top: reads come from the table at `seen`, what that holds cannot be set. */
static void put_wall(lua_State *L, int seen)
{
    lua_pushvalue(L, seen);
    lua_setfield(L, -2, "__index");
    lua_pushvalue(L, seen);
    lua_pushcclosure(L, set_global, 1);
    lua_setfield(L, -2, "__newindex");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
}

/* In place of a table that scripts share (a library) on top: an empty one that reads from a copy, can be
 * called as the table can, and refuses to set what is there. */
static void wall_table(lua_State *L)
{
    int from = lua_gettop(L), copy = from + 1;
    lua_newtable(L);
    copy_fields(L, from, copy);
    lua_newtable(L);
    lua_createtable(L, 0, 4);
    if (luaL_getmetafield(L, from, "__call") != LUA_TNIL)
        lua_setfield(L, -2, "__call");
    put_wall(L, copy);
    lua_setmetatable(L, -2);
    lua_replace(L, from);
    lua_settop(L, from);
}

/* Other tables of the API are marks: they are compared by identity, and what they hold ends in the trace
 * only. */
static bool is_library(lua_State *L, int index)
{
    static const char *const names[] = {"math", "string", "table"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (lua_type(L, index) == LUA_TSTRING && strcmp(lua_tostring(L, index), names[i]) == 0)
            return true;
    return false;
}

void script_guest_globals(lua_State *L)
{
    int chunk = lua_gettop(L), seen = chunk + 1, all = chunk + 2;
    luaL_checkstack(L, 12, "globals");
    lua_newtable(L);
    lua_pushglobaltable(L);
    lua_pushnil(L);
    while (lua_next(L, all)) {
        if (reserved(L, -2)) {
            lua_pop(L, 1);
            continue;
        }
        if (is_library(L, -2) && lua_istable(L, -1))
            wall_table(L);
        lua_pushvalue(L, -2);
        lua_insert(L, -2);
        lua_rawset(L, seen);
    }
    lua_settop(L, seen);
    lua_newtable(L);
    lua_createtable(L, 0, 3);
    put_wall(L, seen);
    lua_setmetatable(L, -2);
    /* a chunk has one upvalue at most: its globals */
    if (lua_setupvalue(L, chunk, 1) == NULL)
        lua_pop(L, 1);
    lua_settop(L, chunk);
}
