/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of this room while a checkpoint is opened: what is known of each shard before findings
 * are written.
 */
#ifndef CKPT_CKPT_INTERNAL_H
#define CKPT_CKPT_INTERNAL_H

#include "ckpt/ckpt.h"

/* One cause, one finding: the fault of a shard is kept here until its consequences are counted. */
struct shard_fault {
    bool set;
    enum finding_id id;
    const char *evidence; /* in the scratch arena */
    struct tally lost;    /* tensors that the index places here and that are nowhere */
    uint64_t n_elsewhere; /* tensors that the index places here and that another shard holds */
    struct tally twice;   /* tensors that an earlier shard holds, too */
    uint32_t twice_with;  /* that shard, of the first one */
    uint32_t n_not_used;  /* unindexed file: tensors that an indexed shard holds, too */
    uint64_t wanted;      /* W002, W003, W017: bytes the file should have, 0 if nothing tells */
};

/* What is not yet here, while a download runs: one finding for all of it. */
struct arrivals {
    struct tally absent, pointers, header,
        part;       /* files: none of it, a pointer, at most the header, a part */
    uint64_t bytes; /* still to come, of those files whose size is known */
    bool unknown;   /* there are files whose size is not known */
};

struct opening {
    struct ckpt *c;
    struct findings *f;
    struct arena scratch; /* gone when ckpt_open returns */
    char **names;         /* the directory */
    size_t n_names;
    struct ckpt_index index;    /* if c->has_index */
    struct shard_fault *faults; /* parallel to c->shards */
    struct st_file *files;      /* likewise: parsed headers */
    bool contradicted;          /* index and shards disagree: a wrong total is no news then */
    struct arrivals arrivals;   /* if c->partial */
    bool second_copy;           /* there is no index, and files named consolidated* stand beside others */
};

/* reading.c: the open file of a shard; where n bytes from `offset` of a tensor lie in it */
int ckpt_shard_fd(struct ckpt *c, struct ckpt_shard *s, int *fd, struct err *e);
int ckpt_range(struct ckpt *c, const struct ckpt_tensor *t, uint64_t offset, uint64_t n, uint64_t *at,
               struct err *e);

/* shards.c: the list of shards, and each one's header */
int shards_collect(struct opening *o, struct err *e);
int shards_parse(struct opening *o, struct err *e);

/* inventory.c: all tensors by name, index against shards, and the findings of both */
int inventory_build(struct opening *o, struct err *e);
int inventory_check_index(struct opening *o, struct err *e);
void inventory_report(struct opening *o);

/* second_copy.c: what is there twice: a shard whose header is another's, weights beside or below the ones
 * that are used; and what is not yet here */
void copies_find(struct opening *o);                        /* after inventory_build */
bool second_copy_name(const char *name);                    /* consolidated*.safetensors */
bool second_copy_beside(const struct opening *o, size_t i); /* an unindexed shard that is one */
int second_copy_check(struct opening *o, struct err *e);
void arrivals_add(struct opening *o, size_t i);
void arrivals_report(struct opening *o);

#endif
