/* SPDX-License-Identifier: Apache-2.0
 *
 * The avx512 variants: lanes of this instruction set, then the shared templates. Compiled with its own
 * machine flags; called only where kern_isa_available() says so.
 */
#include "kern/x86/lanes_avx512.h"

#include <math.h>

#include "kern/x86/lanes_common.h"

#include "kern/x86/attention_tmpl.h"
#include "kern/x86/linear_tmpl.h"
#include "kern/x86/rows_tmpl.h"
#include "kern/x86/recurrent_tmpl.h"
#include "kern/x86/table_tmpl.h"
