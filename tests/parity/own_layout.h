/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout in which InternVL is published (InternVLChatModel), made of a directory in the library's
 * (InternVLForConditionalGeneration). The public conversion from the one to the other renames tensors and
 * keys and cuts attn.qkv in three; this is its inverse, so both directories are one model.
 */
#ifndef PARITY_OWN_LAYOUT_H
#define PARITY_OWN_LAYOUT_H

#include "tiny.h"

/* Rewrites dir/config.json and dir/model.safetensors, which tiny_write() wrote. order: in which order the
 * rows of q, k and v stand in attn.qkv: "qkv" is right. A tower that ends in a norm is an error: the own
 * layout cannot say it. */
int own_layout_rewrite(const char *dir, const char *order, struct d0 *d0, struct err *e);

#endif
