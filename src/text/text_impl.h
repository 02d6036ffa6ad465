/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the tokenizer, shared by the files of this room only. A tokenizer is five lists of small stages,
 * read from the file in its order: added tokens, normalizers, pre-tokenizers, one model, decoders. A new
 * stage is one kind, one reader (text_stages.c) and one runner (text_encode.c or text_decode.c).
 */
#ifndef TEXT_TEXT_IMPL_H
#define TEXT_TEXT_IMPL_H

#include "base/hash.h"
#include "text/text.h"

#define TEXT_MAX_INPUT      (64u << 20)  /* bytes of one text */
#define TEXT_MAX_NORMALIZED (256u << 20) /* bytes after the normalizers */
#define TEXT_MAX_STAGES     16
#define TEXT_MAX_TOKEN      65536 /* bytes of one vocabulary entry */
#define TEXT_MAX_ADDED      512   /* bytes of one added token: bounds the work per byte of text */
#define TEXT_MAX_MERGES     (16u << 20)
#define TEXT_SPARSE_IDS     65536 /* ids may exceed twice the number of tokens by this many */

struct span {
    const char *s;
    size_t n;
};

/* ---- one entry per id ---- */
enum token_flags {
    TOKEN_PRESENT = 1,
    TOKEN_ADDED = 2,
    TOKEN_SPECIAL = 4,
    TOKEN_BYTE = 8, /* decodes to one raw byte (byte fallback) */
};
struct token {
    const char *raw;   /* as in the file */
    const char *piece; /* after the per-token decoders; bytes, for ByteLevel not UTF-8 by itself */
    uint32_t raw_bytes, piece_bytes;
    uint32_t flags;
};

/* ---- added tokens: a trie over bytes, leftmost-longest ---- */
struct added {
    int32_t id;
    bool special, lstrip, rstrip, normalized;
    struct span content;
};
struct trie_node {
    uint32_t child, sibling; /* 0: none */
    int32_t added;           /* index of the token that ends here, or -1 */
    unsigned char byte;
};
struct trie {
    struct trie_node *nodes; /* node 0 is the root; malloc'ed */
    size_t n, capacity;
    uint32_t first[256]; /* child of the root by byte */
};

/* ---- stages ---- */
enum norm_kind { NORM_PREPEND, NORM_REPLACE };
struct norm_stage {
    enum norm_kind kind;
    struct span pattern, content;
};

enum pre_kind { PRE_BYTE_LEVEL, PRE_METASPACE };
enum meta_scheme { META_NEVER, META_FIRST, META_ALWAYS };
struct pre_stage {
    enum pre_kind kind;
    bool add_prefix_space, split;
    enum meta_scheme scheme;
    struct span replacement;
};

/* Per-token decoders, then at most one that joins bytes, then what may follow it. */
enum dec_kind { DEC_REPLACE, DEC_STRIP, DEC_METASPACE };
struct dec_stage {
    enum dec_kind kind;
    struct span pattern, content;
    uint32_t start, stop;
    enum meta_scheme scheme;
};
enum dec_join { JOIN_SPACE /* no decoder at all */, JOIN_PLAIN, JOIN_BYTE_FALLBACK, JOIN_BYTE_LEVEL };

/* ---- the model ---- */
struct merge_slot {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: empty */
    uint32_t rank;
    int32_t id;
};
struct bpe {
    struct merge_slot *slots; /* power of two, at most half full; malloc'ed */
    size_t n_slots;
    int32_t byte_id[256]; /* "<0xHH>", -1 where absent */
    int32_t char_id[128]; /* ids of one-character tokens of ASCII, -1 where absent */
    int32_t unk_id;       /* -1: characters without a token vanish, as in the reference implementation */
    bool byte_fallback, fuse_unk, ignore_merges;
};

struct tokenizer {
    struct arena arena;
    struct strmap map; /* model vocabulary: text -> id */
    struct token *tokens;
    uint32_t n_ids;
    uint32_t n_vocab; /* entries of the model */
    struct added *added;
    size_t n_added;
    size_t bytes_per_id;         /* 0: unbounded */
    struct trie raw, normalized; /* which text each is matched in */
    struct norm_stage norm[TEXT_MAX_STAGES];
    size_t n_norm;
    struct pre_stage pre[TEXT_MAX_STAGES];
    size_t n_pre;
    struct bpe bpe;
    int32_t *post_before, *post_after;
    size_t n_before, n_after;
    struct dec_stage dec[TEXT_MAX_STAGES];
    size_t n_dec;
    enum dec_join join;
    bool fused;           /* a Fuse or ByteLevel decoder was read: later ones see the whole text */
    bool first_differs;   /* the first token of a text decodes otherwise */
    uint32_t strip_start; /* leading characters cut from the whole text, if they are strip_char */
    struct span strip_char;
};

/* text_stages.c: readers */
int text_read_normalizer(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e);
int text_read_pre_tokenizer(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e);
int text_read_post_processor(struct tokenizer *t, const struct json *v, struct err *e);
int text_read_decoder(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e);
bool text_copy_string(struct tokenizer *t, const struct json *v, struct span *out);

/* text_trie.c */
void trie_init(struct trie *t);
void trie_release(struct trie *t);
int trie_add(struct trie *t, struct span key, int32_t added); /* ERR_NOMEM, ERR_LIMIT */
/* Longest key that begins at s; -1 if none, else the index given to trie_add and its length. */
int32_t trie_longest(const struct trie *t, const char *s, size_t n, size_t *length);

/* text_bpe.c */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    size_t symbols_capacity;
    struct bpe_merge *heap;
    size_t heap_capacity, n_heap;
};
void bpe_scratch_release(struct bpe_scratch *s);
int bpe_read(struct tokenizer *t, const struct json *model, struct err *e);
int bpe_encode(const struct tokenizer *t, struct bpe_scratch *scratch, const char *s, size_t n,
               struct ids *out, struct err *e);

/* text_encode.c: every occurrence of pattern, left to right; appends to out. */
void text_replace(const char *s, size_t n, struct span pattern, struct span content, struct strbuf *out);
/* The normalizers, also used for the content of added tokens. Appends to out. */
int text_normalize(const struct tokenizer *t, const char *s, size_t n, struct strbuf *out, struct err *e);
int ids_push(struct ids *v, int32_t id, struct err *e);
void byte_level_char(unsigned char b,
                     struct strbuf *out); /* the printable character that stands for a byte */

/* text_decode.c: fills piece and TOKEN_BYTE of every token. */
int text_prepare_pieces(struct tokenizer *t, struct err *e);

#endif
