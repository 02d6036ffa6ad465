/* SPDX-License-Identifier: Apache-2.0
 *
 * The avx2 variants: lanes of this instruction set, then the shared templates. Compiled with its own machine
 * flags; called only where kern_isa_available() says so.
 */
#include "kern/x86/lanes_avx2.h"

#include <math.h>

#include "kern/x86/lanes_common.h"

#include "kern/x86/act_tmpl.h"
#include "kern/x86/attention_tmpl.h"
#include "kern/x86/codes_tmpl.h"
#include "kern/x86/sums_tmpl.h"

#include "kern/x86/direct_codes_tmpl.h"

#include "kern/x86/linear_tmpl.h"
#include "kern/x86/times_tmpl.h"
#include "kern/x86/mla_tmpl.h"
#include "kern/x86/mla_expand_tmpl.h"
#include "kern/x86/rows_tmpl.h"
#include "kern/x86/experts_tmpl.h"
#include "kern/x86/sparse_tmpl.h"
#include "kern/x86/norms_tmpl.h"
#include "kern/x86/recurrent_tmpl.h"
#include "kern/x86/delta_chunk_tmpl.h"
#include "kern/x86/tower_tmpl.h"
#include "kern/x86/table_tmpl.h"
