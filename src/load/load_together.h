/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to load: one run of bytes of a tensor, read by several threads.
 */
#ifndef LOAD_LOAD_TOGETHER_H
#define LOAD_LOAD_TOGETHER_H

#include "load/load.h"

#define LOAD_SHARED_LEAST ((uint64_t)1 << 20) /* below, one thread is done before others are awake */

/* `bytes` of the tensor from `from` on to `to`. The first error of any thread; then what lies at `to` is not
 * defined. */
int load_together(struct load_readers *r, struct ckpt *c, const struct ckpt_tensor *t, uint64_t from,
                  unsigned char *to, uint64_t bytes, struct err *e);

#endif
