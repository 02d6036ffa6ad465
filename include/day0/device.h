/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 device ABI: what a card vendor implements to run day0 graphs.
 *
 * A device owns memory (buffers), order (queues, events) and compiled graph parts (executables). The
 * part type is defined here, whole: flat arrays of values, nodes and attributes, no pointers to anything
 * of day0's. Operator ids and attribute keys come from src/graph/ops.def and are frozen per ABI version;
 * docs/ops.md (generated) states what each operator computes.
 *
 * Rules for implementers
 *  - Every struct that crosses the boundary starts with its own size in bytes (`size`). Read no field
 *    beyond the size you were given; set `size` in what you return.
 *  - No function may exit, abort, throw or keep a pointer to host memory beyond what its comment allows.
 *  - Functions return 0 or a negative D0_E_* code and, on failure, fill *status (which may be NULL).
 *  - One thread drives one device at a time; a device may use threads of its own.
 *  - Nodes of a part run in array order. State values (KV pages, recurrent slots) are read and written
 *    in place.
 */
#ifndef DAY0_DEVICE_H
#define DAY0_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define D0_DEVICE_ABI_VERSION 2u
#define D0_MAX_DIMS           4
#define D0_MAX_NODE_INPUTS    12
#define D0_MAX_NODE_OUTPUTS   4
#define D0_MAX_NODE_ATTRS     12
#define D0_NO_VALUE           UINT32_MAX

/* ---- status ------------------------------------------------------------------------------------ */

enum d0_status_code {
    D0_OK = 0,
    D0_E_NOMEM = -1,       /* device or host memory exhausted */
    D0_E_UNSUPPORTED = -2, /* an operator, dtype or shape this device does not run */
    D0_E_INVALID = -3,     /* an argument or part that breaks this header's rules */
    D0_E_DEVICE = -4,      /* the hardware or its driver failed */
    D0_E_TIMEOUT = -5,
};

struct d0_status {
    uint32_t size;
    int32_t code;
    char message[512]; /* NUL-terminated; what failed, where, and what to do */
};

/* ---- element types ------------------------------------------------------------------------------ */

/* Values are frozen. Packed formats give the type of the stored element. */
enum d0_dtype {
    D0_F32 = 1,
    D0_BF16 = 2,
    D0_F16 = 3,
    D0_I32 = 4,
    D0_I64 = 5,
    D0_U8 = 6,
    D0_I8 = 7,
    D0_F64 = 8,
    D0_BOOL = 9,
    D0_I16 = 10,
    D0_U16 = 11,
    D0_U32 = 12,
    D0_U64 = 13,
    D0_F8_E4M3 = 14,
    D0_F8_E5M2 = 15,
    D0_F8_E8M0 = 16,
    D0_F4 = 17, /* two codes a byte, low nibble first */
    D0_F6_E2M3 = 18,
    D0_F6_E3M2 = 19,
    D0_C64 = 20,
    D0_F8_E4M3FNUZ = 21,
    D0_F8_E5M2FNUZ = 22,
    D0_U4 = 23, /* two codes a byte, low nibble first, 0..15 */
};

/* ---- graph part --------------------------------------------------------------------------------- */

/* Dimensions that change from step to step are negative constants in d0_value.dims. The largest value
 * each can take stands in d0_part.max_dims; the value of this step comes with run(). */
enum d0_dim {
    D0_DIM_TOKENS = -1, /* T: rows of the ragged batch */
    D0_DIM_SEQS = -2,   /* B: sequences in the step */
    D0_DIM_ROWS = -3,   /* R: rows for which logits are wanted */
    D0_DIM_PAGES = -4,  /* P: page-table entries of one sequence (row length of the page table) */
};
#define D0_N_DIMS 4

enum d0_value_kind {
    D0_VALUE_INPUT = 1,      /* written by the host before each run (ids, positions, page table) */
    D0_VALUE_WEIGHT = 2,     /* written once, constant over runs */
    D0_VALUE_STATE = 3,      /* lives over runs, read and written by nodes (KV pages) */
    D0_VALUE_ACTIVATION = 4, /* lives in the part's scratch at `offset` */
    D0_VALUE_OUTPUT = 5,     /* as ACTIVATION, but readable by the host after the run */
};

