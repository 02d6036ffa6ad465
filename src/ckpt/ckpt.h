/* SPDX-License-Identifier: Apache-2.0
 *
 * A checkpoint: a directory in Hugging Face layout, read from its headers. Owns the list of files, the parsed
 * safetensors headers, the index and the text of config.json. Reads no weight byte except through
 * ckpt_read(). Everything in the directory is untrusted: what is bad about it becomes findings, and the rest
 * stays usable.
 */
#ifndef CKPT_CKPT_H
#define CKPT_CKPT_H

#include "base/err.h"
#include "base/finding.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "tensor/tensor.h"

struct ckpt_tensor {
    const char *name;
    uint32_t dtype; /* enum d0_dtype; 0 for a type name we do not know */
    uint32_t n_dims;
    int64_t dims[TENSOR_MAX_DIMS];
    uint32_t shard;  /* index into ckpt->shards */
    uint64_t offset; /* absolute byte offset in the file */
    uint64_t bytes;
};

struct ckpt_shard {
    const char *name; /* plain file name */
    uint64_t file_bytes, header_bytes;
    uint32_t n_tensors;
    bool present, usable; /* usable: header parsed and every byte range lies within the file */
    bool lost;            /* absent, a pointer, or its header cannot be read: what it holds is unknown */
    bool malformed;       /* its header contradicts itself: shapes and ranges in it prove nothing */
    bool unindexed;       /* not used: the index does not name it, or it is a second copy beside the others */
    bool copy;            /* its header is that of another shard, tensor by tensor */
    bool arriving;        /* ckpt_options.partial: absent, or with fewer bytes than its header declares */
    int fd;               /* -1 until first read */
    int past_fd;          /* reads past the page cache: -1 not opened yet, -2 this file cannot be read so */
};

struct ckpt {
    struct arena arena;
    const char *dir;
    const struct json *config;            /* config.json, or NULL */
    const struct json *generation_config; /* or NULL */
    const struct json *quant_config;      /* hf_quant_config.json, or NULL */
    char config_sha256[65];
    struct ckpt_shard *shards;
    size_t n_shards;
    struct ckpt_tensor *tensors; /* sorted by name, no duplicates */
    size_t n_tensors;
    bool has_index;
    const char *index_name;    /* "model.safetensors.index.json", or NULL */
    uint64_t total_bytes;      /* of all tensors */
    struct strmap *by_name;    /* tensor name -> index into tensors */
    struct strmap *lost_names; /* names that the index places in a lost shard -> index into shards */
    size_t n_lost_shards;      /* also those that only the numbering of the file names tells of */
    bool partial;              /* as in ckpt_options */
};

struct ckpt_options {
    /* The download still runs, or only headers were fetched: what is absent or short is one W022 ("not yet
     * here"), not W001, W002, W003 and W017. Everything that is here is judged as ever. */
    bool partial;
};

/* Opens the directory and parses every header. Errors only for what makes the directory unreadable as such:
 * ERR_MISSING (no such directory), ERR_IO, ERR_NOMEM. No config, bad shards, index contradictions: findings
 * (see base/findings.def C001, C002, W...). */
int ckpt_open(struct ckpt **out, const char *dir, struct findings *f, struct d0 *d0, struct err *e);
int ckpt_open_with(struct ckpt **out, const char *dir, const struct ckpt_options *o, struct findings *f,
                   struct d0 *d0, struct err *e);
void ckpt_close(struct ckpt *c);

const struct ckpt_tensor *ckpt_find(const struct ckpt *c, const char *name); /* NULL if absent */
/* Whether the absence of a tensor is a consequence of a lost shard, which has a finding of its own: the index
 * places it there, or there is no index to say what the lost shard held. */
bool ckpt_lost(const struct ckpt *c, const char *name);
/* n bytes of a tensor from `offset` within it. Thread-safe. */
int ckpt_read(struct ckpt *c, const struct ckpt_tensor *t, uint64_t offset, void *buf, uint64_t n,
              struct err *e);
/* The same bytes, for who reads a model once and keeps them: what the page cache does not hold is read past
 * it, through `bounce` (aligned to CKPT_PAST_ALIGN, n + 2 * CKPT_PAST_ALIGN bytes or more; one for each
 * thread). That takes less processor time, and the cache keeps what others have in it. Where a file system
 * cannot, it is ckpt_read. Thread-safe. */
#define CKPT_PAST_ALIGN 4096u
int ckpt_read_past(struct ckpt *c, const struct ckpt_tensor *t, uint64_t offset, void *buf, uint64_t n,
                   unsigned char *bounce, struct err *e);
/* Path of a file in the directory, in the arena. */
const char *ckpt_path(struct ckpt *c, const char *name);
/* Identifies the model without reading weights: SHA-256 over "name size sha256-of-header\n" of every shard in
 * order ("name size missing\n" where it is lost), then "config.json sha256\n", "tokenizer.json sha256\n" ("-"
 * for an absent file). `hex` 65 bytes. */
int ckpt_manifest_sha256(struct ckpt *c, char hex[65], struct err *e);

