/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to oracle: pieces of a graph, run one after the other for one sequence from position 0. Only the
 * weights of one piece (two where memory allows, so that reading goes on while computing) are in memory.
 */
#ifndef ORACLE_STREAM_H
#define ORACLE_STREAM_H

#include "load/load.h"
#include "oracle/oracle.h"

struct stream_piece {
    uint32_t *nodes; /* of the whole graph, ascending; what depends on positions only comes along by itself */
    uint32_t n_nodes;
    uint32_t *outputs; /* values of the whole graph that are wanted of it */
    uint32_t n_outputs;
    uint32_t group;      /* states (KV pages) live from piece to piece of one group */
    int32_t layer;       /* of its first node, for messages */
    bool clean;          /* no state is alive after it: a run may be taken up here */
    uint64_t node_bytes; /* weights of its nodes */
    uint32_t places;     /* one EXPERTS whose weights do not fit: room for so many experts; else 0 */
};

/* Rows [first, first + n) of a value of the whole graph; 4 bytes an element. */
struct stream_io {
    void *context;
    int (*input)(void *context, size_t piece, uint32_t value, uint64_t first, uint64_t n, uint64_t width,
                 void *to, struct err *e);
    int (*output)(void *context, size_t piece, uint32_t value, uint64_t first, uint64_t n, uint64_t width,
                  const void *rows, struct err *e);
    int (*done)(void *context, size_t piece, struct err *e); /* all rows of all outputs were given */
};

struct stream {
    const struct oracle_model *m;
    const struct graph *g; /* the whole graph */
    struct arena arena;
    const int32_t *ids; /* [n_tokens] */
    uint32_t n_tokens;
    int32_t *unique; /* the ids, each once, ascending */
    int32_t *place;  /* [n_tokens] index of an id in `unique` */
    uint32_t n_unique;
    uint64_t *value_bytes; /* by value: of a weight in memory, an embedding counted by its used rows */
    uint8_t *positional;   /* by node */
    uint32_t *maker;       /* by value: node, or D0_NO_VALUE */
    uint64_t budget;       /* bytes in all */
    uint64_t carried;      /* of them taken by whoever keeps values between pieces */
    struct stream_piece *pieces;
    size_t n_pieces, capacity;
    struct d0_buffer **states; /* by value: of the group that runs */
    const uint8_t *alone;      /* [n_tokens] 1: a step of its own, as in decoding; NULL: none. The caller's */
    /* Threads that read: of what is read ahead, and of chosen experts, since both may go on at a time. NULL:
     * one thread alone. */
    struct load_readers *ahead_readers, *choice_readers;
    struct oracle_cost cost;
};

int stream_open(struct stream *s, const struct oracle_model *m, const int32_t *ids, size_t n_ids,
                struct err *e);
/* Every weight that these nodes read is there and of the shape that the graph wants. wanted[n_nodes]: 1 for
 * nodes that will run. Before stream_add. */
int stream_weigh(struct stream *s, const uint8_t *wanted, struct err *e);
void stream_close(struct stream *s);
/* Adds pieces for these nodes (ascending): one a layer, more where its weights do not fit; EXPERTS that does
 * not fit is one by itself, that holds the chosen experts only. `carried`: bytes that values between pieces
 * will take. ERR_NOMEM where one operator alone does not fit, with the bytes. */
int stream_add(struct stream *s, const uint32_t *nodes, uint32_t n, uint32_t group, struct err *e);
/* An output of the piece that makes the value, among those from `first_piece` on. */
int stream_want(struct stream *s, size_t first_piece, uint32_t value, struct err *e);
/* Runs the pieces from `first` on. */
int stream_run(struct stream *s, size_t first, const struct stream_io *io, struct err *e);
/* Most weight bytes that one piece may have. */
uint64_t stream_piece_limit(const struct stream *s);

/* Name of a value in a trace: its own, or "NAME:1" for a second output of an operator. */
const char *stream_name(const struct stream *s, uint32_t value, char *buf, size_t bytes);

/* What a layer gives has the layer's name, whose last part is its number. */
bool stream_layer_result(const struct graph_value_info *info);

/* ---- stream_load.c ---- */
struct stream_part { /* one piece, ready to be loaded and run */
    struct graph *g;
    uint64_t weight_bytes; /* in a slot, each value from a multiple of 64 on */
    bool by_place;         /* ids are places in `unique`, tables hold only those rows */
    uint32_t chunk;        /* tokens of one step */
    uint32_t pages;
    struct err err; /* of the thread that loads */
    int rc;
    double seconds;
    unsigned char *slot;
    struct stream_choice *choice; /* of a piece that holds chosen experts only: nothing is read ahead */
};
/* slot_room: bytes that scratch may take. */
int stream_part_make(const struct stream *s, const struct stream_piece *p, uint64_t scratch_room,
                     struct stream_part *out, struct err *e);
void stream_part_free(struct stream_part *p);
/* Reads the weights into p->slot; rc, err and seconds of the part tell how it went. */
void stream_part_load(const struct stream *s, struct stream_part *p);

/* Room for what reading a weight takes on its way. */
#define STREAM_STAGING_BYTES ((uint64_t)8 << 20)
/* Of a reader whose values all have a place in memory. */
int stream_no_sink(void *context, uint64_t at, const void *bytes, uint64_t n, struct err *e);

/* ---- stream_choice.c ---- */
struct stream_choice;
/* Bytes that room for so many experts of the node takes, at most. */
uint64_t stream_choice_bytes(const struct stream *s, const struct d0_node *n, uint64_t places);
/* How many experts a piece has room for: at least those of one token. 0: they do not fit, or the node is not
 * one whose experts can be chosen. */
uint32_t stream_choice_places(const struct stream *s, const struct d0_node *n);
/* The graph of the part gets room for so many experts. */
int stream_choice_make(const struct stream *s, uint32_t places, struct stream_part *p, struct err *e);
void stream_choice_free(struct stream_choice *c);
bool stream_choice_is(const struct stream_choice *c, uint32_t value); /* the ids of experts? */
/* Of the *n tokens from `first` on takes as many as have room for their experts, and sees to it that these
 * are in the slot: an expert that is there already is not read again. */
int stream_choice_load(struct stream *s, size_t piece, struct stream_part *p, const struct stream_io *io,
                       uint32_t first, uint32_t *n, struct err *e);
/* Ids of experts of n tokens become places. What is no expert stays none. */
void stream_choice_rename(const struct stream_choice *c, int32_t *ids, uint32_t n);

/* ---- stream_exec.c ---- */
int stream_part_run(struct stream *s, size_t piece, struct stream_part *p, const struct stream_io *io,
                    struct err *e);

#endif
