/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a check, one a file. Each adds its findings and returns an error only for what keeps us from
 * working.
 */
#ifndef PREFLIGHT_PREFLIGHT_INTERNAL_H
#define PREFLIGHT_PREFLIGHT_INTERNAL_H

#include "preflight/preflight.h"

int check_weights(const struct ckpt *c, const struct spec *s, struct findings *f, struct err *e);
int check_tokenizer(struct ckpt *c, const struct spec *s, struct findings *f, struct d0 *d0, struct err *e);
/* A number by itself; codes of fewer bits mean one only together with a storage scheme. */
bool is_plain_number(uint32_t dtype);
int check_card(const struct spec *s, const struct preflight_options *o, struct findings *f, struct err *e);
int check_trust(const struct ckpt *c, const struct spec *s, struct findings *f, struct err *e);
int check_memory(const struct spec *s, const struct preflight_options *o, struct findings *f, struct err *e);

#endif