/* ---- for findings about tensors ---- */
/* A name for messages: cut to fit and without what could play with a terminal. Returns buf. bytes >= 8. */
const char *ckpt_show(const char *name, char *buf, size_t bytes);
/* Names of one kind of trouble: how many there are and the first few. */
#define TALLY_NAMES 4
struct tally {
    uint64_t n;
    const char *names[TALLY_NAMES];
};
void tally_add(struct tally *t, const char *name);
/* "3 tensors: a, b, c" or "43 tensors: a, b, c, d and 39 more". Returns buf. */
const char *tally_format(const struct tally *t, const char *noun, char *buf, size_t bytes);
/* A git-LFS pointer instead of a file? object_bytes: size of the real file, 0 if it does not say. */
bool ckpt_lfs_pointer(const char *text, size_t n, uint64_t *object_bytes);

/* ---- one safetensors file, strict (the reference reader's rules and names of verdicts, plus duplicates
 * refused) ---- */
enum st_verdict {
    ST_OK,
    ST_HEADER_TOO_SMALL,
    ST_HEADER_TOO_LARGE,
    ST_INVALID_HEADER_LENGTH,
    ST_INVALID_HEADER,
    ST_INVALID_HEADER_DESERIALIZATION,
    ST_INVALID_OFFSET,
    ST_VALIDATION_OVERFLOW,
    ST_MISALIGNED_SLICE,
    ST_TENSOR_INVALID_INFO,
    ST_METADATA_INCOMPLETE_BUFFER,
    ST_DUPLICATE_NAME,
    ST_OUT_OF_MEMORY, /* not about the content */
};
const char *st_verdict_name(enum st_verdict v); /* "HeaderTooSmall" */

#define ST_MAX_HEADER_BYTES   100000000u
#define ST_MAX_UNKNOWN_DTYPES 4

/* A type name that we do not know: the reader's verdict is InvalidHeaderDeserialization, but names and shapes
 * are there. */
struct st_unknown_dtype {
    const char *dtype, *tensor; /* spelling; first tensor that has it */
    uint64_t n;
};

struct st_file {
    struct ckpt_tensor *tensors; /* in offset order; shard = 0 */
    size_t n_tensors;
    bool complete;          /* the whole header was understood: names, shapes and ranges are all there */
    enum st_verdict layout; /* if complete: the verdict but for unknown type names */
    struct st_unknown_dtype unknown[ST_MAX_UNKNOWN_DTYPES];
    uint32_t n_unknown;          /* entries of `unknown` in use; further spellings count in the last one */
    uint64_t header_bytes;       /* N */
    uint64_t data_end;           /* absolute end of the last tensor */
    const struct json *metadata; /* __metadata__, or NULL (also when it is larger than 16 MiB) */
};
/* Parses the header of a file of file_bytes; head holds its first head_bytes (>= 8 + N). Fills *out in the
 * arena as far as it got. On a bad verdict `why` says what and where. Never an error for content. */
enum st_verdict st_parse(const char *head, size_t head_bytes, uint64_t file_bytes, struct arena *arena,
                         struct st_file *out, char *why, size_t why_bytes);

/* The header of an open file: its length first, at most `most` bytes of it. ERR_FORMAT with the verdict;
 * everything lives in the arena. */
int st_read_head(int fd, const char *path, uint64_t file_bytes, uint64_t most, struct arena *arena,
                 struct st_file *out, struct err *e);

/* ---- writing safetensors (traces, tools): file replaced atomically; data in the reference writer's order
 * (largest element first, then by name). ERR_INVALID for duplicate names, bad shapes and unknown types. ----
 */
struct st_entry {
    const char *name;
    uint32_t dtype;
    uint32_t n_dims;
    int64_t dims[TENSOR_MAX_DIMS];
    const void *data;
};
int st_write(const char *path, const struct st_entry *entries, size_t n, const char *const *meta_keys,
             const char *const *meta_values, size_t n_meta, struct err *e);
/* The header alone, without its length, for a file whose data come later in the order of the entries (data is
 * not looked at). Names must differ and shapes be whole; the end is padded so that data begin at a multiple
 * of 8. */
void st_write_header(struct strbuf *header, const struct st_entry *const *entries, size_t n,
                     const char *const *meta_keys, const char *const *meta_values, size_t n_meta);

/* ---- the index file ---- */
#define CKPT_INDEX_BAD_FILE UINT32_MAX

struct ckpt_index_entry {
    const char *tensor;
    uint32_t file; /* index into files, or CKPT_INDEX_BAD_FILE */
};

struct ckpt_index {
    struct ckpt_index_entry *entries; /* in file order, names distinct */
    size_t n_entries;
    const char **files; /* distinct, in order of first mention; plain names that end in .safetensors */
    size_t n_files;
    size_t n_bad_files;   /* entries whose file name is not such a name */
    const char *bad_file; /* the first of these names */
    bool has_total_size;
    uint64_t total_size;
    struct strmap by_name, by_file;
};

/* Strict: ERR_FORMAT says what and where, and *out is empty then. Strings live in the arena, the rest until
 * release. */
int ckpt_index_parse(const char *text, size_t n, struct arena *arena, struct ckpt_index *out, struct err *e);
void ckpt_index_release(struct ckpt_index *x);

#endif
