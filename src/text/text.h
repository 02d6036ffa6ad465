/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers from data (tokenizer.json, tiktoken's ranks): text to ids, ids to text, and a stream that never
 * emits half a character. Never chooses by name or hash of a model; refuses, naming it, whatever part of the
 * file it does not implement. And chat templates: jinja2's language as transformers sets it up, interpreted
 * under caps.
 */
#ifndef TEXT_TEXT_H
#define TEXT_TEXT_H

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

struct tokenizer;

/* tokenizer_json: whole file, parsed here. ERR_FORMAT, ERR_UNSUPPORTED (names the component), ERR_LIMIT,
 * ERR_NOMEM. Immutable afterwards: any number of threads may use it. */
int tokenizer_open(struct tokenizer **out, const char *json, size_t n, struct mem *mem, struct err *e);
/* What a release's own code says about its tiktoken.model. Characters are code points; 0: no limit, none. */
struct tiktoken_rule {
    const char *pattern;  /* cuts text: a regular expression of Rust's fancy-regex, UTF-8; NULL: not stated */
    uint32_t piece_chars; /* text between added tokens is first cut after so many characters, */
    uint32_t run_chars;   /* and a run of white space, or of what is none (Python's isspace), after so many */
    uint32_t reserved;    /* so many ids from the number of ranks on are special tokens, if need be
                             "<|reserved_token_ID|>" */
};
/* tiktoken's file: one line "BASE64 RANK" for each token. It says neither how text is cut nor which special
 * tokens there are: rule and special come from elsewhere and are copied. Errors as above; ERR_FORMAT names
 * the line. */
struct tiktoken_special {
    int32_t id;
    const char *text;
    bool special; /* false: it is found in any text, and decodes as text */
};
int tokenizer_open_tiktoken(struct tokenizer **out, const char *ranks, size_t n,
                            const struct tiktoken_rule *rule, const struct tiktoken_special *special,
                            size_t n_special, struct mem *mem, struct err *e);
/* The same for a model directory: config is its tokenizer_config.json (or NULL), whose "added_tokens_decoder"
 * has the special tokens and whose "pat_str", if it is there, is the pattern instead of the rule's
 * (ERR_UNSUPPORTED where neither states one). */
int tokenizer_open_ranks(struct tokenizer **out, const char *ranks, size_t n, const struct json *config,
                         const struct tiktoken_rule *rule, struct mem *mem, struct err *e);
void tokenizer_close(struct tokenizer *t);

uint32_t tokenizer_vocab(const struct tokenizer *t); /* largest id + 1, added tokens included */
int32_t tokenizer_id(const struct tokenizer *t, const char *token); /* -1 if absent */
const char *tokenizer_token(const struct tokenizer *t, int32_t id,
                            size_t *n); /* raw vocabulary entry or NULL */
/* Bytes that the id gives within a text (maybe part of a character); NULL if no token has it. Special tokens
 * give their name. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *n);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* Most bytes of text that one id can stand for; 0 if no bound is known (unknown characters fused into one id,
 * white space swallowed). Lets a caller refuse a text that cannot fit its context before tokenizing it. */
size_t tokenizer_bytes_per_id(const struct tokenizer *t);

enum {
    TOKENIZE_SPECIAL = 1 /* run the post-processor: BOS where the file says so */,
    TOKENIZE_PARSE_SPECIAL = 2 /* special tokens in the text become ids */
};

struct ids {
    int32_t *data;
    size_t n, capacity;
};
void ids_release(struct ids *v);

/* Appends to *out. Text must be UTF-8 (ERR_FORMAT with the byte offset). */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags, struct ids *out,
                     struct err *e);
/* The same, where special tokens in some ranges of bytes (in order, not overlapping; also those that only
 * touch one) stay text whatever the flags say. */
struct text_range {
    size_t from, to;
};
int tokenizer_encode_parts(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                           const struct text_range *plain, size_t n_plain, struct ids *out, struct err *e);

/* Decoding one id after another. feed appends to out the bytes that became certain: whole UTF-8 characters
 * only; finish flushes what is left, incomplete sequences as U+FFFD. Special tokens give no text unless
 * keep_special. Concatenated output equals the decoding of the whole. */
struct detokenizer {
    const struct tokenizer *t;
    bool keep_special;
    bool started;      /* a token gave text: the next one is not the first */
    uint32_t stripped; /* characters cut from the beginning so far */
    int32_t held;      /* a token whose text depends on whether one follows; -1 none */
    unsigned char pending[8];
    unsigned n_pending;
};
void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, bool keep_special);
/* Text that was given out elsewhere (a prompt): what is fed afterwards continues it, with the space between.
 */
int detokenizer_skip(struct detokenizer *d, const int32_t *ids, size_t n, struct err *e);
int detokenizer_feed(struct detokenizer *d, int32_t id, struct strbuf *out, struct err *e);
int detokenizer_finish(struct detokenizer *d, struct strbuf *out, struct err *e);

/* ---- chat templates ----
 *
 * The language and the printing of values are those of Python's jinja2 as transformers sets it up: an
 * immutable sandbox, trim_blocks, lstrip_blocks, break and continue, the generation tag, tojson without HTML
 * escapes, raise_exception, strftime_now. Templates are not trusted: a rendering ends with ERR_LIMIT when its
 * steps, bytes or nesting are spent. docs/templates.md lists what is not implemented.
 */
struct jinja_template;

/* source: UTF-8, copied. ERR_FORMAT (with the line), ERR_UNSUPPORTED (names the tag), ERR_LIMIT, ERR_NOMEM.
 * Immutable afterwards: any number of threads may render it. */
int jinja_open(struct jinja_template **out, const char *source, size_t n, struct mem *mem, struct err *e);
void jinja_close(struct jinja_template *t);
bool jinja_uses(const struct jinja_template *t, const char *name); /* a variable of this name is mentioned */

struct jinja_variable {
    const char *name;
    const struct json *value; /* NULL: text is the value */
    const char *text;
    bool marked; /* written by somebody who is not trusted: see jinja_output */
};

/* A text of a marked variable that is one of these words as a whole is not marked: the roles of messages,
 * which templates build their own tokens from. */
#define JINJA_PLAIN_WORDS                                                                                    \
    {                                                                                                        \
        "system", "user", "assistant", "tool", "developer", "function", "ipython", "model"                   \
    }

struct jinja_options {
    int64_t now;         /* of strftime_now, seconds since 1970, shown in local time; 0: the clock */
    uint64_t max_steps;  /* 0: 20 million */
    uint64_t max_memory; /* bytes; 0: 256 MiB */
    size_t max_output;   /* bytes of the result and of every text on the way; 0: 16 MiB */
    unsigned max_depth;  /* 0: 600 */
    bool json_spelling;  /* values print as in JSON (true, [1, 2], null) and numbers may be added to texts, as
                            templates written for JavaScript expect; off: as Python prints them */
};

/* text, and which of its bytes came from marked variables, however they were cut, joined or replaced on the
 * way: ranges of bytes in order, not touching. */
struct jinja_output {
    struct strbuf text;
    struct text_range *marked;
    size_t n_marked, capacity;
};
void jinja_output_release(struct jinja_output *out);

/* *out must be zero or released. o may be NULL. ERR_INVALID: the template raised an exception
 * (raise_exception) or failed on these variables (its message names the line); ERR_UNSUPPORTED; ERR_LIMIT;
 * ERR_NOMEM. */
int jinja_render(const struct jinja_template *t, const struct jinja_variable *variables, size_t n,
                 const struct jinja_options *o, struct jinja_output *out, struct err *e);

#endif
