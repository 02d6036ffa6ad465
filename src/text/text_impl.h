/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the tokenizer, shared by the files of this room only. A tokenizer is five lists of small stages,
 * read from the file in its order: added tokens, normalizers, pre-tokenizers, one model, decoders. A new
 * normalizer or pre-tokenizer is one line in the table of its file, with a reader and a runner beside it.
 */
#ifndef TEXT_TEXT_IMPL_H
#define TEXT_TEXT_IMPL_H

#include "base/hash.h"
#include "text/text.h"

#define TEXT_MAX_INPUT      (64u << 20)  /* bytes of one text */
#define TEXT_MAX_NORMALIZED (256u << 20) /* bytes after the normalizers */
#define TEXT_MAX_STAGES     32
#define TEXT_MAX_TOKEN      65536 /* bytes of one vocabulary entry */
#define TEXT_MAX_ADDED      512   /* bytes of one token in a trie: bounds the work per byte of text */
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
    TOKEN_BYTE = 8,        /* decodes to one raw byte (byte fallback) */
    TOKEN_NORMALIZED = 16, /* decodes from what an added token's content is behind the normalizers */
};
struct token {
    const char *raw;   /* as in the file */
    const char *piece; /* after the per-token decoders; bytes, for ByteLevel not UTF-8 by itself */
    uint32_t raw_bytes, piece_bytes;
    uint32_t flags;
    uint32_t added; /* where TOKEN_NORMALIZED: which added token it is, the last of equal ones */
};

/* ---- added tokens: a trie over bytes, leftmost-longest ---- */
struct added {
    int32_t id;
    bool special, lstrip, rstrip, normalized, single_word;
    bool again;                   /* an earlier one has the same id */
    struct span content, decoded; /* decoded: where TOKEN_NORMALIZED */
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

/* ---- regular expressions: text_pattern.c, text_regex.c ---- */
enum regex_dialect { REGEX_ONIG /* tokenizer.json */, REGEX_RUST /* tiktoken, and the library's own */ };
struct regex;       /* compiled; any number of threads */
struct regex_match; /* what one thread needs for matching: made when first needed, with the time it may take
                     */
struct regex_find { /* one walk over a text; zero-initialise */
    size_t at, last;
    bool any, found;
    size_t start, end; /* bytes of the match */
};
/* Appends the pattern as PCRE2 must read it. ERR_UNSUPPORTED: *why says what is in it. */
int regex_translate(const char *pattern, size_t n, enum regex_dialect dialect, struct strbuf *out,
                    const char **why);
/* where: the part of the file, for messages. ERR_UNSUPPORTED names the pattern and what is in it. */
int regex_compile(struct regex **out, const char *pattern, size_t n, enum regex_dialect dialect,
                  const char *where, struct err *e);
void regex_free(struct regex *r);
/* The next match in s (valid UTF-8), as find_iter of the reference implementation gives them. ERR_LIMIT. */
int regex_next(const struct regex *r, struct regex_match **match, const char *s, size_t n,
               struct regex_find *f, struct err *e);
/* text_bytes: of the whole text, which bounds the time. Otherwise made by regex_next, for the piece it gets.
 */
int regex_match_new(struct regex_match **out, size_t text_bytes, struct err *e);
void regex_match_free(struct regex_match *m);

/* ---- characters: text_unicode.c ---- */
bool char_is_space(uint32_t c);                               /* White_Space */
bool char_is_punctuation(uint32_t c);                         /* ASCII punctuation or category P */
bool char_is_number(uint32_t c);                              /* category N */
bool char_is_decimal(uint32_t c);                             /* category Nd */
bool char_is_mark(uint32_t c);                                /* category M */
bool char_is_nonspacing(uint32_t c);                          /* category Mn */
bool char_is_other(uint32_t c);                               /* Cc, Cf, Co */
void text_lower(const char *s, size_t n, struct strbuf *out); /* each character by itself, in full */
enum unicode_form { FORM_NFC, FORM_NFD, FORM_NFKC, FORM_NFKD };
void text_form(enum unicode_form form, const char *s, size_t n, struct strbuf *out);
/* Bytes of the extended grapheme cluster at s. */
size_t text_grapheme(const char *s, size_t n);

/* ---- stages ---- */
struct norm_stage {
    const struct norm_type *type;
    struct span pattern, content;
    struct regex *regex;                 /* Replace by a regular expression */
    bool left, right;                    /* Strip */
    bool clean, chinese, accents, lower; /* BertNormalizer */
    const uint32_t *trie; /* Precompiled: double array of n_trie units, then strings ended by NUL */
    size_t n_trie;
};

enum meta_scheme { META_NEVER, META_FIRST, META_ALWAYS };
enum split_behavior { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS };
struct pre_stage {
    const struct pre_type *type;
    bool add_prefix_space, split, invert;
    enum meta_scheme scheme;
    enum split_behavior behavior;
    struct span replacement; /* or the pattern, or the delimiter */
    struct regex *regex;
    uint32_t piece_chars, run_chars; /* of text_add_cut; 0: no limit */
};

/* Per-token decoders, then at most one that joins bytes, then what may follow it. */
enum dec_kind { DEC_REPLACE, DEC_STRIP, DEC_METASPACE, DEC_WORDPIECE, DEC_BPE };
struct dec_stage {
    enum dec_kind kind;
    struct span pattern, content;
    struct regex *regex;
    uint32_t start, stop;
    enum meta_scheme scheme;
    bool cleanup;
};
enum dec_join { JOIN_SPACE /* no decoder at all */, JOIN_PLAIN, JOIN_BYTE_FALLBACK, JOIN_BYTE_LEVEL };

/* ---- the model ---- */
enum model_kind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL };
struct merge_slot {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: empty */
    uint32_t rank;
    int32_t id;
};
#define BPE_DIRECT 512 /* characters with a table of their own: ASCII and the byte-level alphabet */
struct bpe {
    struct merge_slot *slots; /* power of two, at most half full; malloc'ed */
    size_t n_slots;
    unsigned char *joins;        /* filter of bpe_may_join; NULL: every pair may; malloc'ed */
    int32_t char_id[BPE_DIRECT]; /* ids of tokens of one character, -1 where absent */
    struct span prefix, suffix;  /* of what continues a word, of what ends it */
    bool fuse_unk, ignore_merges;
};
struct words {     /* Unigram, WordPiece, WordLevel */
    double *score; /* Unigram: by id; malloc'ed */
    double unk_score;
    struct trie start, inner; /* tokens by their text; WordPiece: inner ones without their prefix */
    uint64_t max_chars;       /* WordPiece: longer words are unknown */
    bool fuse_unk;
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
    struct regex *word;          /* one character of a word; NULL if no token needs it */
    struct norm_stage norm[TEXT_MAX_STAGES];
    size_t n_norm;
    struct pre_stage pre[TEXT_MAX_STAGES];
    size_t n_pre;
    enum model_kind model;
    int32_t byte_id[256]; /* "<0xHH>", -1 where absent */
    int32_t unk_id;       /* -1: none; what is unknown vanishes (BPE) or cannot be encoded (the others) */
    bool byte_fallback;
    struct bpe bpe;
    struct words words;
    int32_t *post_before, *post_after;
    size_t n_before, n_after;
    struct dec_stage dec[TEXT_MAX_STAGES];
    size_t n_dec;
    enum dec_join join;
    bool fused;           /* a Fuse or ByteLevel decoder was read: later ones see the whole text */
    bool first_differs;   /* the first token of a text decodes otherwise */
    bool last_differs;    /* the last one does: a stream holds each back until the next comes */
    uint32_t strip_start; /* leading characters cut from the whole text, if they are strip_char */
    struct span strip_char;
};

