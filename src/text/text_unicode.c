/* SPDX-License-Identifier: Apache-2.0
 *
 * Characters: classes, case, normal forms, by libutf8proc (Unicode 15). Text is valid UTF-8 here. Normal
 * forms go through the library only where a text has something to normalize: most has not.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/text_impl.h"

bool char_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

bool char_is_punctuation(uint32_t c)
{
    if (c < 128)
        return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool char_is_number(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

bool char_is_decimal(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_ND;
}

bool char_is_mark(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
}

bool char_is_nonspacing(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_MN;
}

bool char_is_other(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

void text_lower(const char *s, size_t n, struct strbuf *out)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = 0;
        char text[4];
        len = utf8_decode(s + i, n - i, &c);
        if (len == 0)
            BUG("text was checked to be UTF-8");
        if (c == 0x130) { /* the only one whose lower case is two characters */
            strbuf_puts(out, "i\xCC\x87");
            continue;
        }
        c = c < 128 ? c + (c >= 'A' && c <= 'Z' ? 32 : 0) : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
        strbuf_add(out, text, utf8_encode(c, text));
    }
}

/* Characters that begin something new and that no normal form C changes, by ranges of scripts that are
 * common: a mistake here may only be to leave some out. */
static bool is_plain(enum unicode_form form, uint32_t c)
{
    if (form != FORM_NFC)
        return c < 128;
    return c < 0x300 || (c >= 0x400 && c < 0x483) || (c >= 0x48A && c < 0x530) ||
           (c >= 0x3000 && c <= 0x3098) || (c >= 0x309B && c < 0xA000) || (c >= 0xAC00 && c < 0xD7A4) ||
           (c >= 0x1F300 && c < 0x1FB00);
}

static void form_part(enum unicode_form form, const char *s, size_t n, struct strbuf *out)
{
    static const utf8proc_option_t options[] = {
        [FORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [FORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [FORM_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [FORM_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    utf8proc_uint8_t *mapped = NULL;
    utf8proc_ssize_t got =
        utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &mapped, options[form]);
    if (got < 0)
        out->failed = true; /* text is valid: only memory can be short */
    else
        strbuf_add(out, (const char *)mapped, (size_t)got);
    free(mapped);
}

void text_form(enum unicode_form form, const char *s, size_t n, struct strbuf *out)
{
    size_t done = 0, before = 0; /* before: where the last plain character begins */
    bool open = false;           /* s[done..i) has something to normalize */
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = 0;
        len = (unsigned char)s[i] < 128 ? 1 : utf8_decode(s + i, n - i, &c);
        if (len == 0)
            BUG("text was checked to be UTF-8");
        bool plain = len == 1 || is_plain(form, c);
        if (plain && open) {
            form_part(form, s + done, i - done, out);
            done = i;
            open = false;
        } else if (!plain && !open) { /* it may join the one before */
            strbuf_add(out, s + done, before - done);
            done = before;
            open = true;
        }
        if (plain)
            before = i;
    }
    if (open)
        form_part(form, s + done, n - done, out);
    else
        strbuf_add(out, s + done, n - done);
}

size_t text_grapheme(const char *s, size_t n)
{
    uint32_t a = 0, b = 0;
    utf8proc_int32_t state = 0;
    size_t at = utf8_decode(s, n, &a);
    while (at < n) {
        size_t len = utf8_decode(s + at, n - at, &b);
        if (len == 0 || utf8proc_grapheme_break_stateful((utf8proc_int32_t)a, (utf8proc_int32_t)b, &state))
            break;
        at += len;
        a = b;
    }
    return at ? at : n;
}
