/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the list of libraries: those linked in, with the version they state at run time, and those that may be
 * loaded later (MPI, CUDA), as found or not found. Starts no program.
 */
#include "host/host_internal.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <event2/event.h>
#include <gnu/libc-version.h>
#include <hwloc.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define MAX_STATUS_BYTES ((size_t)64 << 20)

static void add(struct host *h, const char *name, const char *version, bool found, const char *role)
{
    if (h->n_libraries < HOST_MAX_LIBRARIES)
        h->libraries[h->n_libraries++] =
            (struct host_library){.name = name, .version = version, .role = role, .found = found};
}

/* Lua belongs to the script room, whose header this room does not include; the identity string is an exported
 * symbol. */
static const char *lua_version(struct host *h)
{
    const char *s = dlsym(RTLD_DEFAULT, "lua_ident");
    const char *p = s ? strstr(s, "Lua ") : NULL;
    if (!p)
        return NULL;
    p += 4;
    return arena_strndup(&h->arena, p, strcspn(p, " $"));
}

/* The first of these libraries that can be loaded, or NULL. */
static void *load_first(const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *lib = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL);
        if (lib)
            return lib;
    }
    return NULL;
}

/* A symbol of a library as a function pointer; ISO C has no cast for that. */
static bool symbol(void *lib, const char *name, void *function)
{
    void *s = lib ? dlsym(lib, name) : NULL;
    memcpy(function, &s, sizeof s);
    return s != NULL;
}

/* "Open MPI v4.1.4, package: ..." ; "MPICH Version:\t4.0.2". May be asked before MPI is initialised. */
static const char *mpi_version(struct host *h, void *lib, const char **kind)
{
    int (*version)(char *, int *);
    char text[8193];
    int n = 0;
    *kind = "communicator plugin";
    if (!symbol(lib, "MPI_Get_library_version", &version) || version(text, &n) != 0 || n < 0 || n > 8192)
        return NULL;
    text[n] = 0;
    *kind = str_starts(text, "Open MPI") ? "communicator plugin, Open MPI"
            : str_starts(text, "MPICH")  ? "communicator plugin, MPICH"
                                         : *kind;
    size_t skip = strcspn(text, "0123456789");
    return arena_strndup(&h->arena, text + skip, strspn(text + skip, "0123456789."));
}

static void add_mpi(struct host *h)
{
    static const char *const names[] = {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so"};
    const char *role;
    void *lib = load_first(names, ARRAY_LEN(names));
    const char *version = mpi_version(h, lib, &role);
    add(h, "mpi", NULL, lib != NULL, role);
    add(h, "open mpi", version, strstr(role, "Open MPI") != NULL, "communicator plugin");
    h->libraries[h->n_libraries - 2].version = version;
    if (lib)
        dlclose(lib);
}

/* A library too large to be loaded for its version (half a second from a disk): looked for where it usually
 * lies, its version read from the name of the file that the link leads to: libnvrtc.so.13.0.88. */
static bool find_library(struct host *h, const char *soname, const char **version)
{
    static const char usual[] = "/usr/local/cuda/lib64:/usr/local/cuda/targets/x86_64-linux/lib:"
                                "/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib64:/usr/lib:"
                                "/usr/local/lib";
    const char *set = getenv("LD_LIBRARY_PATH"), *lists[] = {set ? set : "", usual};
    char full[PATH_MAX], real[PATH_MAX];
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        for (const char *p = lists[i]; *p; p += *p == ':') {
            size_t n = strcspn(p, ":");
            int w = snprintf(full, sizeof full, "%.*s/%s", (int)(n < PATH_MAX ? n : 0), p, soname);
            p += n;
            if (n == 0 || w < 0 || (size_t)w >= sizeof full || !realpath(full, real))
                continue;
            const char *so = strstr(real, ".so.");
            *version = so ? arena_strndup(&h->arena, so + 4, strspn(so + 4, "0123456789.")) : NULL;
            return true;
        }
    }
    return false;
}

/* None of these needs a card or a driver. */
static void add_cuda(struct host *h)
{
    static const char *const cuda[] = {"libcuda.so.1"};
    static const char *const cudart[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                         "libcudart.so"};
    int (*runtime_version)(int *);
    int v = 0;
    void *lib = load_first(cuda, ARRAY_LEN(cuda));
    add(h, "nvidia driver", NULL, lib != NULL, "device plugin");
    if (lib)
        dlclose(lib);
    lib = load_first(cudart, ARRAY_LEN(cudart));
    bool known = symbol(lib, "cudaRuntimeGetVersion", &runtime_version) && runtime_version(&v) == 0;
    add(h, "cuda runtime", known ? arena_printf(&h->arena, "%d.%d", v / 1000, v % 1000 / 10) : NULL,
        lib != NULL, "device plugin");
    if (lib)
        dlclose(lib);
    const char *version = NULL;
    bool found = find_library(h, "libnvrtc.so.13", &version) || find_library(h, "libnvrtc.so.12", &version);
    add(h, "nvrtc", version, found, "device plugin");
    version = NULL;
    found = find_library(h, "libnccl.so.2", &version);
    add(h, "nccl", version, found, "collectives");
}

/* ---- versions of the distribution's packages, which tell of fixes that keep the upstream version */