/* A WEIGHT of matrices [..., N, K] that is stored as codes. All zero: plain values of the value's dtype. Else
 * the value's memory is, for all matrices together and each part from the next multiple of 64 bytes on: codes
 * [..., N, K] of dtype F8_E4M3, F8_E5M2, I8, U8, U4 or F4; every row begins at a whole byte scales  [...,
 * ceil(N / group_n), ceil(K / group_k)] of scale_dtype zeros   the same shape, U8, with D0_FORMAT_ZEROS
 *   global  F32 [...], with D0_FORMAT_GLOBAL
 *   order   I32 [..., K], the group of each column, with D0_FORMAT_ORDER; else column k is of group k /
 * group_k The weight is, in float32 and rounded after each operation: (code - zero) * scale,  zero = zeros of
 * its block, or `bias`;  scale = scale of its block, times (D0_FORMAT_DIVIDE: over) the global one. */
struct d0_format {
    uint32_t scale_dtype;      /* F32, BF16, F16, F8_E4M3, F8_E8M0; 0: plain */
    uint32_t group_n, group_k; /* rows and columns that share one scale; 0: all */
    uint32_t flags;            /* enum d0_format_flag */
    int32_t bias;              /* of integer codes without zeros */
    uint32_t reserved;
};

enum d0_format_flag {
    D0_FORMAT_ZEROS = 1,
    D0_FORMAT_GLOBAL = 2,
    D0_FORMAT_DIVIDE = 4,
    D0_FORMAT_ORDER = 8,
};

/* Rounding of activations: values of the attribute x_format. What a row becomes is stated, number by number,
 * in src/tensor/rounding.c: each scale is that of a run of columns of one row, so no row hangs on another. */
enum d0_x_format {
    D0_X_EXACT = 0,
#define X_FORMAT(id, NAME, ...) D0_X_##NAME = id,
#include "day0/x_formats.def"
#undef X_FORMAT
};

struct d0_value {
    uint32_t kind;             /* enum d0_value_kind */
    uint32_t dtype;            /* enum d0_dtype */
    uint32_t n_dims;           /* <= D0_MAX_DIMS; row-major, dense, last dimension fastest */
    uint32_t role;             /* of an INPUT: enum d0_input_role; else 0 */
    int64_t dims[D0_MAX_DIMS]; /* > 0, or enum d0_dim */
    uint64_t offset;           /* ACTIVATION, OUTPUT: byte offset in scratch, a multiple of 64 */
    struct d0_format format;   /* WEIGHT only */
};

/* What the host writes into each input. Sequence s owns a run of consecutive tokens. int32 but for HIDDEN,
 * PATCHES, TABLE_WEIGHTS and FEATURES. In a tower T counts patches, and R the rows that it gives. */
enum d0_input_role {
    D0_INPUT_IDS = 1,        /* [T] token ids */
    D0_INPUT_POSITIONS = 2,  /* [T] position of each token in its sequence, from 0 */
    D0_INPUT_SEQ_OF = 3,     /* [T] index of the token's sequence in this step, 0..B-1, ascending */
    D0_INPUT_PAGE_TABLE = 4, /* [B, P] page ids; entries past the sequence's pages are -1 */
    D0_INPUT_ROWS = 5,       /* [R] token indices whose hidden row goes to the output head */
    D0_INPUT_HIDDEN = 6,     /* [T, width] float32 or int32: a part that starts in mid-model */
    D0_INPUT_SLOTS = 7,      /* [B] slot of each sequence in states that do not grow with the context, no two
                              * alike. A token at position 0 begins from zero, whatever the slot holds */
    D0_INPUT_PATCHES = 8,    /* [T, width] float32: the pixels of each patch, channel by channel */
    D0_INPUT_PLACES = 9,     /* [T, 3] time, height and width of each row, for rotation */
    D0_INPUT_SPANS = 10, /* [T, 2] first row, and the row behind the last, of the picture of a row; in a text
                          * positions: of the span in which tokens see each other, {p, p + 1} alone */
    D0_INPUT_WINDOWS = 11,       /* [T, 2] the same of the window of a row within its picture */
    D0_INPUT_MERGE = 12,         /* [R, n] the rows of patches that become one row */
    D0_INPUT_TABLE_ROWS = 13,    /* [T, n] rows of a learned table of positions; -1 none */
    D0_INPUT_TABLE_WEIGHTS = 14, /* [T, n] float32: how much each of them counts */
    D0_INPUT_FEATURES = 15, /* [T, width] float32, in a text: rows that a tower gave. A part may have several:
                             * in the order of the tower's outputs */
    D0_INPUT_FEATURE_OF = 16, /* [T] in a text: the row of FEATURES that a token takes, or -1 */
    D0_INPUT_CLASS_ROWS = 17, /* [T] 0: the row is the tower's own (class) row and no patch; -1 else */
    D0_INPUT_LINE_ROWS =
        18, /* [R] 0: the merged row is the learned row that ends a line of patches; -1 else */
};
#define D0_INPUT_LAST D0_INPUT_LINE_ROWS