/* text_read.c: what all readers need */
#define TEXT_MAX_DEPTH 8
typedef int (*stage_reader)(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e);
const char *text_type_of(const struct json *v);
bool text_type_is(const struct json *v, const char *name);
bool text_absent(const struct json *v); /* missing or null */
bool text_read_flag(const struct json *v, const char *key, bool fallback, bool *out);
bool text_copy_string(struct tokenizer *t, const struct json *v, struct span *out);
int text_malformed(const char *part, const struct json *v, const char *key, struct err *e);
int text_not_implemented(const char *part, const struct json *v, struct err *e);
int text_too_many(const char *part, struct err *e);
int text_read_sequence(struct tokenizer *t, const char *part, const struct json *v, const char *key,
                       stage_reader read, unsigned depth, struct err *e);
/* "pattern": {"String": s} or {"Regex": s}: *regex stays NULL for the first. */
int text_read_pattern(struct tokenizer *t, const char *part, const struct json *v, struct span *out,
                      struct regex **regex, struct err *e);
int text_read_metaspace(struct tokenizer *t, const char *part, const struct json *v, struct span *replacement,
                        enum meta_scheme *scheme, bool *split, struct err *e);

/* one reader for each part: text_norm.c, text_pre.c, text_post.c, text_decoders.c */
int text_read_normalizer(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e);
int text_read_pre_tokenizer(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e);
int text_read_post_processor(struct tokenizer *t, const struct json *v, struct err *e);
int text_read_decoder(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e);

/* text_trie.c */
void trie_init(struct trie *t);
void trie_release(struct trie *t);
int trie_add(struct trie *t, struct span key, int32_t added); /* ERR_NOMEM, ERR_LIMIT */
/* Longest key that begins at s; -1 if none, else the index given to trie_add and its length. */
int32_t trie_longest(const struct trie *t, const char *s, size_t n, size_t *length);
/* One byte further from *node (0: the root); false where no key goes on. *value: as above, or -1. */
bool trie_step(const struct trie *t, uint32_t *node, unsigned char byte, int32_t *value);

