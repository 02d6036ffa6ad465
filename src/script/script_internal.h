/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to src/script.
 */
#ifndef SCRIPT_SCRIPT_INTERNAL_H
#define SCRIPT_SCRIPT_INTERNAL_H

#include "script/script.h"

typedef struct lua_State lua_State; /* as in lua.h, so that this header stands alone */

enum script_stop { STOP_NOT, STOP_MEMORY, STOP_INSTRUCTIONS, STOP_TIME };

struct script {
    lua_State *L;
    uint64_t max_bytes, max_instructions, max_wall_ns;
    uint64_t used_bytes, instructions, deadline_ns;
    unsigned refusals;     /* allocations refused since the call began */
    unsigned step;         /* VM instructions between two calls of the hook */
    enum script_stop stop; /* limit that ended the present call */
};

/* Opens the permitted library functions, nothing else. Runs protected. */
int script_libraries(lua_State *L);

/* Gives the chunk on top of the stack globals of its own (script_load_guest). Runs protected. */
void script_guest_globals(lua_State *L);

/* Pushes a JSON tree. ordered: objects have a metatable whose field `keys` lists their keys as they stood.
 * Runs protected. */
void script_push_json(lua_State *L, const struct json *v, unsigned depth, bool ordered);

/* Lua value -> JSON text. Lives outside of the protected call, so that nothing is lost when Lua throws. */
struct script_dump {
    struct strbuf text;
    struct json_writer writer;
    struct script_key {
        const char *text;
        size_t n;
    } * keys; /* stack of the keys of the open objects */
    size_t n_keys, keys_capacity;
    uint64_t n_values;
};
void script_dump_value(lua_State *L, struct script_dump *d, int index, unsigned depth);
void script_dump_release(struct script_dump *d);

#endif