struct d0_attr {
    uint32_t key; /* enum d0_attr_key, from ops.def */
    uint32_t is_float;
    union {
        int64_t i;
        double f;
    } v;
};

struct d0_node {
    uint32_t op; /* enum d0_op, from ops.def */
    uint32_t n_inputs, n_outputs, n_attrs;
    uint32_t inputs[D0_MAX_NODE_INPUTS]; /* value ids; D0_NO_VALUE where an optional input is absent */
    uint32_t outputs[D0_MAX_NODE_OUTPUTS];
    struct d0_attr attrs[D0_MAX_NODE_ATTRS];
    int32_t layer; /* decoder layer it belongs to, -1 for none: for messages and probes only */
    uint32_t reserved;
};

struct d0_part {
    uint32_t size;
    uint32_t abi_version;
    uint32_t n_values, n_nodes;
    const struct d0_value *values; /* [n_values] */
    const struct d0_node *nodes;   /* [n_nodes], in execution order */
    uint64_t scratch_bytes;        /* what the device must set aside for activations and outputs */
    int64_t max_dims[D0_N_DIMS];   /* largest T, B, R, P; index -1 - enum d0_dim */
};

/* The step's actual dimensions, index -1 - enum d0_dim; each in 0..max_dims. */
struct d0_step_dims {
    uint32_t size;
    uint32_t reserved;
    int64_t dims[D0_N_DIMS];
};

enum d0_op {
#define OP(id, NAME, ...) D0_OP_##NAME = id,
#define ATTR(id, NAME, ...)
#include "day0/ops.def"
#undef OP
#undef ATTR
};

enum d0_attr_key {
#define OP(id, NAME, ...)
#define ATTR(id, NAME, ...) D0_ATTR_##NAME = id,
#include "day0/ops.def"
#undef OP
#undef ATTR
    D0_N_ATTRS /* one past the largest key: the table ascends, a key that is no more leaves a gap */
};

/* ---- the device --------------------------------------------------------------------------------- */

struct d0_device_options {
    uint32_t size;
    uint32_t n_threads;    /* host threads the device may use; 0 = its own choice */
    const char *arguments; /* device-specific, e.g. "isa=avx2"; may be NULL */
    uint64_t memory_limit; /* bytes the device may allocate; 0 = no limit */
};

struct d0_device_info {
    uint32_t size;
    uint32_t abi_version;
    char name[64];                      /* "cpu", "null", the vendor's name */
    char description[192];              /* processor or card, driver and runtime versions */
    char variant[64];                   /* instruction set or architecture in use */
    uint64_t memory_total, memory_free; /* bytes, as far as known; 0 unknown */
    uint64_t memory_used, memory_peak;  /* bytes in buffers and scratch of this device handle */
    uint32_t exact;    /* 1: same bits for a row whatever the batch (design rule of exactness) */
    uint32_t computes; /* 0 for a device that only tracks memory and order */
};

struct d0_device; /* the implementer's own types, opaque to day0 */
struct d0_buffer;
struct d0_queue;
struct d0_event;
struct d0_exec;

struct d0_device_api {
    uint32_t size;
    uint32_t abi_version;
    const char *name;

    int (*open)(const struct d0_device_options *options, struct d0_device **out, struct d0_status *status);
    void (*close)(struct d0_device *device); /* every buffer, queue and executable is gone before */
    int (*info)(struct d0_device *device, struct d0_device_info *out);

