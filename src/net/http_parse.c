/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the grammar of requests (RFC 9112), as strict as it allows: what two programs could read in two ways
 * is refused, since such requests are how one client's bytes end up in another's request. Refuses: bare LF,
 * folded lines, space before a colon, control characters, a second Content-Length, Content-Length beside
 * Transfer-Encoding, encodings other than chunked, a missing or second Host.
 */
#include "net/http_parse.h"

#include <string.h>
#include <strings.h>

#define MAX_METHOD     16u
#define MAX_CHUNK_LINE 256u
#define MAX_TRAILERS   8192u

static bool is_token(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

size_t http_head_end(const char *text, size_t n, size_t *scanned)
{
    for (size_t i = *scanned; i < n; i++) {
        if (text[i] != '\n')
            continue;
        if (i == 0 || text[i - 1] != '\r')
            return SIZE_MAX;
        if (i == 1 || (i >= 3 && text[i - 2] == '\n'))
            return i + 1;
    }
    *scanned = n;
    return 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* %XX in place; false for a broken escape or one that hides a control character. */
static bool decode_path(char *path)
{
    char *to = path;
    for (const char *p = path; *p; p++) {
        char c = *p;
        if (c == '%') {
            int high = hex_digit(p[1]), low = high < 0 ? -1 : hex_digit(p[2]);
            if (low < 0)
                return false;
            c = (char)(high << 4 | low);
            if ((unsigned char)c < 0x20 || c == 0x7F)
                return false;
            p += 2;
        }
        *to++ = c;
    }
    *to = '\0';
    return true;
}

/* "METHOD /target HTTP/1.1" */
static int parse_request_line(char *line, struct http_head *head)
{
    char *target = strchr(line, ' ');
    if (!target || target == line || target - line > (long)MAX_METHOD)
        return 400;
    *target++ = '\0';
    for (const char *p = line; *p; p++)
        if (!is_token((unsigned char)*p))
            return 400;
    char *version = strchr(target, ' ');
    if (!version || target[0] != '/')
        return 400;
    *version++ = '\0';
    if (strncmp(version, "HTTP/", 5) != 0)
        return 400;
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        return 505;
    for (const char *p = target; *p; p++)
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7F || *p == '#')
            return 400;
    head->http_1_0 = version[7] == '0';
    head->keep_alive = !head->http_1_0;
    head->method = line;
    head->path = target;
    head->query = "";
    char *question = strchr(target, '?');
    if (question) {
        *question = '\0';
        head->query = question + 1;
    }
    return decode_path(target) ? 0 : 400;
}

/* "Name: value": the name becomes lower case, spaces round the value go. */
static int parse_header(char *line, struct http_header *out)
{
    char *p = line;
    for (; is_token((unsigned char)*p); p++)
        if (*p >= 'A' && *p <= 'Z')
            *p |= 0x20;
    if (p == line || *p != ':')
        return 400;
    *p++ = '\0';
    while (*p == ' ' || *p == '\t')
        p++;
    char *end = p + strlen(p);
    while (end > p && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *end = '\0';
    for (const char *v = p; *v; v++)
        if (((unsigned char)*v < 0x20 && *v != '\t') || *v == 0x7F)
            return 400;
    *out = (struct http_header){.name = line, .value = p};
    return 0;
}

static bool parse_length(const char *s, uint64_t *out)
{
    int64_t v;
    if (s[0] == '-' || !str_to_i64(s, &v))
        return false;
    *out = (uint64_t)v;
    return true;
}

/* Looks for a word in a list with commas. */
static bool lists(const char *list, const char *word)
{
    size_t n = strlen(word);
    while (*list) {
        list += strspn(list, ", \t");
        size_t length = strcspn(list, ", \t");
        if (length == n && strncasecmp(list, word, n) == 0)
            return true;
        list += length;
    }
    return false;
}

/* What the headers say about the framing of the body and the connection. */
static int interpret(struct http_head *head)
{
    unsigned n_hosts = 0, n_lengths = 0, n_encodings = 0;
    for (size_t i = 0; i < head->n_headers; i++) {
        const char *name = head->headers[i].name, *value = head->headers[i].value;
        if (strcmp(name, "host") == 0) {
            n_hosts++;
        } else if (strcmp(name, "content-length") == 0) {
            n_lengths++;
            if (!parse_length(value, &head->content_length))
                return 400;
        } else if (strcmp(name, "transfer-encoding") == 0) {
            n_encodings++;
            if (strcasecmp(value, "chunked") != 0)
                return 501;
        } else if (strcmp(name, "connection") == 0) {
            if (lists(value, "close"))
                head->keep_alive = false;
            else if (head->http_1_0 && lists(value, "keep-alive"))
                head->keep_alive = true;
        } else if (strcmp(name, "expect") == 0) {
            if (strcasecmp(value, "100-continue") != 0)
                return 417;
            head->expects_continue = !head->http_1_0;
        }
    }
    if (n_hosts > 1 || (n_hosts == 0 && !head->http_1_0) || n_lengths > 1 || n_encodings > 1)
        return 400;
    if (n_encodings && (n_lengths || head->http_1_0))
        return 400;
    head->chunked = n_encodings > 0;
    return 0;
}

int http_parse_head(char *text, size_t n, struct http_head *head)
{
    memset(head, 0, sizeof(*head));
    if (memchr(text, '\0', n))
        return 400;
    char *end = text + n;
    bool first = true;
    for (char *line = text; line < end;) {
        char *lf = memchr(line, '\n', (size_t)(end - line));
        if (!lf || lf == line || lf[-1] != '\r')
            return 400;
        lf[-1] = '\0';
        if (line[0] == '\0') /* the empty line that ends the head */
            return first || lf + 1 != end ? 400 : interpret(head);
        int status;
        if (first)
            status = parse_request_line(line, head);
        else if (head->n_headers >= HTTP_MAX_HEADERS)
            status = 431;
        else
            status = parse_header(line, &head->headers[head->n_headers++]);
        if (status)
            return status;
        first = false;
        line = lf + 1;
    }
    return 400;
}

/* ---- chunked bodies */

enum { CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_SIZE_LF, CHUNK_DATA, CHUNK_CR, CHUNK_LF, TRAILER, TRAILER_LF };

/* A byte of the line "1a;extension CR LF" before a chunk. */
static int feed_size_line(struct http_chunks *c, char byte, uint64_t limit)
{
    int digit = c->state == CHUNK_SIZE ? hex_digit(byte) : -1;
    if (++c->n_line > MAX_CHUNK_LINE)
        return 400;
    if (c->state == CHUNK_SIZE_LF) {
        if (byte != '\n')
            return 400;
        c->state = c->left ? CHUNK_DATA : TRAILER;
        c->n_line = c->n_digits = 0;
    } else if (digit >= 0) {
        if (++c->n_digits > 15)
            return 413;
        c->left = c->left << 4 | (unsigned)digit;
        return c->left > limit ? 413 : 0;
    } else if (c->n_digits == 0) {
        return 400;
    } else if (byte == '\r') {
        c->state = CHUNK_SIZE_LF;
    } else if (c->state == CHUNK_SIZE && byte != ';') {
        return 400;
    } else if ((unsigned char)byte < 0x20 && byte != '\t') {
        return 400;
    } else {
        c->state = CHUNK_EXTENSION;
    }
    return 0;
}

/* A byte of the lines behind the last chunk: read over, up to an empty one. left counts the bytes of this
 * line. */
static int feed_trailer(struct http_chunks *c, char byte)
{
    if (++c->n_line > MAX_TRAILERS)
        return 400;
    if (c->state == TRAILER_LF) {
        if (byte != '\n')
            return 400;
        c->done = c->left == 0;
        c->state = TRAILER;
        c->left = 0;
    } else if (byte == '\r') {
        c->state = TRAILER_LF;
    } else if ((unsigned char)byte < 0x20 && byte != '\t') {
        return 400;
    } else {
        c->left++;
    }
    return 0;
}

size_t http_chunks_feed(struct http_chunks *c, const char *data, size_t n, size_t max_body,
                        struct strbuf *body, int *status)
{
    size_t i = 0;
    *status = 0;
    while (i < n && !c->done && *status == 0) {
        if (c->state == CHUNK_DATA) {
            size_t take = n - i < c->left ? n - i : (size_t)c->left;
            strbuf_add(body, data + i, take);
            *status = strbuf_failed(body) ? 500 : 0;
            i += take;
            c->left -= take;
            if (c->left == 0)
                c->state = CHUNK_CR;
            continue;
        }
        char byte = data[i++];
        if (c->state == CHUNK_CR || c->state == CHUNK_LF) {
            if (byte != (c->state == CHUNK_CR ? '\r' : '\n'))
                *status = 400;
            c->state = c->state == CHUNK_CR ? CHUNK_LF : CHUNK_SIZE;
        } else if (c->state == TRAILER || c->state == TRAILER_LF) {
            *status = feed_trailer(c, byte);
        } else {
            *status = feed_size_line(c, byte, max_body > body->len ? max_body - body->len : 0);
        }
    }
    return i;
}