/* ---- models: text_bpe.c, text_words.c ---- */
struct best { /* Unigram: best way to end behind a byte */
    double score;
    int32_t id;
    uint32_t from; /* UINT32_MAX: none */
};
struct model_scratch {
    struct bpe_symbol *symbols;
    size_t symbols_capacity;
    struct bpe_merge *heap;
    size_t heap_capacity, n_heap;
    struct best *best;
    size_t best_capacity;
};
void model_scratch_release(struct model_scratch *s);
int bpe_read(struct tokenizer *t, const struct json *model, struct err *e);
/* Every pair of tokens whose text together is a token merges, in the order of its rank: tiktoken's rule. */
int bpe_merges_from_ranks(struct tokenizer *t, struct err *e);
int bpe_encode(const struct tokenizer *t, struct model_scratch *scratch, const char *s, size_t n,
               struct ids *out, struct err *e);
/* After the merges, byte tokens and the unknown token are known. Errors: ERR_NOMEM. */
int bpe_find_cuts(struct tokenizer *t, struct err *e);
/* False: of two neighbours, as a word is first split, none is ever merged across the place between. */
bool bpe_may_join(const struct bpe *b, int32_t left, int32_t right);
int words_read(struct tokenizer *t, const struct json *model, struct err *e);
void words_release(struct words *w);
int words_encode(const struct tokenizer *t, struct model_scratch *scratch, const char *s, size_t n,
                 struct ids *out, struct err *e);
bool text_vocab_id(const struct tokenizer *t, const char *s, size_t n, int32_t *out);

/* ---- encoding: text_encode.c, text_pre.c ---- */
/* Where in a raw piece the occurrences of a normalized special token were found so far. */
struct cursor {
    uint32_t piece; /* number of the piece that `at` belongs to */
    size_t at;
};
struct word_cache;
struct encoder {
    const struct tokenizer *t;
    unsigned flags;
    const char *text; /* the whole, for offsets */
    const struct text_range *plain;
    size_t n_plain;
    struct cursor *cursors; /* one per added token, where plain ranges and normalized special tokens meet */
    uint32_t n_pieces;
    const char *piece; /* being encoded, as given */
    size_t piece_bytes;
    struct ids *out;
    struct model_scratch scratch;
    struct regex_match *match;
    struct word_cache *cache;        /* words seen in this text and their ids */
    struct strbuf normalized, spare; /* spare: second buffer where a stage rewrites text */
    struct strbuf alphabet;          /* one word in the byte-level alphabet */
    struct err *e;
};
/* Pre-tokenizers from `stage` on, then the model. lead: how many bytes of the piece stand for the first
 * character of the text as it was given, 0 if it does not begin the text. Normalizers may have cut that
 * character away, and then nothing does. */
int text_run_pre(struct encoder *x, size_t stage, const char *s, size_t n, size_t lead);
size_t text_lead(size_t lead, size_t from, size_t to); /* the same of the bytes [from, to) */
/* Adds a stage of no file: struct tiktoken_rule says what it does. */
void text_add_cut(struct tokenizer *t, uint32_t piece_chars, uint32_t run_chars);
bool text_pre_is_byte_level(const struct pre_stage *s);
bool text_pre_keeps_all(const struct pre_stage *s); /* no character of a text is lost */
/* Ids of one word; alphabet: its bytes are to be written in the byte-level alphabet first. */
int text_encode_word(struct encoder *x, const char *s, size_t n, bool alphabet);
int text_check_buffer(const struct strbuf *b, struct err *e);
void text_swap(struct strbuf *a, struct strbuf *b);
struct word_cache *word_cache_new(size_t text_bytes); /* text_cache.c; NULL if the text is short */
void word_cache_free(struct word_cache *c);
/* The ids of a word seen before, or NULL. */
const int32_t *word_cache_get(struct word_cache *c, const char *s, size_t n, uint64_t *hash, size_t *n_ids);
void word_cache_put(struct word_cache *c, const char *s, size_t n, uint64_t hash, const int32_t *ids,
                    size_t n_ids);

/* text_norm.c: every occurrence of pattern, left to right; appends to out. *lead: as of text_run_pre, before
 * and behind; may be NULL. */
void text_replace(const char *s, size_t n, struct span pattern, struct span content, size_t *lead,
                  struct strbuf *out);
int text_replace_regex(const struct regex *r, struct regex_match **match, const char *s, size_t n,
                       struct span content, size_t *lead, struct strbuf *out, struct err *e);
/* The normalizers. Leaves the result in *a; both buffers are used. */
int text_normalize(const struct tokenizer *t, struct regex_match **match, const char *s, size_t n,
                   size_t *lead, struct strbuf *a, struct strbuf *b, struct err *e);
/* Bytes that may become one: 0 if there is no bound. */
size_t text_shrink_of_normalizers(const struct tokenizer *t);
int ids_push(struct ids *v, int32_t id, struct err *e);
/* The printable character that stands for a byte. */
void byte_level_char(unsigned char b, struct strbuf *out);

/* tokenizer.c */
int text_set_token(struct tokenizer *t, uint32_t id, struct span text, uint32_t flags, struct err *e);
int text_build_tries(struct tokenizer *t, struct err *e);
void text_find_bytes_per_id(struct tokenizer *t);
struct tokenizer *tokenizer_new(struct mem *mem);

/* text_decode.c: fills piece and TOKEN_BYTE of every token. */
int text_prepare_pieces(struct tokenizer *t, struct err *e);

#endif