static const char *field(const char *stanza, const char *end, const char *key, size_t *n)
{
    size_t k = strlen(key);
    for (const char *p = stanza; p < end;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        stop = stop ? stop : end;
        if ((size_t)(stop - p) > k && memcmp(p, key, k) == 0) {
            *n = (size_t)(stop - p) - k;
            return p + k;
        }
        p = stop + 1;
    }
    return NULL;
}

static void note_package(struct host *h, const char *stanza, const char *end)
{
    static const struct {
        const char *package, *library;
        bool same_version; /* the package's version starts with what the library says at run time */
    } known[] = {
        {"libc6", "glibc", true},         {"libssl3", "openssl", true}, {"libevent-2.1-7", "libevent", true},
        {"libcurl4", "libcurl", true},    {"liblua5.4-0", "lua", true}, {"libhwloc15", "hwloc", false},
        {"libopenmpi3", "open mpi", true}};
    size_t n, nv, ns;
    const char *name = field(stanza, end, "Package: ", &n), *version, *status;
    for (size_t i = 0; name && i < ARRAY_LEN(known); i++) {
        size_t k = strlen(known[i].package);
        bool match = n >= k && memcmp(name, known[i].package, k) == 0 &&
                     (n == k || (n == k + 3 && memcmp(name + k, "t64", 3) == 0));
        struct host_library *l = match ? host_find_library(h, known[i].library) : NULL;
        if (!l || !(version = field(stanza, end, "Version: ", &nv)) ||
            !(status = field(stanza, end, "Status: ", &ns)) || ns < 10 ||
            memcmp(status + ns - 10, " installed", 10) != 0)
            continue;
        size_t own = l->version ? strlen(l->version) : 0;
        if (!known[i].same_version || (own && nv > own && memcmp(version, l->version, own) == 0))
            l->package = arena_strndup(&h->arena, version, nv);
    }
}

static void read_packages(struct host *h)
{
    struct arena scratch;
    char *text;
    size_t n;
    arena_init(&scratch, NULL, MEM_MISC);
    if (file_read("/var/lib/dpkg/status", MAX_STATUS_BYTES, &scratch, &text, &n, NULL) == ERR_OK) {
        for (const char *p = text; p < text + n;) {
            const char *end = strstr(p, "\n\n");
            end = end ? end + 1 : text + n;
            note_package(h, p, end);
            p = end + 1;
        }
    }
    arena_release(&scratch);
}

/* Full path of a program, in the arena, or NULL. */
static const char *find_program(struct host *h, const char *name)
{
    const char *path = getenv("PATH");
    char full[PATH_MAX];
    for (unsigned guard = 0; path && *path && guard < 1024; guard++) {
        size_t n = strcspn(path, ":");
        struct stat st;
        int w = snprintf(full, sizeof full, "%.*s/%s", (int)(n < PATH_MAX ? n : 0), path, name);
        if (n > 0 && w > 0 && (size_t)w < sizeof full && access(full, X_OK) == 0 && stat(full, &st) == 0 &&
            S_ISREG(st.st_mode))
            return arena_strdup(&h->arena, full);
        path += n;
        path += *path == ':';
    }
    return NULL;
}

int host_probe_libraries(struct host *h)
{
    h->libraries = arena_alloc_n(&h->arena, HOST_MAX_LIBRARIES, sizeof *h->libraries);
    if (!h->libraries)
        return ERR_NOMEM;
    unsigned hw = hwloc_get_api_version();
    const curl_version_info_data *c = curl_version_info(CURLVERSION_NOW);
    add(h, "glibc", gnu_get_libc_version(), true, "C library");
    add(h, "openssl", arena_strdup(&h->arena, OpenSSL_version(OPENSSL_VERSION_STRING)), true, "hashing, TLS");
    add(h, "lua", lua_version(h), dlsym(RTLD_DEFAULT, "lua_newstate") != NULL, "architecture files");
    add(h, "libevent", event_get_version(), true, "HTTP server");
    add(h, "libcurl", c && c->version ? arena_strdup(&h->arena, c->version) : NULL, c != NULL, "HTTP client");
    add(h, "hwloc", arena_printf(&h->arena, "API %u.%u.%u", hw >> 16, hw >> 8 & 255, hw & 255), true,
        "topology");
    add_mpi(h);
    const char *mpirun = find_program(h, "mpirun");
    add(h, "mpirun", NULL, mpirun != NULL,
        mpirun ? arena_printf(&h->arena, "launcher, %s", mpirun) : "launcher");
    add_cuda(h);
    const char *nvcc = find_program(h, "nvcc");
    add(h, "nvcc", NULL, nvcc != NULL, nvcc ? arena_printf(&h->arena, "compiler, %s", nvcc) : "compiler");
    read_packages(h);
    return 0;
}

void host_put_libraries(struct json_writer *w, const struct host *h)
{
    json_key(w, "libraries");
    json_begin_array(w);
    for (size_t i = 0; i < h->n_libraries; i++) {
        const struct host_library *l = &h->libraries[i];
        json_begin_object(w);
        json_put_string(w, "name", l->name);
        json_put_string(w, "version", l->version);
        json_put_string(w, "package", l->package);
        json_put_string(w, "role", l->role);
        json_put_bool(w, "found", l->found);
        json_end_object(w);
    }
    json_end_array(w);
}
