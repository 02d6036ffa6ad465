/* SPDX-License-Identifier: Apache-2.0
 *
 * The sandboxed Lua host; the only room that includes lua.h. A script sees tables, strings, numbers and the
 * few library functions on the list in script.c; it cannot read files, load code, use string patterns, run
 * past its instruction and memory caps, or call back into C. Data goes in and comes out as JSON trees, copied
 * at once.
 */
#ifndef SCRIPT_SCRIPT_H
#define SCRIPT_SCRIPT_H

#include "base/err.h"
#include "base/json.h"

struct script_limits {
    uint64_t max_bytes;        /* Lua heap; 0: 256 MiB */
    uint64_t max_instructions; /* VM instructions over the life of the script; 0: 200 million */
    uint64_t max_wall_ns;      /* 0: 10 s */
};

struct script;

int script_open(struct script **out, const struct script_limits *limits, struct err *e);
void script_close(struct script *s);

/* Runs a chunk of text (never bytecode). Its globals stay for later chunks. If it returns a value, that value
 * becomes the global `result_name` (NULL: dropped). Errors: ERR_FORMAT (syntax or runtime error with
 * chunk:line), ERR_LIMIT (memory, instructions, time). */
int script_load(struct script *s, const char *chunk_name, const char *text, size_t n, const char *result_name,
                struct err *e);

/* As script_load(), for a chunk that is not trusted: it sees copies of the globals of earlier chunks, but for
 * those whose names begin with "day0_", and has its own for what it sets. Setting one of those it sees, or a
 * name that begins with "day0_", is an error that names it; however it tries, what earlier chunks call stays
 * theirs. */
int script_load_guest(struct script *s, const char *chunk_name, const char *text, size_t n,
                      const char *result_name, struct err *e);

/* Calls a function by dotted path of globals ("arch.build") with JSON arguments; its first result comes back
 * as JSON in `arena`. Lua tables with keys 1..n are arrays, an empty table is an empty array, other tables
 * need string keys and are objects; functions and cycles are ERR_FORMAT. JSON null arrives as the global
 * `null` (a unique value), arrays keep their length in field `n`. */
int script_call(struct script *s, const char *function, const struct json *const *args, size_t n_args,
                struct arena *arena, const struct json **result, struct err *e);

/* The same, and every object has a metatable whose field `keys` lists its keys in the order in which they
 * stood. */
int script_call_ordered(struct script *s, const char *function, const struct json *const *args, size_t n_args,
                        struct arena *arena, const struct json **result, struct err *e);

/* true if the dotted path names a function. */
bool script_has(struct script *s, const char *function);

#endif