    /* Memory. Buffers start at an address aligned to 64 bytes; fresh contents are undefined. */
    int (*buffer_create)(struct d0_device *device, uint64_t bytes, struct d0_buffer **out,
                         struct d0_status *status);
    void (*buffer_destroy)(struct d0_device *device, struct d0_buffer *buffer);
    /* Optional (may be NULL): use host memory in place. The host keeps it alive and owns it. */
    int (*buffer_wrap)(struct d0_device *device, void *host, uint64_t bytes, struct d0_buffer **out,
                       struct d0_status *status);

    /* Order. Work of one queue runs in submission order. A device may complete work before returning. */
    int (*queue_create)(struct d0_device *device, struct d0_queue **out, struct d0_status *status);
    void (*queue_destroy)(struct d0_device *device, struct d0_queue *queue);
    int (*queue_wait)(struct d0_queue *queue, uint64_t timeout_ns, struct d0_status *status);
    int (*event_create)(struct d0_device *device, struct d0_event **out, struct d0_status *status);
    void (*event_destroy)(struct d0_device *device, struct d0_event *event);
    int (*event_record)(struct d0_queue *queue, struct d0_event *event, struct d0_status *status);
    int (*event_wait)(struct d0_event *event, uint64_t timeout_ns, struct d0_status *status);

    /* Copies. The host range must stay valid and unchanged until the queue has passed the copy. */
    int (*copy_in)(struct d0_queue *queue, struct d0_buffer *buffer, uint64_t offset, const void *host,
                   uint64_t bytes, struct d0_status *status);
    int (*copy_out)(struct d0_queue *queue, const struct d0_buffer *buffer, uint64_t offset, void *host,
                    uint64_t bytes, struct d0_status *status);

    /* 1: runs the node as written; 0: does not, and *reason says why in a few words. */
    int (*supports)(struct d0_device *device, const struct d0_part *part, uint32_t node, char *reason,
                    size_t reason_bytes);

    /* Compile copies what it needs: the part may be freed afterwards. */
    int (*compile)(struct d0_device *device, const struct d0_part *part, struct d0_exec **out,
                   struct d0_status *status);
    void (*exec_destroy)(struct d0_device *device, struct d0_exec *exec);
    /* Bind an INPUT, WEIGHT or STATE value to memory at a byte offset that is a multiple of 64. Stays until
     * rebound. */
    int (*bind)(struct d0_exec *exec, uint32_t value, struct d0_buffer *buffer, uint64_t offset,
                struct d0_status *status);
    /* Enqueue one run. Every INPUT, WEIGHT and STATE must be bound. Steady-state runs allocate nothing. */
    int (*run)(struct d0_queue *queue, struct d0_exec *exec, const struct d0_step_dims *dims,
               struct d0_status *status);
    /* Copy an OUTPUT value (its rows of this run, dense) to the host. */
    int (*read_output)(struct d0_queue *queue, struct d0_exec *exec, uint32_t value, uint64_t offset,
                       void *host, uint64_t bytes, struct d0_status *status);

    /* Optional (may be NULL): bytes of one buffer into another, in the order of the queue, without the host.
     * The buffers differ. Without it states are never copied, so a model with recurrent states has no prefix
     * cache there. */
    int (*copy)(struct d0_queue *queue, struct d0_buffer *to, uint64_t to_offset,
                const struct d0_buffer *from, uint64_t from_offset, uint64_t bytes, struct d0_status *status);

    /* Optional (NULL, or not there in a shorter table): bytes that compile() would set aside for this part
     * beyond its scratch_bytes: scratch of kernels, of all threads together. A node that the device does not
     * run adds nothing. Sets nothing aside itself, and binds nobody: the host plans its memory by it. */
    int (*scratch_need)(struct d0_device *device, const struct d0_part *part, uint64_t *bytes,
                        struct d0_status *status);
};

/* A table ends here at the least: what follows in the struct was added later, and is optional. */
#define D0_DEVICE_API_BYTES_LEAST offsetof(struct d0_device_api, copy)

/* A plugin is a shared object that exports this symbol and returns a table that outlives the process. */
#define D0_DEVICE_PLUGIN_SYMBOL "d0_device_plugin"
typedef const struct d0_device_api *(*d0_device_plugin_fn)(uint32_t host_abi_version);

#ifdef __cplusplus
}
#endif
#endif
